"""Winograd's convolution in NumPy, against its definition."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amos.ir import Operator
from amos.operators.winograd import INTO_TILES, Winograd
from amos.validate import evaluate

_INTO = {n: reduce(lambda first, second: second @ first, each) for n, each in INTO_TILES.items()}
_BYTES = {"uint8": (0, 255), "int8": (-128, 127)}


def _defined(image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The convolution of padded images ``(n, d, h, w, c)`` and windows ``(k, c, t, 3, 3)``."""
    windows = np.lib.stride_tricks.sliding_window_view(image, weight.shape[2:], (1, 2, 3))
    result: np.ndarray = np.einsum("ndpqctrs,kctrs->ndpqk", windows, weight)
    return result


def convolution(image: tuple[int, ...], result: tuple[int, ...], kind: str) -> Operator:
    """Return the operator in two or three dimensions."""
    names = "pq" if len(image) == 4 else "dpq"
    taps = dict(zip(names, (image[1] - result[1] + 1, 3, 3)[-len(names) :], strict=True))
    inner = ",".join(f"{name}+{name}0" for name in names)
    text = f"out[n,{','.join(names)},k] += image[n,{inner},c] * weight[k,c,{'0,'.join(names)}0]"
    extents = dict(zip(("n", *names, "k"), result, strict=True)) | {"c": image[-1]}
    extents |= {f"{name}0": size for name, size in taps.items()}
    kinds = {} if kind == "float32" else {"image": kind, "weight": "int8", "out": "int32"}
    return Operator.parse(text, extents, kinds)


@given(
    seed=st.integers(0, 2**32 - 1),
    sides=st.tuples(*[st.integers(3, 12)] * 2),
    depth=st.integers(1, 3),
    kind=st.sampled_from(["uint8", "int8", "float32"]),
)
def test_it_is_the_convolution(seed: int, sides: tuple[int, int], depth: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    image: np.ndarray
    weight: np.ndarray
    shape, taps = (2, 3, *sides, 4), (5, 4, depth, 3, 3)
    if kind == "float32":
        image, weight = rng.standard_normal(shape), rng.standard_normal(taps)
    else:
        low, high = _BYTES[kind]
        image = rng.integers(low, high, shape, endpoint=True)
        weight = rng.integers(-128, 128, taps)
    result = (2, 4 - depth, sides[0] - 2, sides[1] - 2, 5)
    form = Winograd(shape, result, (0, 0, 0), depth, kind)
    chain = form.build_chain(convolution(shape, result, kind))
    inputs = dict(image=image.astype(kind), weight=form.windows(weight))
    tolerance = 3e-5 if kind == "float32" else 0
    expected = _defined(image, weight)
    np.testing.assert_allclose(evaluate(chain, inputs), expected, atol=tolerance)


@pytest.mark.parametrize("kind", _BYTES)
def test_tiles_of_bytes_fit_16_bits(kind: str) -> None:
    """Also what is computed on the way, for the worst bytes."""
    low, high = _BYTES[kind]
    (first, _), whole = INTO_TILES[True], _INTO[True]
    for matrix in (np.eye(6), first, whole):
        for right in (first, whole):
            terms = np.kron(matrix, right)
            above = np.where(terms > 0, high, low) * terms
            below = np.where(terms > 0, low, high) * terms
            assert above.sum(1).max() < 2**15
            assert below.sum(1).min() >= -(2**15)


def test_windows_of_bytes_fit_16_bits() -> None:
    form = Winograd((1, 8, 8, 1), (1, 6, 6, 2), (0, 0), dtype="uint8")
    weight = np.full((2, 1, 3, 3), -128)
    weight[1] = 127
    assert form.windows(weight).astype(int).min() == -128 * 49
    assert form.windows(weight).astype(int).max() == 127 * 49


@pytest.mark.parametrize(
    ("kind", "value", "exact"),
    [
        # 33,554,431 is the largest result that six more bits leave room for.
        ("uint8", 33554431 // 255, True),
        ("uint8", 33554431 // 255 + 1, False),
        ("uint8", -(33554431 // 255), True),
        ("uint8", -(33554431 // 255) - 1, False),
        ("int8", -(33554431 // 128), True),
        ("int8", -(33554431 // 128) - 1, False),
    ],
)
def test_results_that_may_be_too_large_are_found(kind: str, value: int, exact: bool) -> None:
    """The sum of a feature's weights is what counts; the other feature is small."""
    form = Winograd((1, 8, 8, 4096), (1, 8, 8, 2), (1, 1), dtype=kind)
    weight = np.ones((2, 4096, 3, 3), np.int64)
    weight[1] = 0
    weight[1].reshape(-1)[:2] = value // 2, value - value // 2
    assert form.is_exact(weight) is exact


def test_products_in_depth_read_padding() -> None:
    image, result = (1, 4, 8, 8, 16), (1, 2, 6, 6, 32)
    operator = convolution(image, result, "uint8")
    for padding, read in (((0, 1, 1), "tile"), ((1, 1, 1), "pad(tile")):
        product = Winograd(image, result, padding, 3, "uint8").build_chain(operator).steps[1]
        assert isinstance(product, Operator) and str(product.sources[0]).startswith(read)
