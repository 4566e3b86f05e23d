"""Searching the mappings of a chain's loops to work-groups and work-items."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import amos
from amos.chains import ParallelSpace, Tiling, explore_chain, rebuild_chain
from amos.cli import main
from amos.errors import AmosError, BuildError, ExploreError, ExportError, RecordError
from amos.ir import Chain
from amos.opencl.chains.candidate import ParallelCandidate, candidate_from
from amos.opencl.chains.model import predict_parallel
from amos.opencl.codegen.parallel import ParallelKernel
from amos.records import Records

POCL = amos.machines.get("pocl")
TEXT = "t[i,j] += a[i,k] * b[k,j]; out[i,j] = relu(t[i,j] + c[j])"
SIZES = dict(i=12, j=32, k=16)
CHAIN = Chain.parse(TEXT, SIZES)
EXTENTS = ["--extent", "i=12,j=32,k=16", "--machine", "pocl"]
MODEL = amos.MeasureOptions(executor="model")
HERE = importlib.util.find_spec("pyopencl") is not None


def explored(*fix: tuple[str, Any], **options: Any) -> Any:
    search = amos.SearchOptions(fix=fix)
    return explore_chain(CHAIN, machine="pocl", search=search, measure=MODEL, **options)


@pytest.mark.long
def test_the_model_ranks_mappings_that_keep_rules_and_limits() -> None:
    result = explored(trials=6)
    assert len(result.trials) == 6
    seconds = [trial.seconds for trial in result.trials]
    assert seconds == sorted(seconds)
    for trial in result.trials:
        assert trial.candidate.violations(POCL) == ()
        assert candidate_from(CHAIN, trial.candidate.values()) == trial.candidate
    assert "local 0" in str(result.best)
    assert json.loads(json.dumps(result.to_dict()))["map"] == result.best.candidate.choices
    assert explored(trials=6).to_dict() == result.to_dict()
    assert list(result.to_frame()["items"]) == [x.candidate.items for x in result.trials]
    assert "local 0" in amos.viz.text(result)


def test_what_is_fixed_holds_for_every_candidate() -> None:
    fix = [("map.i", "group 0"), ("memory.t", "local"), ("copy.a", "none"), ("items", 8)]
    result = explored(*fix, trials=3, tiles=dict(i=1))
    for trial in result.trials:
        own = trial.candidate
        assert (own.choices["i"], own.memory["t"], own.items) == ("group 0", "local", 8)
        assert "a" not in own.copies
        assert own.tiling.tiles["i"] == 1


def test_tiles_and_memories_are_counted_once() -> None:
    fix = [("memory.t", "private"), ("items", 8), *((f"copy.{x}", "none") for x in "abc")]
    reason = "rule private bytes: tiles of t exceed the 512 private bytes of a work-item"
    result = explored(*fix, trials=1, tiles=dict(i=12))  # t has 12 rows of 1, 8, 16 or 32
    assert result.refused == (f"2 of the tiles and memories: {reason}",)


@pytest.mark.parametrize(
    ("fix", "message"),
    [
        ([("map.t.j", "group 0")], "rule [12] (local|private) memory: t.j must be sequential"),
        ([("memory.t", "private"), ("tile", 1)], "unknown variable of a chain 'tile'"),
        ([("map.z", "local 0")], "unknown loop 'z'"),
        ([("map.t.j", "warp")], "map.t.j = 'warp' is not one of sequential"),
        ([("memory.z", "local")], "unknown temporary 'z'"),
        ([("copy.a", "global")], "expected local or private, got 'global'"),
        ([("intrinsic.out", "loops"), ("memory", "local")], "unknown variable of a chain 'memory'"),
        ([("items", 0)], "items: expected a number from 1 on, got 0"),
        ([("items", 8), ("items", 16)], "items: fixed as 8 and as 16"),
        ([("copy.z", "none")], "unknown input 'z'"),
        ([("items", 5000), ("map.i", "global 0")], "rule work-items: 5000 work-items along"),
    ],
)
def test_what_breaks_a_rule_is_said_with_its_name(fix: list[Any], message: str) -> None:
    with pytest.raises(AmosError, match=message):
        explored(*fix, trials=1)


def test_loops_that_no_tiles_have_together_are_refused() -> None:
    chain = Chain.parse(TEXT, SIZES | {"i": 2})  # i has tiles of 1, or t.i has both rows
    fix = (("map.i", "sequential"), ("map.t.i", "sequential"))
    with pytest.raises(ExploreError, match="no tiles have all loops that are fixed"):
        explore_chain(chain, machine="pocl", search=amos.SearchOptions(fix=fix), measure=MODEL)


def test_limits_of_a_device_are_rules() -> None:
    tiling = Tiling.of(CHAIN, {"i": 1})
    choices = dict(i="global 0") | dict.fromkeys(["t.j", "t.k", "out.j"], "sequential")
    own = ParallelCandidate(tiling, choices, items=8)
    assert ParallelKernel(own).launch["local_bytes"] == 8 * 32 * 4  # each has a tile of its own
    assert POCL.opencl is not None
    for limit, memory, rule in (
        (
            dict(local_bytes=8 * 32 * 4 - 1),
            "local",
            "rule local bytes: tiles of t exceed the 1,023",
        ),
        (
            dict(item_bytes=32 * 4 - 1),
            "private",
            "rule private bytes: tiles of t exceed the 127",
        ),
        (dict(group_items=7), "local", "rule work-items: 8 work-items along each of more than 0"),
    ):
        small = replace(POCL, opencl=replace(POCL.opencl, **limit))  # type: ignore[arg-type]
        candidate = replace(own, memory={"t": memory})
        assert candidate.violations(POCL) == ()
        (text,) = candidate.violations(small)
        assert text.startswith(rule)
        space = ParallelSpace(candidate.nest, 1, candidate.limits_on(small))
        assert text in space.explain(choices)
        with pytest.raises(BuildError, match=rule):
            ParallelKernel(candidate, machine=small)
    own = replace(own, tiling=Tiling.of(CHAIN, {"i": 1, "j": 16}))
    both = choices | {"j": "group 0", "t.j": "local 0", "out.j": "local 0"}
    text = "rule groups: a kernel has loops that are global 0 or group 0, not both"
    assert text in replace(own, choices=both).violations()


def test_vectors_of_neighbours_are_predicted_faster() -> None:
    tiling = Tiling.of(CHAIN, {"i": 4})
    base = {"i": "group 0", "t.k": "sequential"}
    rows = base | {"t.i": "local 0", "t.j": "sequential", "out.i": "local 0", "out.j": "sequential"}
    near = base | {"t.i": "sequential", "t.j": "local 0", "out.i": "sequential", "out.j": "local 0"}
    slow, fast = (predict_parallel(ParallelCandidate(tiling, x), POCL) for x in (rows, near))
    assert fast.seconds < slow.seconds
    assert [step.tensor for step in fast.steps] == ["t", "out"]


def test_chains_that_have_no_kernels() -> None:
    text = "t[i,j] += pad(a[i+r-1,k]) * b[k,j,r]; out[i,j] = relu(t)"
    chain = Chain.parse(text, dict.fromkeys("ijkr", 4), shapes=dict(a=(4, 4)))
    with pytest.raises(AmosError, match="read nothing beyond a tensor"):
        explore_chain(chain, machine="pocl", measure=MODEL)


@pytest.mark.long
def test_records_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "ocl.db")
    options = [*EXTENTS, "--executor", "model", "--trials", "2", "--records", file]
    unit = "opencl_mad_m8_f32"
    assert main(["explore", TEXT, unit, *options, "--fix", "tile.i=4"]) == 0
    printed = capsys.readouterr().out
    assert "i:4" in printed[printed.index("winner") :].splitlines()[0]
    assert f"t                {unit} j" in printed
    with Records(file, readonly=True) as records:
        first, second = records.all()
    assert (first.intrinsic, first.machine.name) == (unit, "pocl")
    assert rebuild_chain(first).products["t"].mapping.name == "j"
    assert rebuild_chain(second).tiling.tiles["i"] == 4
    for change, message in (
        ({"tiles": "z:4"}, "no iteration of out"),
        ({"map.i": "local 0"}, "describes no kernel of its chain: rule"),
        ({"target": "x"}, "target 'x'"),
        ({"target": "cuda"}, "target 'cuda'"),
        ({"other.t": "1"}, "'other'"),
        ({"intrinsic.out": unit, "mapping.out": "j"}, "unknown product 'out'"),
        ({"fragments.t.i": 9}, "expected 1 to 4 values of i at once, got 9"),
    ):
        broken = replace(first, schedule={**first.schedule, **change})
        with pytest.raises(RecordError, match=message):
            rebuild_chain(broken)
    with pytest.raises(ExportError, match="got one for an OpenCL device"):
        amos.export(first, "c")
    assert [path.name for path in amos.export(first, "opencl", tmp_path / "out")][0] == "kernel.cl"
    with pytest.raises(BuildError, match="expected a kernel for this CPU, got one for an OpenCL"):
        amos.build(explored(trials=1))
    assert main(["explore", TEXT, *options, "--fix", "map.t.j=group 0"]) == 2
    assert "rule" in capsys.readouterr().err


def test_the_space_of_a_device_has_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["space", TEXT, *EXTENTS, "--json", "--memory"]
    assert main([*options, "t=local"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["by_rule"]["local bytes"], report["conflict"]) == (1, [])
    assert main([*options, "t=private"]) == 0
    (text,) = json.loads(capsys.readouterr().out)["conflict"]
    assert text == "rule private bytes: tiles of t exceed the 512 private bytes of a work-item"


@pytest.mark.long
@pytest.mark.skipif(not HERE, reason="pyopencl is not here")
def test_a_search_is_measured_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "ocl.db")
    run = ["explore", TEXT, *EXTENTS, "--trials", "3", "--records", file, "--json"]
    assert main(run) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["verified_elements"] == 12 * 32
    assert first["measured_seconds"] > 0
    assert "measured on" in first["notes"][-1]
    assert main(run) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["replayed"], again["measured_seconds"]) == (3, first["measured_seconds"])
    assert main(["records", "replay", file, "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified_elements"] == 12 * 32
