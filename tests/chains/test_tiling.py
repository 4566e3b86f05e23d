"""Tilings of chains: whatever is cut, what is computed stays the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amos.chains import Tiling, simulate_tiling
from amos.chains.candidate import runs_of
from amos.errors import ScheduleError
from amos.ir import Chain
from amos.validate import evaluate, random_inputs
from tests.ir.test_chain import ATTENTION, SIZES

#: Chains with the extents of their iterations, and those that may be cut.
CHAINS = [
    (ATTENTION, dict(b=2, q=5, k=8, d=4), "bqk"),
    ("t[v,x] += a[v,x+r] * w[r]; o[y,x] += t[y+s,x] * u[s]", dict(v=9, y=6, x=7, r=3, s=4), "yx"),
    ("t[v,x] += a[v,2*x+r] * w[r]; o[y,x] += t[2*y+s,x] * u[s]",
     dict(v=13, y=6, x=4, r=3, s=3), "yx"),
    ("h[t,f] += x[t,c] * w[f,c]; g = gelu(h); o[t,e] += g[t,f] * v[e,f]",
     dict(t=5, f=6, c=3, e=4), "tfe"),
    ("l = logsumexp(x[i,k] * s, axis=k); o = l * 2", dict(i=5, k=6), "ik"),
    ("p = softmax(x[i,k] + min(i - k, 0) * 1e30, axis=k); o[i,j] += p[i,k] * v[k,j]",
     dict(i=6, k=6, j=3), "ik"),
    ("m = min(x[i,k], axis=k); n[i] max= x[i,k]; l[i] += x[i,k] * y[k]; o = m * n + l",
     dict(i=5, k=6), "ik"),
    ("m[i] max= x[i,k]; e[i,k] = exp(x[i,k] - m); l[i] += e[i,k]; o[i,j] += e[i,k] * v[k,j]; "
     "z[i,j] = o / l", dict(i=4, k=6, j=3), "ik"),
    ("c[j] = u[j] * 2; t[i,j] = a[i,j] + c; o[i,j] = t * c", dict(i=4, j=5), "ij"),
    # Readers name, order and move the loops of what they read in their own way.
    ("t[i,k] = x[i,k] * 2; o[i,j] += t[0,k] * w[k,j]", dict(i=4, k=4, j=3), "ikj"),
    ("p = softmax(x[a,b,k], axis=k); o[a,b,j] += p[b,a,k] * w[k,j]",
     dict(a=3, b=3, k=4, j=3), "kj"),
    ("p = softmax(x[a,k], axis=k); o[b,j] += p[b*2+1,k] * w[k,j]",
     dict(a=6, b=3, k=4, j=3), "bkj"),
    ("p = softmax(x[a,k], axis=k); o[b] += p[b+r,k] * w[r,k]", dict(a=6, b=5, k=4, r=2), "b"),
    ("l[i] += x[i,k]; t[i,k] = x[i,k] / l[1]; o[i,j] += t[i,k] * v[k,j]",
     dict(i=4, k=4, j=3), "j"),
    ("m[i] max= x[i,k]; e[i,k] = exp(x[i,k] - m[0]); o[i,j] += e[i,k] * v[k,j]",
     dict(i=4, k=4, j=3), "kj"),
    ("t[i] = a[i] * 2; o[i,j] += pad(t[i+s-1]) * u[s,j]", dict(i=8, s=3, j=4), "j"),
    ("t[i,k] = a[i,k] * 2; o[i,j] += pad(t[i+s-1,k]) * u[s,k,j]",
     dict(i=5, s=3, k=4, j=3), "jk"),
    ("p = softmax(x[i,k], axis=k); o[i,j] += pad(p[i+s-1,k]) * u[s,k,j]",
     dict(i=5, s=3, k=4, j=3), "j"),
    ("t = softmax(x[i,k], axis=i); o = softmax(t[i,k], axis=k)", dict(i=4, k=3), ""),
    ("n[i] += u8(x[i,k] * 60); o = n * 1", dict(i=3, k=6), "ik"),
]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_tiled_chain_computes_what_the_chain_says(data: st.DataObject) -> None:
    text, sizes, cut = data.draw(st.sampled_from(CHAINS))
    chain = Chain.parse(text, sizes)
    result = {n for index in chain.steps[-1].output.indices for n in index.names}
    tiles = {}
    for name in data.draw(st.permutations(sorted(cut))):
        sized = range(1, sizes[name] + 1)
        choices = sized if name in result else [n for n in sized if sizes[name] % n == 0]
        if data.draw(st.booleans()):
            tiles[name] = data.draw(st.sampled_from(list(choices)))
    inputs = random_inputs(chain, np.random.default_rng(data.draw(st.integers(0, 9))))
    got = simulate_tiling(Tiling.of(chain, tiles), inputs)
    np.testing.assert_allclose(got, evaluate(chain, inputs), rtol=3e-5, atol=3e-5)


SEPARABLE = "t[v,x] += a[v,x+r] * w[r]; o[y,x] += t[y+s,x] * u[s]"
#: Chains whose tiles keep rows for the next one, and the loop that rolls before another one.
ROLLING = [
    (SEPARABLE, dict(v=12, y=9, x=7, r=3, s=4), "yx"),
    (SEPARABLE.replace("t[y", "t[2*y"), dict(v=19, y=9, x=7, r=3, s=3), "yx"),
    ("t[y,z,c] = relu(a[y,z,c]); d[y,z,c] += pad(t[y+r-1,z+s-1,c]) * w[r,s,c]; o[y,z,c] = d * 2",
     dict(y=9, z=6, c=2, r=3, s=3), "y"),
    ("t[v,x] = a[v,x] - 1; o[y,x] += pad(t[2*y+r-1,x], -3) * u[r]",
     dict(v=12, y=6, x=5, r=3), "yx"),
    ("t[y,x] = a[y,x] + y; u[y,x] += pad(t[y+r-2,x]) * w[r]; o[y,x] += pad(u[y+s,x]) * w[s]",
     dict(y=12, x=4, r=5, s=5), "yx"),
    ("t[n,y,c] += a[n,y,k] * b[k,c]; d[n,y,c] += pad(t[n,y+r-1,c]) * w[r,c]; "
     "o[n,y,e] += d[n,y,c] * f[c,e]; z[n,y,e] = o + a[n,y,e]",
     dict(n=2, y=8, c=3, k=2, r=3, e=2), "yn"),
]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_rows_that_roll_are_computed_once(data: st.DataObject) -> None:
    text, sizes, loops = data.draw(st.sampled_from(ROLLING))
    loop, outer = loops[0], loops[1:]
    chain = Chain.parse(text, sizes)
    tiles = {loop: data.draw(st.integers(1, sizes[loop]))}
    for name in outer:
        tiles[name] = 1 if name == "n" else data.draw(st.integers(1, sizes[name]))
    tiling = Tiling.of(chain, tiles, loop)
    assert all(tiled.rows for tiled in tiling.steps[:1])
    inputs = random_inputs(chain, np.random.default_rng(data.draw(st.integers(0, 9))))
    got = simulate_tiling(tiling, inputs)
    np.testing.assert_allclose(got, evaluate(chain, inputs), rtol=3e-5, atol=3e-5)


def test_each_row_is_computed_once() -> None:
    chain = Chain.parse(SEPARABLE, dict(v=103, y=100, x=7, r=3, s=4))
    rows = {}
    for rolling in ("", "y"):
        tiling = Tiling.of(chain, dict(y=10), rolling)
        first = tiling.steps[0]
        rows[rolling] = runs_of(tiling, first) * first.ranges["v"].size
    assert rows == {"": 130, "y": 103}


@pytest.mark.parametrize(
    ("text", "tiles", "rolling", "message"),
    [
        (SEPARABLE, dict(y=4), "x", "rolling x: expected a loop of the result's tiles, y"),
        (SEPARABLE, dict(x=4), "x", "tile.x: no rows roll along it"),
        (SEPARABLE.replace("a[v,x+r]", "pad(a[v,x+r-1])").replace("a[v", "a[v+r-1"), dict(y=4), "y",
         "a tile of y has .* leave y whole"),
        (SEPARABLE, dict(y=4, s=2), "y", "expected shared loops and whole rows, got y:4, s:2"),
    ],
)  # fmt: skip
def test_loops_along_which_nothing_rolls(
    text: str, tiles: dict[str, int], rolling: str, message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        Tiling.of(Chain.parse(text, dict(v=12, y=9, x=7, r=3, s=4)), tiles, rolling)


def test_rows_roll_along_a_loop() -> None:
    chain = Chain.parse(SEPARABLE, dict(v=12, y=9, x=7, r=3, s=4))
    with pytest.raises(ScheduleError, match="expected shared loops and whole rows, got whole"):
        Tiling(chain, (), rolls=True)


def test_rows_are_rescaled_also_where_a_part_is_masked() -> None:
    chain = Chain.parse(
        "p = softmax(x[i,k] + mask[i,k], axis=k); o[i,j] += p[i,k] * v[k,j]", dict(i=3, k=6, j=2)
    )
    inputs = random_inputs(chain, np.random.default_rng(0))
    inputs["mask"] = np.where(np.tri(3, 6, dtype=bool), 0, -np.inf).astype(np.float32)
    got = simulate_tiling(Tiling.of(chain, dict(i=1, k=2)), inputs)
    np.testing.assert_allclose(got, evaluate(chain, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "sign"), [("max", -1), ("min", 1)])
def test_extremes_of_infinite_rows_are_infinite(name: str, sign: int) -> None:
    chain = Chain.parse(f"m = {name}(x[i,k], axis=k); o = m * 1", dict(i=2, k=4))
    x = np.full((2, 4), sign * np.inf, np.float32)
    got = simulate_tiling(Tiling.of(chain, dict(k=2)), dict(x=x))
    np.testing.assert_array_equal(got, evaluate(chain, dict(x=x)))


def test_a_quotient_is_taken_of_the_sum() -> None:
    whole = Tiling.of(Chain.parse(ATTENTION, SIZES), dict(b=1, q=2))
    assert "p" not in [each.step.output.tensor.name for each in whole.steps]


def test_sums_of_narrow_integers_are_not_cut() -> None:
    chain = Chain.parse("l[i] += x[i,k]; o = l * 1", dict(i=3, k=8), dict(x="s8", l="s8"))
    with pytest.raises(ScheduleError, match="it is rounded to s8 behind its sum"):
        Tiling.of(chain, dict(k=2))


def test_what_inner_loops_do_not_change_is_computed_outside() -> None:
    chain = Chain.parse("c[j] = u[j] * 2; t[i,j] = a[i,j] + c; o[i,j] = t * c", dict(i=4, j=5))
    assert [each.depth for each in Tiling.of(chain, dict(j=2, i=1)).steps] == [1, 2, 2]
    assert [each.depth for each in Tiling.of(chain, dict(i=1)).steps] == [0, 1, 1]


def test_halos_are_boxes() -> None:
    chain = Chain.parse(CHAINS[1][0], CHAINS[1][1])
    tiling = Tiling.of(chain, dict(y=2, x=3))
    assert tiling.size("t") == (5, 3)
    assert tiling.size("a") == (5, 5)
    assert tiling.count == 9


@pytest.mark.parametrize(
    ("text", "sizes", "tiles", "message"),
    [
        ("m = max(x[i,k], axis=k); q[i,k] = (x[i,k] - m) * 2; o[i,j] += q[i,k] * v[k,j]",
         dict(i=6, k=6, j=2), dict(k=3),
         "'q[i,k] = (x[i,k] - m) * 2' cannot be computed in parts of 'k': it needs 'm' of the "
         "whole row"),
        ("p = softmax(x[i,k], axis=k); t[i,k] = p * p; o[i,j] += t[i,k] * v[k,j]",
         dict(i=6, k=6, j=2), dict(k=3), "'t[i,k] = p * p' cannot be computed in parts of 'k'"),
        ("p = softmax(x[i,k], axis=k); o[i,k] = p * 2", dict(i=4, k=6), dict(k=3),
         "a tile of k has all of"),
        ("l[i] += x[i,k]; t[i,k] = x[i,k] / l[k]; o[i,j] += t[i,k] * v[k,j]",
         dict(i=4, k=4, j=2), dict(k=2), "it reads l[k] of rows by their own elements"),
        ("p = softmax(x[a,k], axis=k); o[b] += p[b+r,k] * w[r,k]",
         dict(a=6, b=5, k=4, r=2), dict(k=2), "it sums over p.max[b + r]"),
        ("t[i] = a[i] * 2; o[i] += pad(t[i+s-1]) * u[s]", dict(i=8, s=3), dict(i=3),
         "leave i whole"),
        (ATTENTION, SIZES, dict(k=3), "tile.k = 3: expected a divisor of 7"),
        (ATTENTION, SIZES, dict(q=6), "tile.q = 6: expected 1 to 5"),
        (ATTENTION, SIZES, dict(z=6), "tile.z: no iteration of out; these are"),
    ],
)  # fmt: skip
def test_cuts_that_change_the_result_are_refused(
    text: str, sizes: dict[str, int], tiles: dict[str, int], message: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        Tiling.of(Chain.parse(text, sizes), tiles)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
