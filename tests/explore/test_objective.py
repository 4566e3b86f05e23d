"""Searches that minimize energy, energy times time, or time and memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import amos
from amos.cli.app import main
from amos.errors import BuildError, ExploreError, MachineError, UnknownNameError
from amos.explore.method import enumerate_candidates
from amos.explore.objective import Problem
from amos.machine.catalogue import with_timings
from tests.support.architects import BOARD, ENERGETIC, ENERGIES, UNIT, files
from tests.support.streams import OPERATORS

pytestmark = pytest.mark.usefixtures("one_guard")
TARGET = with_timings(ENERGETIC, [UNIT])


@pytest.mark.usefixtures("short_search")
@pytest.mark.parametrize("objective", ["time", "energy", "edp"])
def test_the_best_is_that_of_the_objective(objective: str) -> None:
    result = amos.explore(
        OPERATORS["gemm"],
        UNIT,
        machine=TARGET,
        trials=12,
        search=amos.SearchOptions(objective=objective),
        measure=amos.MeasureOptions(executor="model"),
        progress=False,
    )
    joules = [trial.joules or 0.0 for trial in result.trials]
    assert min(joules) > 0
    seconds = [trial.seconds for trial in result.trials]
    values = {
        "time": seconds,
        "energy": joules,
        "edp": [a * b for a, b in zip(seconds, joules, strict=True)],
    }[objective]
    assert result.trials.index(result.best) == values.index(min(values))
    report = result.to_dict()
    assert report["energy_joules"] == pytest.approx(sum(row["joules"] for row in report["energy"]))


def test_energies_that_nobody_says() -> None:
    search = amos.SearchOptions(objective="energy")
    silent = with_timings(BOARD, [UNIT])
    with pytest.raises(MachineError, match="energy: expected operation_pj, a scratchpad level"):
        amos.explore(OPERATORS["gemm"], UNIT, machine=silent, search=search, progress=False)
    with pytest.raises(UnknownNameError, match="objective 'speed'"):
        amos.SearchOptions(objective="speed")


@pytest.mark.usefixtures("short_search")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, unit = files(tmp_path, ENERGIES)
    command = ["explore", "gemm", "--extent", "m=32", "--extent", "n=64", "--extent", "k=16"]
    command += ["--dtype", "s8", "--intrinsic", unit, "--machine", board, "--trials", "2"]
    assert main([*command, "--objective", "energy", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["objective"], report["simulated"]) == ("energy", True)
    assert report["energy_joules"] > 32 * 64 * 16 * 0.5e-12
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "energy " in printed
    assert "uJ (a test)" in printed


def test_time_and_memory() -> None:
    result = amos.explore(
        amos.operators.resolve("resnet18:C11", dtype="u8s8"),
        "vnni_dpbusd_m16k4_u8_s8_s32",
        machine="xeon_6240",
        trials=16,
        search=amos.SearchOptions(objective="time,memory"),
        progress=False,
    )
    points = [(trial.seconds, result.memory_bytes(trial)) for trial in result.trials]
    front = [(trial.seconds, result.memory_bytes(trial)) for trial in result.front]
    best = {
        (a, b)
        for a, b in points
        if not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points)
    }
    assert front == sorted(best)
    assert len(front) > 1
    assert result.best.seconds == result.front[0].seconds
    assert [row["memory_bytes"] for row in result.to_dict()["front"]] == [y for _, y in front]
    assert "KiB of workspace" in amos.viz.text(result)
    # The workspace weighs nothing for eight trials, then much.
    sizes = [size for _, size in points]
    assert sum(sizes[8:]) < sum(sizes[:8])


@pytest.mark.parametrize(
    ("text", "extents"),
    [
        ("out[i,j] += a[i,k] * b[k,j]", dict(i=6, j=16, k=8)),
        pytest.param(
            "out[p,j] += a[p+r,c] * b[j,c,r]",
            dict(p=3, j=16, c=2, r=2),
            marks=pytest.mark.long,
        ),
    ],
)
def test_least_memory_of_small_spaces(text: str, extents: dict[str, int]) -> None:
    """A front ends within 5 % of the least that any candidate needs with its tensors (Lift)."""
    unit = "vnni_dpbusd_m16k4_u8_s8_s32"
    kinds = dict(a="uint8", b="int8", out="int32")
    op = amos.Operator.parse(text, extents=extents, dtypes=kinds, name="small")
    machine = amos.machines.get("xeon_6240", [amos.intrinsics.get(unit)])
    problem = Problem(list(amos.enumerate_mappings(op, unit)), machine)
    sizes = {candidate.memory_on(machine) for candidate in enumerate_candidates(problem)}
    result = amos.explore(
        op,
        unit,
        machine=machine,
        trials=32,
        measure=amos.MeasureOptions(executor="model"),
        search=amos.SearchOptions(objective="time,memory"),
    )
    tensors = sum(tensor.nbytes for tensor in (*op.inputs, op.output.tensor))
    least = result.memory_bytes(result.front[-1])
    assert 0 < min(sizes) < max(sizes)
    assert tensors + least <= 1.05 * (tensors + min(sizes))


def test_memory_that_nobody_says() -> None:
    search = amos.SearchOptions(objective="time,memory")
    with pytest.raises(BuildError, match="'stream': no workspace is computed"):
        amos.explore(OPERATORS["gemm"], UNIT, machine=TARGET, search=search, progress=False)
    with pytest.raises(ExploreError, match="'optimal': expected one objective"):
        amos.explore(
            amos.operators.resolve("resnet18:C5", dtype="u8s8"),
            "vnni_dpbusd_m16k4_u8_s8_s32",
            machine="xeon_6240",
            method="optimal",
            search=search,
            progress=False,
        )
