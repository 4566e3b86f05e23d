"""Kernels of chains, held against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.chains import ChainCandidate, ChainKernel, Tiling, simulate_tiling
from amos.chains.candidate import slots_of
from amos.chains.writer import schedule_products, write_chain
from amos.errors import AmosError
from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.validate import evaluate, random_inputs
from tests.chains.test_tiling import ROLLING
from tests.ir.test_chain import ATTENTION
from tests.support.chains import best_candidate

SIZES = dict(b=2, q=21, k=48, d=32)
STENCIL = "t[v,x] += a[v,x+r] * w[r]; o[y,x] += t[y+s,x] * u[s]"
CAUSAL = ATTENTION.replace("scores * s", "scores * s + min(q - k, 0) * 1e30")
#: Heads are parts of rows.
ROWS = (
    "scores[b,q,k] += query[q,b,d] * key[k,b,d]; p = safe_softmax(scores, axis=k); "
    "out[q,b,d] += p[b,q,k] * value[k,b,d]"
)
GROUPED = (
    "scores[g,r,q,k] += query[g,r,q,d] * key[g,k,d]; p = softmax(scores + mask[q,k], axis=k); "
    "out[g,r,q,d] += p[g,r,q,k] * value[g,k,d]"
)
HALF = dict(query="bf16", key="bf16", value="bf16", p="bf16")


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    return Chooser("host", core=True)


@pytest.mark.parametrize(
    ("text", "sizes", "tiles", "dtypes"),
    [
        (ATTENTION, SIZES, dict(b=1, q=16), {}),
        (ATTENTION, SIZES, dict(b=1, q=16, k=16), {}),
        (ATTENTION, SIZES, dict(b=1, q=16), HALF),
        (ROWS, dict(b=3, q=21, k=48, d=32), dict(b=1, q=8), {}),
        (CAUSAL, dict(b=2, q=40, k=40, d=16), dict(b=1, q=16), {}),
        (CAUSAL, dict(b=2, q=40, k=40, d=16), dict(b=1, q=16, k=20), {}),
        (GROUPED, dict(g=2, r=3, q=20, k=24, d=16), dict(g=1, r=1, q=8), {}),
        (STENCIL, dict(v=62, y=59, x=70, r=3, s=4), dict(y=14, x=32), {}),
        (STENCIL, dict(v=62, y=59, x=70, r=3, s=4), dict(y=20), dict(a="u8", w="s8", t="s32")),
        ("l[i,j] = x[i,j] * 2 + 1; o[i,j] = tanh(l[j,i])", dict(i=19, j=19), {}, {}),
        ("l = logsumexp(x[i,k] * s, axis=k); o = l * 2", dict(i=5, k=60), dict(i=2, k=20), {}),
        ("c[j] = u[j] * 2; t[i,j] = a[i,j] + c; m = sum(t, axis=i); o = m * c",
         dict(i=9, j=37), {}, {}),
        ("p = softmax(x[a,b,k], axis=k); o[a,b,j] += p[b,a,k] * w[k,j]",
         dict(a=5, b=5, k=32, j=32), dict(a=1, k=16), {}),
        ("t[i,j] = a[i,j] * 2; o[i,f] += pad(t[i+s-1,j]) * u[s,j,f]",
         dict(i=20, s=3, j=16, f=32), dict(f=16), {}),
        ("n[i] += u8(x[i,k] * 60); o = n * 1", dict(i=3, k=48), dict(i=2, k=16), {}),
        (CAUSAL, dict(b=2, q=12, k=1, d=16), dict(b=1, q=4), {}),  # its only key has number 0
        ("n[] += x[i] * y[i]; o[i] = x[i] / (1 + abs(n))", dict(i=37), {}, {}),
    ],
)  # fmt: skip
def test_a_kernel_computes_the_chain(
    chooser: Chooser,
    text: str,
    sizes: dict[str, int],
    tiles: dict[str, int],
    dtypes: dict[str, str],
) -> None:
    chain = Chain.parse(text, sizes, dtypes)
    tiling = Tiling.of(chain, tiles)
    kernel = ChainKernel(best_candidate(chooser, tiling, packs=True))
    inputs = random_inputs(chain, np.random.default_rng(0))
    expected = evaluate(chain, inputs)
    # Probabilities in bfloat16 are rounded before they are divided, not behind it.
    allowed = 1e-2 if "bf16" in dtypes.values() else 1e-5
    np.testing.assert_allclose(kernel(**inputs), expected, rtol=allowed, atol=allowed)
    out = np.empty(chain.result.shape, expected.dtype)
    assert kernel(*inputs.values(), out=out) is out
    np.testing.assert_allclose(out, expected, rtol=allowed, atol=allowed)


@pytest.mark.parametrize(
    ("text", "tiles"),
    [
        ("t[i,j] += a[i,k] * b[k,j]; o[i] max= t[i,j]", dict(k=8)),
        ("p = softmax(a[i,k], axis=k); t[i,j] += p[i,k] * b[k,j]; o[i] max= t[i,j]", {}),
    ],
)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_sums_of_16_bits_are_rounded_once(text: str, tiles: dict[str, int], kind: str) -> None:
    """Neither part by part, nor before they are divided by the sum of a row."""
    chain = Chain.parse(text, dict(i=5, j=12, k=256), dict(t=kind))
    inputs = {n: abs(x) for n, x in random_inputs(chain, np.random.default_rng(0)).items()}
    kernel = ChainKernel(ChainCandidate(Tiling.of(chain, tiles), {}))
    half = 2.0**-8 if kind == "bf16" else 2.0**-11
    np.testing.assert_allclose(kernel(**inputs), evaluate(chain, inputs), rtol=1.01 * half)


#: Rows that roll are made of whole temporaries, or come behind a step whose rows do not roll.
BESIDE = [
    ("t[v] = relu(a[v]); p = softmax(t[v], axis=v); o[y] += p[y+r] * w[r]",
     dict(v=17, y=16, r=2), "y"),
    ("u[y] = relu(a[y]); t[v] = a[v] * 2; d[y] += t[y+r] * w[r]; o[y] = d + u",
     dict(v=17, y=16, r=2), "y"),
]  # fmt: skip


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("case", [*ROLLING, *BESIDE], ids=lambda case: case[0])
def test_a_kernel_keeps_rows(
    chooser: Chooser, case: tuple[str, dict[str, int], str], packs: bool
) -> None:
    text, sizes, loops = case
    loop, outer = loops[0], loops[1:]
    wide = {"x": 40, "c": 32, "k": 24, "e": 16}
    chain = Chain.parse(text, sizes | {n: size for n, size in wide.items() if n in sizes})
    inputs = random_inputs(chain, np.random.default_rng(0))
    expected = evaluate(chain, inputs)
    for size in (1, 4) if packs else (2, 5):
        tiling = Tiling.of(chain, {loop: size} | ({"n": 1} if "n" in outer else {}), loop)
        kernel = ChainKernel(best_candidate(chooser, tiling, packs=packs))
        np.testing.assert_allclose(kernel(**inputs), expected, rtol=1e-5, atol=1e-5)


def test_what_tiles_share_is_packed_without_what_lies_between() -> None:
    chain = Chain.parse(ROWS, dict(b=3, q=21, k=48, d=32))
    slots = slots_of(Tiling.of(chain, dict(b=1, q=8)), frozenset({"scores", "out"}))
    shapes = {load.tensor.name: load.tensor.shape for x in slots for load in x.operator.sources}
    assert shapes["key"] == shapes["value"] == (48, 1, 32)
    assert shapes["query"] == (8, 3, 32)  # read in place


@pytest.mark.parametrize(("tiles", "rolling"), [(dict(i=8), ""), (dict(i=8), "i"), ({}, "")])
def test_constants_are_packed_once(chooser: Chooser, tiles: dict[str, int], rolling: str) -> None:
    text = "t[i,j] += x[i,k] * weight[k,j]; u[i,j] = relu(t + bias[j]); o[i,f] += "
    text += "pad(u[i+s-1,j]) * last[s,j,f]" if rolling else "u[i,j] * last[j,f]"
    sizes = dict(i=20, j=48, k=32, f=32) | (dict(s=3) if rolling else {})
    chain = Chain.parse(text, sizes, constants=["weight", "last"])
    tiling = Tiling.of(chain, tiles, rolling)
    assert [each.operator.constants for each in slots_of(tiling, frozenset())] == [
        ("weight",),
        ("last",),
    ]
    candidate = best_candidate(chooser, tiling, packs=True)
    assert not any(slot.packed for slot in candidate.slots)
    products = schedule_products(candidate, dict.fromkeys(candidate.products, "generic"))
    _, function = write_chain(candidate, products, cores=2)
    # LLVM may keep what it read over a store, unless rows are written by one view of memory and
    # read by another.
    assert bool(function.attrs["tirx.noalias"]) is not bool(rolling)
    kernel = ChainKernel(candidate)
    inputs = random_inputs(chain, np.random.default_rng(0))
    expected = evaluate(chain, inputs)
    np.testing.assert_allclose(kernel(**inputs), expected, rtol=1e-4, atol=1e-5)
    constants = {name: inputs.pop(name) for name in chain.constants}
    kernel.pack(**constants)
    for array in constants.values():
        array[...] = 0  # they are not read again
    np.testing.assert_allclose(kernel(**inputs), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(AmosError, match="'bias' is not a constant input; constants are weight"):
        kernel.pack(bias=inputs["bias"])


@pytest.mark.parametrize(
    ("second", "tiles", "constants"),
    [
        ("weight_2", dict(i=8, f=16), [("weight",), ()]),  # a part of it in each tile
        ("weight_2", dict(i=8, j=16), [(), ()]),  # in each part of a row
        ("weight", dict(i=8), [(), ()]),  # both products read it
    ],
)
def test_which_constants_are_packed_ahead(
    chooser: Chooser, second: str, tiles: dict[str, int], constants: list[tuple[str, ...]]
) -> None:
    text = f"t[i,j] += x[i,k] * weight[k,j]; o[i,f] += t[i,j] * {second}[j,f]"
    chain = Chain.parse(text, dict(i=20, j=32, k=32, f=32))
    tiling = Tiling.of(chain, tiles)
    assert [each.operator.constants for each in slots_of(tiling, frozenset())] == constants
    kernel = ChainKernel(best_candidate(chooser, tiling, packs=True))
    inputs = random_inputs(chain, np.random.default_rng(0))
    kernel.pack(**{name: inputs[name] for name in chain.constants})
    free = {name: inputs[name] for name in inputs if name not in chain.constants}
    np.testing.assert_allclose(kernel(**free), evaluate(chain, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tiles", [dict(q=4), dict(q=4, k=16)])
@pytest.mark.parametrize("function", ["softmax", "safe_softmax"])
def test_rows_without_a_finite_number(tiles: dict[str, int], function: str) -> None:
    text = f"p = {function}(x[q,k], axis=k); out[q,d] += p[q,k] * value[k,d]"
    chain = Chain.parse(text, dict(q=9, k=48, d=16))
    inputs = random_inputs(chain, np.random.default_rng(0))
    inputs["x"][2], inputs["x"][3, :20] = -np.inf, -np.inf
    kernel = ChainKernel(ChainCandidate(Tiling.of(chain, tiles), {}))
    expected = evaluate(chain, inputs)
    assert np.isnan(expected[2]).all() if function == "softmax" else not expected[2].any()
    np.testing.assert_allclose(kernel(**inputs), expected, rtol=1e-4, atol=1e-5)
    tiled = simulate_tiling(kernel.candidate.tiling, inputs)
    np.testing.assert_allclose(tiled, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "tiles"),
    [
        ("m = max(x[i,k], axis=k); o = m * 1", {}),
        ("m = max(x[i,k], axis=k); o = m * 1", dict(k=16)),
        ("m = min(x[i,k], axis=i); o = m * 1", {}),
        ("l = logsumexp(x[i,k], axis=k); o = l * 1", dict(k=16)),
    ],
)
def test_nan_and_infinities_go_through(text: str, tiles: dict[str, int]) -> None:
    chain = Chain.parse(text, dict(i=4, k=67 if not tiles else 64))
    (x,) = random_inputs(chain, np.random.default_rng(0)).values()
    x[1, 5], x[3, :16] = np.nan, -np.inf
    kernel = ChainKernel(ChainCandidate(Tiling.of(chain, tiles), {}))
    np.testing.assert_allclose(kernel(x), evaluate(chain, dict(x=x)), rtol=1e-5)


def test_calls_are_checked() -> None:
    chain = Chain.parse("t[i] = x[i] * 2; o[i] = t + y[i]", dict(i=4))
    kernel = ChainKernel(ChainCandidate(Tiling.of(chain, {}), {}))
    ones = np.ones(4, np.float32)
    with pytest.raises(AmosError, match="missing input y"):
        kernel(ones)
    with pytest.raises(AmosError, match="of shape"):
        kernel(ones, np.ones(5, np.float32))
    np.testing.assert_array_equal(kernel(x=ones, y=ones), 3 * ones)


@pytest.mark.parametrize("shared", ["", "g,"])
@pytest.mark.long
def test_a_step_of_a_decoder_is_the_last_row_of_the_whole(shared: str) -> None:
    """One row of queries, and the keys of all rows before it; heads may share them."""
    text = (
        f"scores[g,h,q,k] += query[g,h,q,d] * key[{shared or 'g,h,'}k,d]; "
        "p = softmax(scores * 0.25 + min(q + first - k, 0) * 1e30, axis=k); "
        f"out[g,h,q,d] += p[g,h,q,k] * value[{shared or 'g,h,'}k,d]"
    )
    rows = 33
    sizes = dict(g=2, h=3, k=rows, d=16)
    whole = amos.Operator.parse(text.replace("first", "0"), extents=sizes | {"q": rows})
    step = amos.Operator.parse(text.replace("first", str(rows - 1)), extents=sizes | {"q": 1})
    inputs = random_inputs(whole, np.random.default_rng(0))
    expected = evaluate(whole, inputs)[:, :, -1:]
    inputs["query"] = np.ascontiguousarray(inputs["query"][:, :, -1:])
    kernel = amos.build(amos.explore(step, trials=2, progress=False).best)
    np.testing.assert_allclose(kernel(**inputs), expected, rtol=1e-4, atol=1e-4)
