"""Searching kernels of chains: on the model, and measured here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import amos
from amos import machines
from amos.chains import ChainExploration, explore_chain
from amos.chains.measuring import ChainTask
from amos.chains.tilings import tilings_of
from amos.errors import AmosError, ExploreError, ScheduleError
from amos.explore.options import MeasureOptions
from amos.ir import Chain
from amos.network.tuned_chains import SearchedChain, tune_chains
from amos.plan.target import load
from tests.ir.test_chain import ATTENTION

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

SIZES = dict(b=2, q=40, k=64, d=16)


def explored(trials: int = 4, **options: object) -> ChainExploration:
    chain = amos.Operator.parse(ATTENTION, extents=SIZES)
    result = amos.explore(chain, trials=trials, progress=False, **options)  # type: ignore[arg-type]
    assert isinstance(result, ChainExploration)
    return result


@pytest.mark.long
def test_the_model_alone_ranks_tilings_of_a_described_machine() -> None:
    result = explored(machine="xeon_6240")
    best = result.best
    assert best.measurement is None
    assert best.predicted == min(trial.predicted for trial in result.trials)
    assert set(best.candidate.products) == {"scores", "out"}
    assert best.prediction.temporary_bytes > 0
    assert explored(machine="xeon_6240").to_dict() == result.to_dict()
    assert json.loads(json.dumps(result.to_dict()))["tiles"] == best.tiles
    assert list(result.to_frame()["trial"]) == [0, 1, 2, 3]
    assert "tiles" in str(result)


@pytest.mark.long
def test_guards_load_what_candidates_need() -> None:
    best = explored(1, machine="xeon_6240").best
    assert [callable(load(str(need))) for need in ChainTask(best.candidate).needs] == [True]


def test_tiles_can_be_fixed() -> None:
    tiles = dict(b=1, q=8, k=16)
    result = explored(machine="xeon_6240", tiles=tiles)
    assert {tuple(trial.tiles.items()) for trial in result.trials} == {tuple(tiles.items())}
    with pytest.raises(ScheduleError, match="no iteration of out"):
        explored(machine="xeon_6240", tiles=dict(z=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rule="base"), "rule: a search over chains has none, got 'base'"),
        (dict(method="sa"), "method: a search over chains has none"),
        (dict(search=amos.SearchOptions(stagnation=3)), "stagnation does not apply to chains"),
        (dict(search=None), "search: expected amos.SearchOptions"),
        (dict(tiles=dict(q="8")), "tile.q: expected a whole number"),
        (dict(tiles=[8]), "tiles: expected a dictionary"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(AmosError, match=message):
        explored(machine="xeon_6240", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="trails"):
        explored(machine="xeon_6240", trails=3)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("t[i,j] += a[i,k] * b[k,j]; o = relu(t)", "vnni_dpbusd_m16k4_u8_s8_s32",
         r"'t\[i,j\] \+= a.*: no instruction can be used: .*`a` is float32"),
        ("t[i,j] += a[i,k] * b[k,j]; o = relu(t)", "amx_tdpbf16ps_m16n16k32_bf16_f32",
         "kernels of chains have no tile registers"),
        ("t[i,j] = a[i,j] * 2; o = t[i,j] + 1", "vnni_dpbusd_m16k4_u8_s8_s32",
         "o: no statement is a sum of products"),
    ],
)  # fmt: skip
def test_an_instruction_that_fits_no_product_is_refused(text: str, name: str, message: str) -> None:
    chain = Chain.parse(text, {n: 16 for n in "ijk" if f"{n}]" in text or f"{n}," in text})
    with pytest.raises(ExploreError, match=message):
        explore_chain(chain, name, machine="xeon_4110", trials=1)


def test_a_search_leaves_out_tilings_that_cut_what_is_needed_whole() -> None:
    text = "t[i,z,j] = a[i,z,j] * 2; o[i,z,f] += pad(t[i+s-1,z+r-1,j]) * u[s,r,j,f]"
    chain = amos.Operator.parse(text, extents=dict(i=32, z=9, s=3, r=3, j=16, f=32))
    result = amos.explore(chain, machine="xeon_6240", trials=4, progress=False)
    assert isinstance(result, ChainExploration)
    rolling = [trial.candidate.tiling.rolls for trial in result.trials]
    assert rolling == ["i" in trial.tiles for trial in result.trials]
    (reason,) = result.refused
    assert reason.endswith("leave z whole")


def test_tiles_that_do_not_divide_a_loop_hardly_overlap() -> None:
    text = "t[i,j] += a[i,k] * b[k,j]; o[i,l] += t[i,j] * w[j,l]"
    chain = Chain.parse(text, dict(i=197, j=64, k=64, l=70))
    tilings, _ = tilings_of(chain, machines.get("xeon_6240"), {})
    tiles = [tiling.tiles for tiling in tilings]
    assert {x["i"] for x in tiles if "i" in x} == {1, 8, 16, 29, 50, 99}
    assert {x["l"] for x in tiles if "l" in x} == {1, 16, 32, 48}  # whole vectors


def test_tuning_tells_of_each_kernel(tmp_path: Path) -> None:
    lines = list[str]()
    chain = amos.Operator.parse(ATTENTION, extents=SIZES)
    assert isinstance(chain, Chain)
    tune_chains(
        [SearchedChain(chain, 1, None)],
        2,
        tmp_path / "tuning.db",
        seed=0,
        measure=MeasureOptions(executor="model"),
        progress=lines.append,
    )
    assert lines[0] == "chain 1 of 1: out"
    assert [re.sub("[0-9.]+ ms", "… ms", line) for line in lines[1:]] == [
        f"chain 1 of 1: out, kernel {n} of 2: … ms" for n in (1, 2)
    ]


def test_a_chain_that_has_no_room_is_refused_in_its_words() -> None:
    text = "p = softmax(x[i,k], axis=k); t[i,k] = p * p; o[i,j] += t[i,k] * v[k,j]"
    chain = amos.Operator.parse(text, extents=dict(i=4, k=2_000_000, j=16))
    with pytest.raises(ExploreError) as caught:
        amos.explore(chain, machine="xeon_6240", trials=1, progress=False)
    assert "'p = softmax(x[i,k], axis=k)': temporaries take at least" in str(caught.value)


def test_chains_are_of_cpus_and_opencl_only() -> None:
    with pytest.raises(ExploreError, match="machine 'a100': chains are for CPUs and OpenCL"):
        explored(machine="a100")


def test_chains_are_drawn() -> None:
    chain = Chain.parse(ATTENTION, SIZES)
    drawn = amos.viz.text(chain)
    assert "p = softmax(scores * s, axis=k)" in drawn and "temporary" in drawn
    assert "<table" in chain._repr_html_()
    assert "tiles" in amos.viz.text(explored(machine="xeon_6240"))
