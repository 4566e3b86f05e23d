"""Functions of expressions in NumPy: how far off they are, and what they do at the ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from amos.ir import Operator
from amos.ir.expression_parser import functions
from amos.ir.functions import DEFINITIONS, OF_FLOATS
from amos.validate import evaluate
from tests.support.oracle.functions import FUNCTIONS

Floats = np.ndarray
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])
_ROOT = math.sqrt(2 / math.pi)


def _sigmoid(x: Floats) -> Floats:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x > 0, 1, small) / (1 + small))


#: In doubles, and by how many ulp (of the result, or of the argument) they may be off.
EXACT: dict[str, tuple[Callable[[Floats], Floats], float, bool]] = {
    "exp": (np.exp, 1, False),
    "sigmoid": (_sigmoid, 2.5, False),
    "silu": (lambda x: x * _sigmoid(x), 3.5, False),
    "tanh": (np.tanh, 6, False),
    "erf": (_erf, 6, False),
    "gelu": (lambda x: x * _erfc(-x / math.sqrt(2)) / 2, 3, True),
    "gelu_tanh": (lambda x: x * _sigmoid(2 * _ROOT * (x + 0.044715 * x**3)), 3, True),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, 1, False),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, 2, False),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, False),
}


def computed(text: str, *values: Floats) -> Floats:
    """An expression of ``acc`` and of ``x1`` … for all these values."""
    op = Operator.parse(
        "out[i] += a[i] * b[]",
        extents=dict(i=values[0].size),
        dtypes=dict(a="float32", b="float32", out="float32"),
    ).with_epilogue(text)
    inputs = {f"x{n}": each for n, each in enumerate(values) if n}
    return np.asarray(evaluate(op, {"a": values[0], "b": np.array(1, np.float32), **inputs}))


def off(name: str, x: Floats) -> float:
    """How far a function is off, in ulp."""
    exact, _, of_argument = EXACT[name]
    if name == "rsqrt":
        x = x[x > 0]
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
        got = computed(f"{name}(acc)", x)
        rounded = want.astype(np.float32)
        # Smaller results have fewer bits.
        normal = np.abs(rounded) >= (2.0**-119 if name == "silu" else 2.0**-126)
        size = np.abs(x if of_argument else rounded)
        ulp = np.spacing(np.maximum(size, np.float32(2.0**-126)))
        ulps = np.abs(got - want) / ulp
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    assert np.all(np.abs(got[~normal]) <= 2.0**-118) or of_argument
    return float(ulps[finite & (normal | of_argument)].max())


def every_short() -> Floats:
    """Each finite value of f16 and of bf16."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    brains = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    values = np.concatenate([halves, brains])
    return np.asarray(values[np.isfinite(values)])


@pytest.mark.parametrize("name", EXACT)
def test_largest_error(name: str) -> None:
    """For all values of f16 and bf16, and a million of f32; stated by ``amos.ir.epilogue``."""
    rng = np.random.default_rng(len(name))
    sizes = rng.uniform(1, 2, 500_000) * 2.0 ** rng.integers(-30, 8, 500_000)
    near = rng.uniform(-20, 20, 500_000)
    drawn = np.concatenate([near, sizes * rng.choice([-1, 1], sizes.size)])
    values = np.concatenate([every_short(), drawn.astype(np.float32)])
    assert off(name, values) <= EXACT[name][1]


@pytest.mark.parametrize("name", EXACT)
def test_the_oracle_of_drawn_epilogues_states_the_same_bits(name: str) -> None:
    x = np.random.default_rng(0).uniform(-110, 110, 20_000).astype(np.float32)
    x = np.abs(x) if name == "rsqrt" else x
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(computed(f"{name}(acc)", x), FUNCTIONS[name](x))


def test_the_largest_error_of_log() -> None:
    rng = np.random.default_rng(0)
    values = 2.0 ** np.concatenate([rng.uniform(-126, 128, 200_000), rng.uniform(-1, 1, 200_000)])
    x = values.astype(np.float32)
    want = np.log(x.astype(np.float64))
    ulp = np.spacing(np.abs(want).astype(np.float32))
    assert (np.abs(computed("log(acc)", x) - want) <= 2 * ulp).all()


def test_what_is_far_out() -> None:
    ends = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30], np.float32)
    nan = np.nan
    for name, want in {
        "exp": [np.inf, 0, nan, 1, 1, np.inf, 0],
        "log": [np.inf, nan, nan, -np.inf, -np.inf, 69.07755, nan],
        "tanh": [1, -1, nan, 0, 0, 1, -1],
        "erf": [1, -1, nan, 0, 0, 1, -1],
        "sigmoid": [1, 0, nan, 0.5, 0.5, 1, 0],
        "gelu": [np.inf, nan, nan, 0, 0, 1e30, 0],
        "silu": [np.inf, nan, nan, 0, 0, 1e30, 0],
        "hardsigmoid": [1, 0, nan, 0.5, 0.5, 1, 0],
        "hardswish": [np.inf, nan, nan, 0, 0, 1e30, 0],
        "relu": [np.inf, 0, nan, 0, 0, 1e30, 0],
        "abs": [np.inf, np.inf, nan, 0, 0, 1e30, 1e30],
    }.items():
        np.testing.assert_array_equal(
            computed(f"{name}(acc)", ends), np.array(want, np.float32), name
        )
    for name in ("tanh", "erf"):
        results = computed(f"{name}(acc)", every_short())
        assert results.max() == 1 and results.min() == -1


def test_small_results_of_exp_are_rounded_once_more() -> None:
    x = np.linspace(-104.5, -87, 2001, dtype=np.float32)
    want = np.exp(x.astype(np.float64))
    assert (np.abs(computed("exp(acc)", x) - want) <= 2.0**-149 + want * 2.0**-24).all()


def test_fma_rounds_once() -> None:
    """Against exact fractions: also where a double is half-way between two floats."""
    rng = np.random.default_rng(0)
    draw = [
        (rng.integers(-(2**24), 2**24, 3000) * 2.0 ** rng.integers(-60, 20, 3000)) for _ in range(3)
    ]
    a, b, c = (each.astype(np.float32) for each in draw)
    # Products of odd numbers that end in a half, and an addend that is too small to be seen.
    a[:1500] = (rng.integers(2**11, 2**12, 1500) * 2 + 1).astype(np.float32)
    b[:1500] = (rng.integers(2**11, 2**12, 1500) * 2 + 1).astype(np.float32)
    c[:1500] = rng.choice([-1, 1], 1500) * 2.0 ** -rng.integers(20, 60, 1500)
    got = computed("fma(acc, x1[i], x2[i])", a, b, c)
    for value, *three in zip(got, a, b, c, strict=True):
        x, y, z = (Fraction(float(each)) for each in three)
        error = abs(x * y + z - Fraction(float(value)))
        for variant in (
            np.nextafter(value, np.float32(-np.inf)),
            np.nextafter(value, np.float32(np.inf)),
        ):
            assert error <= abs(x * y + z - Fraction(float(variant)))


def test_quantize_and_dequantize() -> None:
    """Casts inside of an expression round, as they do outermost."""
    acc = np.linspace(-9, 9, 577, dtype=np.float32)
    quantized = np.clip(np.rint(acc / np.float32(0.05)), -128, 127)
    want = (quantized.astype(np.float32) + np.float32(3)) * np.float32(0.05)
    np.testing.assert_array_equal(computed("(s8(acc / 0.05) + 3) * 0.05", acc), want)
    halves = acc.astype(np.float16).astype(np.float32) * np.float32(3)
    np.testing.assert_array_equal(computed("f16(acc) * 3", acc), halves)
    large = computed("f16(acc * 1e5)", np.array([0.6, 0.7, -1], np.float32))
    np.testing.assert_array_equal(large, np.array([60000, np.inf, -np.inf], np.float16))


def test_every_function_has_a_definition_of_its_own() -> None:
    """Their names are also apart without underscores, which C functions do not get."""
    table = functions()
    assert len(table) == len(DEFINITIONS) + len(OF_FLOATS)
    assert len({name.strip("_") for name in table}) == len(table)
