"""Transforms by literal matrices in chains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import amos
from amos.chains import (
    ChainKernel,
    LoopNest,
    Tiling,
    explore_chain,
    rebuild_chain,
    simulate_tiling,
)
from amos.chains.measuring import chain_tolerance
from amos.chains.model import predict_chain
from amos.chains.transforms import _multiply
from amos.codegen.tir.lane_steps import LaneSteps
from amos.errors import OperatorError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.ir.floats import quantize
from amos.ir.transforms import Literal, Transform, transforms_of
from amos.operators.winograd import INTO_TILES, OUT_OF_TILES, Winograd
from amos.records import Records
from amos.records.canonical import chain_from, operator_values
from amos.validate import evaluate
from tests.support.chains import best_candidate

_CHOOSER = Chooser("host", core=True)
_SIZES = dict.fromkeys("abefghij", 6) | {"p": 4, "q": 4}
#: The inverse of 9 modulo 2**32: results of integers are 576 times as large.
_BY_576 = "954437177 >> 6"


def _literal(name: str, matrix: np.ndarray, kind: type) -> str:
    return f"{name} = {[[kind(x) for x in row] for row in matrix]}; "


def _winograd(
    image: tuple[int, int, int, int],
    features: int,
    dtype: str = "float32",
    pad: int = 1,
    last: str = "",
) -> Chain:
    """F(4×4, 3×3) as a chain, perhaps with an expression that is stored of each sum."""
    n, h, w, c = image
    p, q = (each + 2 * pad - 2 for each in (h, w))
    integer = dtype != "float32"
    kind: type = int if integer else float
    split, pairs = INTO_TILES[integer]
    first, merge = OUT_OF_TILES[integer]
    target = "out[n,4*y+p,4*x+q,k]"
    text = (
        _literal("split", split, kind)
        + _literal("pairs", pairs, kind)
        + _literal("first", first, kind)
        + _literal("merge", merge, kind)
        + "v[a,b,n,y,x,c] += pairs[b,f] * split[f,j] * pairs[a,e] * split[e,i]"
        + f" * pad(image[n,4*y+i-{pad},4*x+j-{pad},c]);"
        + "m[a,b,n,y,x,k] += v[a,b,n,y,x,c] * weight[a,b,c,k];"
        + f"{target.replace('out', 'sum') if last else target} += merge[q,h] * first[h,b]"
        + " * merge[p,g] * first[g,a] * m[a,b,n,y,x,k]"
        + (f"; {target} = {last}" if last else "")
    )
    kinds = {"image": dtype, "v": "int16", "weight": "int16"} if integer else {}
    extents = {"n": n, "y": -(-p // 4), "x": -(-q // 4), "c": c, "k": features}
    shapes = {"image": image, "out": (n, p, q, features)}
    shapes |= {"old": (n, p, q, features)} if "old" in last else {}
    return Chain.parse(text, extents | _SIZES, kinds, shapes=shapes)


def _build(tiling: Tiling) -> ChainKernel:
    return ChainKernel(best_candidate(_CHOOSER, tiling, packs=False))


def _draw(chain: Chain, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {}
    for x in chain.inputs:
        kind = str(x.dtype)
        if kind in ("float32", "bfloat16"):
            arrays[x.name] = quantize(rng.standard_normal(x.shape).astype(np.float32), kind)
        else:
            arrays[x.name] = rng.integers(-99, 100, x.shape).astype(kind)
    return arrays


def _convolved(image: np.ndarray, weight: np.ndarray, pad: int) -> np.ndarray:
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    result: np.ndarray = np.einsum("npqcrs,kcrs->npqk", windows, weight)
    return result


@pytest.mark.parametrize(
    ("image", "features", "pad", "tiles", "last"),
    [
        ((1, 8, 8, 16), 16, 1, {"y": 1}, ""),
        ((2, 10, 13, 16), 24, 1, {"n": 1, "y": 2, "x": 3}, "relu(sum + bias[k])"),
        ((1, 7, 9, 8), 8, 1, {}, "sum[n,4*y+p,4*x+q,k] + old[n,4*y+p,4*x+q,k]"),
        ((3, 9, 6, 24), 16, 0, {"n": 2, "x": 1}, ""),
        ((1, 5, 5, 16), 32, 1, {"y": 1, "k": 16}, "bf16(sum)"),
    ],
)
def test_a_chain_computes_convolutions_by_winograds_tiles(
    image: tuple[int, int, int, int], features: int, pad: int, tiles: dict[str, int], last: str
) -> None:
    chain = _winograd(image, features, pad=pad, last=last)
    inputs = _draw(chain, 1)
    windows = np.random.default_rng(2).standard_normal((features, image[-1], 3, 3))
    expected = _convolved(inputs["image"].astype(float), windows, pad)
    weight = Winograd(image, chain.result.shape, (pad, pad)).windows(windows)
    inputs["weight"] = weight
    expected = expected + inputs.get("old", 0)
    if "bias" in inputs:
        expected = np.maximum(expected + inputs["bias"], 0)
    error = (2**-8 if "bf16" in last else 2e-5) * np.abs(expected).max()
    tiling = Tiling.of(chain, tiles)
    for result in (
        evaluate(chain, inputs),
        simulate_tiling(tiling, inputs),
        _build(tiling)(**inputs),
    ):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, atol=error)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("last", ["", f"relu(sum * {_BY_576})", f"s8(sum * {_BY_576} >> 5)"])
def test_integers_are_exact(dtype: str, last: str) -> None:
    image = (1, 10, 7, 16)
    chain = _winograd(image, 16, dtype, last=last)
    rng, limits = np.random.default_rng(2), np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, image, dtype, endpoint=True)
    windows = rng.integers(-20, 20, (16, 16, 3, 3)).astype(np.int8)
    weight = Winograd(image, image, (1, 1), dtype=dtype).windows(windows)
    inputs = {"image": x, "weight": weight}
    expected = _convolved(x.astype(np.int64), windows, 1)
    if "relu" in last:
        expected = expected.clip(0)
    elif last:
        expected = (expected >> 5).clip(-128, 127)
    else:
        expected = (expected * 576).astype(np.int32)  # as it wraps around
    tiling = Tiling.of(chain, {"y": 1})
    for result in (simulate_tiling(tiling, inputs), _build(tiling)(**inputs)):
        np.testing.assert_array_equal(result, expected)


_HAAR = "haar = [[1, 1], [1, -1]]; "


@pytest.mark.parametrize(
    ("text", "extents", "tiles", "dtypes"),
    [
        ("w[a,y,c] += haar[a,i] * x[2*y+i,c]; r[a,y,c] = relu(w[a,y,c])", "a2 i2 y5 c20", "y2", ""),
        ("w[a,y,c] += haar[a,i] * x[2*y+i,c]; r[a,y,c] = relu(w)", "a2 i2 y5 c7", "y2", "x=bf16"),
        ("w[a,y,c] += haar[a,i] * x[2*y+i,c]; r[2*y+p,c] += haar[p,a] * w[a,y,c]",
         "a2 i2 y5 c3 p2", "y2", "x=int8,w=int16"),
        ("w[a,b,c] += haar[a,i] * haar[b,j] * pad(x[i-1,j-1,c], 3); "
         "r[b,c] = w[0,b,c] + w[1,b,c]", "a2 b2 i2 j2 c16", "c8", "x=int16"),
        ("w[d,y] = x[d,y] * 2.0; r[a,c,y] += haar[a,i] * w[c+i,y]",
         "a2 i2 c8 d9 y8", "y4", ""),
        ("w[y,a,c] += haar[a,i] * x[y,i,c]; r[y,c] = w[y,1,c]", "a2 i2 y5 c4", "y1", "r=f16"),
        ("w[y,a,c] += haar[a,i] * pad(x[y-3*i+1,c]); r[y,a,c] = w * 2.0", "a2 i2 y9 c8", "y4", ""),
        ("w[y,k] += x[y,c] * v[c,k]; u[y,a,k] += haar[a,i] * w[2*y+i,k]; r[y,a,k] = u * s[k]",
         "a2 i2 y8 c5 k9", "k4", ""),
    ],
)  # fmt: skip
def test_kernels_and_tilings_equal_numpy(text: str, extents: str, tiles: str, dtypes: str) -> None:
    sizes = {each[0]: int(each[1:]) for each in extents.split()}
    if "w[2*y+i" in text:
        text, sizes["z"] = text.replace("w[y,k] += x[y,c]", "w[z,k] += x[z,c]"), 16
    kinds = dict(pair.split("=") for pair in dtypes.split(",") if pair)
    chain = Chain.parse(_HAAR + text, sizes, kinds)
    inputs = _draw(chain)
    expected = evaluate(chain, inputs)
    tiling = Tiling.of(chain, {tiles[0]: int(tiles[1:])})
    for result in (simulate_tiling(tiling, inputs), _build(tiling)(**inputs)):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_rows_of_zeros_of_integers(kind: str) -> None:
    text = "l = [[0, 0], [-1, 2]]; w[a,c] += l[a,i] * x[i,c]; r[a,c] = w + 1"
    chain = Chain.parse(text, {"a": 2, "i": 2, "c": 20}, {"x": kind, "w": "int32"})
    inputs = _draw(chain)
    np.testing.assert_array_equal(_build(Tiling.of(chain, {}))(**inputs), evaluate(chain, inputs))


@pytest.mark.parametrize(("kind", "largest"), [("int16", 2**14), ("int32", 2**30)])
@pytest.mark.parametrize("last", [-3, 4])  # a product of factors is zero modulo 2**bits, or is not
def test_common_factors_of_integers_wrap_around(kind: str, largest: int, last: int) -> None:
    text = (
        f"l = [[{largest}, {-largest}, 0], [6, 4, 2], [0, {last}, 0]]; "
        f"m = [[1, 1, 3], [0, {largest}, 1]]; w[p,q,c] += m[q,b] * l[b,j] * l[p,i] * x[i,j,c]"
    )
    chain = Chain.parse(
        text, {"p": 3, "q": 2, "b": 3, "i": 3, "j": 3, "c": 20}, {"x": "int8", "w": kind}
    )
    inputs = _draw(chain)
    np.testing.assert_array_equal(_build(Tiling.of(chain, {}))(**inputs), evaluate(chain, inputs))


def test_common_factors_of_integers_are_multiplied_once() -> None:
    from tvm import tirx

    matrix = ((4, -8, 0), (0, 0, -12), (2, 2, 2))
    literals = [Literal("l", matrix, "p", "i"), Literal("l", matrix, "q", "j")]
    steps, element = LaneSteps(8), tirx.Var("x", "int32")
    values = [str(value) for _, value in _multiply(literals, lambda place: element, steps)]
    # Sums of one row, (a - 2 b) 4 and (a + b + c) 2, of three columns, and of two rows of these.
    assert len(steps.statements) == 2 * 3 + 3 * 2
    assert sum(str(x).count("*") for x in steps.statements) == 3 + 3
    assert sorted(value.count("*") for value in values) == [1] * 9


def test_the_definition_in_numpy() -> None:
    chain = Chain.parse(
        "l = [[1, 2.5, 0], [-1, 0, 4]]; w[a,y,c] += l[a,i] * pad(x[y+i-1,c]); r[y,a,c] = w + 0.0",
        {"a": 2, "i": 3, "y": 4, "c": 2},
    )
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = np.pad(x, ((1, 1), (0, 0)))
    expected = [[rows[y] + 2.5 * rows[y + 1], -rows[y] + 4 * rows[y + 2]] for y in range(4)]
    np.testing.assert_array_equal(evaluate(chain, {"x": x}), expected)


def test_zeros_add_nothing() -> None:
    chain = Chain.parse("l = [[1, 0], [0, 0]]; w[a,c] += l[a,i] * x[i,c]; r[a,c] = w + 1.0",
                        {"a": 2, "i": 2, "c": 4})  # fmt: skip
    inputs = {"x": np.array([[1, 2, 3, 4], [np.inf, np.nan, -np.inf, 0]], np.float32)}
    for result in (evaluate(chain, inputs), _build(Tiling.of(chain, {}))(**inputs)):
        np.testing.assert_array_equal(result, [[2, 3, 4, 5], [1, 1, 1, 1]])


@pytest.mark.parametrize("last", ["", "relu(sum + bias[k])"])
def test_text_and_records_keep_literals(last: str) -> None:
    chain = _winograd((1, 6, 6, 8), 8, last=last)
    assert isinstance(chain.steps[0], Transform) and len(chain.statements) == 3
    assert [x.name for x in chain.inputs] == ["image", "weight", *(["bias"] if last else [])]
    assert chain_from(operator_values(chain)) == chain
    assert "; ".join(each.text for each in chain.statements).startswith("pairs = [[1.0, ")
    text = f"{_HAAR}w[a,y,c] += haar[a,i] * x[2*y+i,c]; r[a,z,c] = w[a,z,c] * 2.0"
    sizes = {"a": 2, "i": 2, "y": 5, "c": 8, "z": 4}
    smaller = Chain.parse(text, sizes, {}, shapes={"w": (2, 4, 8)})
    assert chain_from(operator_values(smaller)) == smaller


def test_a_sum_that_others_read_is_no_part_of_a_transform() -> None:
    text = "w[2*y+p,c] += haar[p,i] * x[2*y+i,c]; r[2*y+p,c] = relu(w); s[z,c] = r[z,c] + w[z,c]"
    with pytest.raises(OperatorError, match=r"r\[y\*2 \+ p, c\] is written: expected one"):
        Chain.parse(_HAAR + text, {"y": 2, "p": 2, "i": 2, "c": 4, "z": 4})


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("r[2*y+p,c] = w + other[c]", ""),
        ("r[2*y+p,c] = w + other[y,c]", "expected the indices of r"),
        ("r[2*y+p,c] = w + other[2*y+p,c] * short[2*y+p]", r"got short\[y\*2 \+ p\]"),
        ("r[2*y+p,c] = w * y", "got y in what is computed with a transform"),
        ("r[2*y+p,c] = w + w[y,c]", r"got w\[y, c\]"),
        ("r[2*y+p,c] = w + t[2*y+p,c]", r"got t\[y\*2 \+ p, c\]"),
        ("r[2*y+p,c] = x[2*y+p,c]", "expected one iteration as an index"),
        ("r[2*y+p,c] = relu(w); q[2*y+p,c] = r + 1.0", "expected one iteration as an index"),
        ("r[2*y+p,c] = w * haar[2*y+p,c]", r"got haar\[y\*2 \+ p, c\]"),
    ],
)
def test_expressions_of_sums(last: str, message: str) -> None:
    text = f"{_HAAR}t[z,c] = x[z,c] + 1.0; w[2*y+p,c] += haar[p,i] * t[2*y+i,c]; {last}"
    extents = {"y": 2, "p": 2, "i": 2, "c": 4, "z": 4}
    shapes = {"short": (3,)} if "short" in last else None
    if not message:
        (transform,) = transforms_of(Chain.parse(text, extents))
        assert str(transform.epilogue) == "acc + other[c]"
        return
    with pytest.raises(OperatorError, match=message):
        Chain.parse(text, extents, shapes=shapes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l = [[1, 2], [3]]; w[a,c] += l[a,i] * x[i,c]", "row 2 has 1 numbers, and row 1 2"),
        ("l = []; w[a,c] += l[a,i] * x[i,c]", "rows of numbers"),
        ("l = [[]]; w[a,c] += l[a,i] * x[i,c]", "rows of numbers"),
        ("l = [1, 2]; w[a,c] += l[a,i] * x[i,c]", "rows of numbers"),
        ("l = [[1, two]]; w[a,c] += l[a,i] * x[i,c]", "rows of numbers"),
        ("l = [[1, nan]]; w[a,c] += l[a,i] * x[i,c]", "rows of numbers"),
        ("l = [[1, '2']]; w[a,c] += l[a,i] * x[i,c]", r"row 1: expected numbers .* got '2'"),
        ("l = [[1], [1e400]]; w[a,c] += l[a,i] * x[i,c]", r"row 2: expected numbers .* got inf"),
        ("l = [[3000000000]]; w[a,c] += l[a,i] * x[i,c]", r"between -2\*\*31 and 2\*\*31, got 3"),
        ("l = [[1, 2]]; l = [[1]]; w[a,c] += l[a,i] * x[i,c]", "defined before"),
        ("l = [[1, 2]]; w[a,c] = x[a,c] * 2.0;", "nothing reads the literal 'l'"),
        ("l = [[1, 2]]", "nothing reads the literal 'l'"),
        ("l = [[1, 2]]; l[a,c] += l[a,i] * x[i,c]", "'l' is a literal, which nothing writes"),
        ("l = [[1, 2], [3, 4]]; w[a,c] = relu(l[a,c])", "expected sums of products"),
        ("l = [[1, 2], [3, 4]]; w += l[a,i] * x[i,c]", "expected sums of products"),
        ("l = [{1, 2}, {3, 4}]; w[a,c] += l[a,i] * x[i,c]", "rows of numbers"),
        ("l = [[1, 2, 3], [4, 5, 6]]; w[a,c] += l[a,i] * x[i,c]", "2 columns by its iterations"),
        ("l = [[1, 2], [3, 4]]; w[a,c] += l[a,i] * x[a,c]", "sum over an index"),
        ("l = [[1, 2], [3, 4]]; w[a,c] += l[a,a] * x[a,c]", "each by two iterations"),
        ("l = [[1, 2], [3, 4]]; w[a,c] += l[a+1,i] * x[i,c]", "each by two iterations"),
        ("l = [[1, 2], [3, 4]]; w[a,c] += x[i,c] * l[a,i]", "then the tensor"),
        ("l = [[1, 2], [3, 4]]; w[a,c] max= l[a,i] * x[i,c]", "sums of products"),
        ("l = [[1, 2], [3, 4]]; w[c,a] += l[a,i] * x[i,c]", "as the last index"),
        ("l = [[1, 2], [3, 4]]; w[a,3*c] += l[a,i] * x[i,c]", "each element once"),
    ],
)  # fmt: skip
def test_what_is_no_transform_is_refused(text: str, message: str) -> None:
    used = {name: 2 for name in "aic" if f"{name}]" in text or f"{name}," in text}
    with pytest.raises(OperatorError, match=message) as error:
        Chain.parse(text, used)
    assert len(str(error.value).splitlines()) == 1


def test_too_much_to_unroll_is_refused() -> None:
    matrix = np.ones((70, 70), int).tolist()
    text = f"l = {matrix}; w[a,c] += l[a,i] * x[i,c]; r[a,c] = w + 1.0"
    with pytest.raises(OperatorError, match="at most 4096 operations of a tile"):
        Chain.parse(text, {"a": 70, "i": 70, "c": 2})


def test_a_tile_is_read_once_in_any_order_of_literals() -> None:
    matrix = ((1, 0), (0, 1))
    literals = [Literal("l", matrix, *pair) for pair in ("ae", "bf", "ei", "fj")]
    read = list[dict[str, int]]()
    values = _multiply(literals, lambda place: read.append({**place}), LaneSteps(1))
    assert len([*values]) == len(read) == 4


def test_what_is_small_beside_a_one_counts() -> None:
    text = "l = [[1, 1e-20], [0, 1]]; w[a,c] += l[a,i] * x[i,c]"
    chain = Chain.parse(text, {"a": 2, "i": 2, "c": 8})
    inputs = {"x": np.array([[1.0] * 8, [1e20] * 8], np.float32)}
    for result in (evaluate(chain, inputs), _build(Tiling.of(chain, {}))(**inputs)):
        np.testing.assert_allclose(result[0], 2)


def test_factors_beyond_the_sums_are_refused() -> None:
    text, kinds = "l = [[40000, 2]]; w[a,c] += l[a,i] * x[i,c]", {"x": "int8", "w": "int16"}
    with pytest.raises(OperatorError, match="40000 is too large a factor of s16"):
        Chain.parse(text, {"a": 1, "i": 2, "c": 2}, kinds)


def test_integers_of_sums_of_floats_may_round_to_a_neighbour() -> None:
    text = f"{_HAAR}w[2*y+p,c] += haar[p,i] * x[2*y+i,c]; r[2*y+p,c] = s8(w)"
    for kind, tolerance in (("float32", 1.0), ("int8", 0.0)):
        chain = Chain.parse(text, {"y": 2, "p": 2, "i": 2, "c": 4}, {"x": kind})
        assert chain_tolerance(chain, np.zeros((4, 4), np.int8)) == tolerance


def test_sums_that_are_never_stored_have_no_dtype() -> None:
    text = f"{_HAAR}w[2*y+p,c] += haar[p,i] * x[2*y+i,c]; r[2*y+p,c] = relu(w)"
    with pytest.raises(OperatorError, match="'w', which is never stored; tensors are x, r"):
        Chain.parse(text, {"y": 2, "p": 2, "i": 2, "c": 4}, {"w": "float32"})


def test_fractions_of_integers_are_refused() -> None:
    text = "l = [[0.5, 2]]; w[a,c] += l[a,i] * x[i,c]; r[a,c] = w + 1"
    kinds: dict[str, str] = {"x": "int8", "w": "int32"}
    with pytest.raises(OperatorError, match="those with fractions floats"):
        Chain.parse(text, {"a": 1, "i": 2, "c": 2}, kinds)


def test_loops_of_literals_stay_whole() -> None:
    chain = _winograd((1, 8, 8, 16), 16)
    with pytest.raises(ScheduleError, match=r"tile\.p"):
        Tiling.of(chain, {"p": 2})
    with pytest.raises(ScheduleError, match="do not roll"):
        Tiling.of(chain, {"y": 1}, rolling="y")
    with pytest.raises(ScheduleError, match="expected a chain without literals"):
        LoopNest.of(Tiling.of(chain, {"y": 1}))


def test_literals_beside_a_softmax() -> None:
    chain = Chain.parse(
        _HAAR + "s[q,k] += a[q,d] * b[k,d]; p = softmax(s, axis=k); o[q,j] += p[q,k] * v[k,j]; "
        "r[z,t,j] += haar[t,i] * o[2*z+i,j]",
        {"q": 8, "k": 8, "d": 4, "j": 8, "t": 2, "i": 2, "z": 4},
    )
    inputs = _draw(chain)
    expected = evaluate(chain, inputs)
    tiling = Tiling.of(chain, {"z": 2})
    for result in (simulate_tiling(tiling, inputs), _build(tiling)(**inputs)):
        np.testing.assert_allclose(result, expected, atol=1e-5)
    with pytest.raises(ScheduleError, match="rows of chains with literals stay whole"):
        Tiling.of(chain, {"z": 2, "k": 4})


@pytest.mark.usefixtures("short_search", "one_guard")
def test_records_of_explored_chains(tmp_path: Path) -> None:
    chain = _winograd((1, 8, 8, 8), 8, last="relu(sum + bias[k])")
    file = tmp_path / "tuning.db"
    result = explore_chain(chain, trials=2, tiles={"y": 1}, records=file)
    inputs = _draw(chain)
    expected = evaluate(chain, inputs)
    with Records(file, readonly=True) as records:
        record = records.all()[-1]
    for kernel in (amos.build(result.best), ChainKernel(rebuild_chain(record))):
        got = kernel(**inputs)
        np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())


def test_a_transform_reads_its_tile_of_an_image() -> None:
    chain = _winograd((1, 56, 56, 64), 64)
    machine = amos.machines.get("xeon_6240")
    rows, halves = (
        predict_chain(Tiling.of(chain, tiles), {"m": 0}, False, machine).steps[0].seconds
        for tiles in ({"y": 1}, {"y": 1, "x": 7})
    )
    assert rows <= halves < 1.2 * rows
    lanes = predict_chain(Tiling.of(chain, {"k": 1}), {"m": 0}, False, machine).steps[-1]
    whole = predict_chain(Tiling.of(chain, {}), {"m": 0}, False, machine).steps[-1]
    assert lanes.seconds > 2 * whole.seconds  # of a lane a vector
