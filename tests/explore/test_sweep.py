"""One instruction in many sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos import viz
from amos.cli.app import main
from amos.errors import BuildError, ExploreError, MachineError, RecordError, UnknownNameError
from amos.explore.sweep import Point, machine_of, resize, sweep
from amos.intrinsics import Memory, Timing
from amos.machine import Peak
from amos.machine.catalogue import with_timings
from amos.schedule import ScheduleSpace
from amos.streams.plan import StreamPlan
from tests.support.architects import BOARD, UNIT, files
from tests.support.streams import OPERATORS, PYNQ, VTA

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

GEMM = [OPERATORS["gemm"]]


def _points(axes: dict[str, Any]) -> list[Any]:
    return list(sweep(VTA, PYNQ, axes, GEMM, trials=2))


def test_sizes_of_a_unit_and_its_machine() -> None:
    """A unit twice as wide, at the same clock, makes fewer calls and is less full."""
    points = _points({"extents.i2": [16, 32], "machine.clock": [1e8]})
    assert [p.settings for p in points] == [
        {"extents.i2": 16, "machine.clock": 1e8},
        {"extents.i2": 32, "machine.clock": 1e8},
    ]
    for width, point in zip((16, 32), points, strict=True):
        calls = 21 * -(-40 // width) * 5
        assert point.mappings == 1
        assert point.utilization == pytest.approx(21 * 40 * 70 / (calls * width * 16))
        assert point.simulated * 1e8 >= calls
        assert point.share == pytest.approx(point.utilization * calls / (point.simulated * 1e8))


@pytest.mark.long
def test_mappings_that_nothing_of_fits_are_left_out() -> None:
    """Three accumulators of one row read three fragments, where a window has holes more."""
    small, none = sweep(VTA, PYNQ, {"memory.inp.capacity": [32, 16]}, [OPERATORS["conv"]], trials=2)
    assert 0 < small.infeasible < small.mappings == 49
    assert small.simulated is not None
    assert none.simulated is None
    assert none.reason.startswith("none of 49 mappings has a schedule; ")


@pytest.mark.long
def test_a_sweep_goes_on_from_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, axes = tmp_path / "points.jsonl", {"machine.clock": [1e8, 2e8]}
    first = list(sweep(VTA, PYNQ, axes, GEMM, trials=2, points=file))
    whole = file.read_text()
    assert whole.count("\n") == 2
    file.write_text(whole[:-20])  # as a sweep that was killed leaves it
    searched = []

    def count(*arguments: Any, **options: Any) -> Any:
        searched.append(options)
        return amos.explore(*arguments, **options)

    monkeypatch.setattr("amos.explore.sweep.explore", count)
    assert list(sweep(VTA, PYNQ, axes, GEMM, trials=2, points=file)) == first
    assert len(searched) == 1
    assert file.read_text() == whole
    assert list(sweep(VTA, PYNQ, axes, GEMM, trials=2, points=file)) == first
    assert len(searched) == 1
    list(sweep(VTA, PYNQ, {"machine.clock": [1e8]}, GEMM, trials=3, points=file))
    assert len(searched) == 2
    file.write_text(whole[:20])  # killed in the first line
    assert next(sweep(VTA, PYNQ, axes, GEMM, trials=2, points=file)) == first[0]
    assert file.read_text() == whole[: whole.index("\n") + 1]
    foreign = json.dumps({"digest": json.loads(file.read_text())["digest"], "point": {}}) + "\n"
    for text in ("{}\n", foreign, "a file of something else", "[" * 100_000 + "\n"):
        file.write_text(text)
        with pytest.raises(RecordError, match="expected a line of JSON for each point"):
            list(sweep(VTA, PYNQ, axes, GEMM, trials=2, points=file))
        assert file.read_text() == text


@pytest.mark.long
def test_energies_are_paths() -> None:
    dear, cheap, silent = _points({"machine.DRAM.read_pj_per_byte": [200.0, 100.0, 0]})
    assert dear.energy - cheap.energy == pytest.approx(cheap.energy - silent.energy)
    axes = {"machine.DRAM.read_pj_per_byte": [1.0]}
    (point,) = sweep(UNIT, with_timings(BOARD, [UNIT]), axes, GEMM, trials=1)
    assert point.simulated is not None
    assert point.energy is None


def test_a_picture_has_a_row_for_each_quantity() -> None:
    points = _points({"memory.acc.capacity": [65536, 131072], "dtypes.Src1": ["s8", "u8"]})
    figure = viz.sizes(points)
    titles = [figure.layout[f"yaxis{n}"].title.text for n in ("", 2, 3, 4, 5)]
    assert titles == ["unit used, %", "mappings", "predicted ms", "simulated ms", "energy, uJ"]
    times = figure.data[3]
    assert times.x[0] == "acc.capacity 65536<br>dtypes.Src1 s8"
    assert times.y[0] == points[0].simulated * 1e3
    assert times.y[1] is None
    with pytest.raises(ExploreError, match="no size to draw: .*uint8"):
        viz.sizes([point for point in points if point.reason])


def test_a_point_that_cannot_be_says_why() -> None:
    (point,) = _points({"dtypes.Src1": ["u8"]})
    assert point.simulated is None
    assert "`Src1` is uint8" in point.reason
    (point,) = _points({"extents.i2": [8]})
    assert "VTA encoding: its factors take 68 bits, but 64 are there" in point.reason
    small, fits = _points({"memory.wgt.capacity": [100, 256 << 10]})
    assert small.reason.endswith("capacity: expected at least one fragment, 256 bytes, got 100")
    assert fits.simulated > 0
    (point,) = _points({"machine.stream.latency": [-1]})
    assert point.reason.startswith("machine vta_pynq: stream: latency: expected 0 or more")


def test_strides_of_a_statement_follow_the_size_unless_they_are_its_own() -> None:
    rows = Memory.parse("global.Dst[addr_c + i1 * 64 + i2] = acc.Dst[i1, i2]", capacity=128 << 10)
    own = replace(VTA, memory=(*VTA.memory[:2], rows))
    sized, _ = resize(own, PYNQ, {"extents.i2": 8}, 0)
    assert [m.strides for m in sized.memory] == [("16", "1"), ("16", "1"), ("64", "1")]
    sized, _ = resize(own, PYNQ, {"extents.r1": 32, "memory.acc.capacity": 4096}, 1)
    assert [m.strides for m in sized.memory] == [("32", "1"), ("32", "1"), ("64", "1")]
    assert sized.memory[2].capacity == 4096


def test_paths_and_values_are_checked() -> None:
    with pytest.raises(UnknownNameError, match=r"memory\.cache\.capacity': known are Dst, Src1"):
        _points({"memory.cache.capacity": [1]})
    with pytest.raises(UnknownNameError, match="did you mean 'latency'"):
        _points({"machine.stream.latencyy": [1]})
    with pytest.raises(ExploreError, match="at most 4096 points, got 5000"):
        _points({"machine.clock": range(1, 5001)})


def test_the_rate_of_the_instruction() -> None:
    """In cycles, also where the machine has the rate and not the description."""
    xeon = amos.machines.get("xeon_4110")
    extents = dict(m=64, n=64, k=64)
    gemm = [amos.operators.resolve("gemm", extents=extents, dtype="u8s8")]
    unit = replace(amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"), timing=())
    xeon = replace(xeon, peaks={**xeon.peaks, unit.name: Peak(4e-9, 1e-9, "a book")})
    for variant in (unit, replace(unit, timing=(Timing(1.0, "a book", machine="xeon_4110"),))):
        sized, there = resize(variant, xeon, {"timing.interval": 8})
        assert there.peak(sized.name).interval == pytest.approx(8 / xeon.clock)
        assert sized.timing[0].interval == 8
        fast, slow = sweep(variant, xeon, {"timing.interval": [4, 400]}, gemm, trials=2)
        assert fast.predicted is not None
        assert slow.predicted is not None
        assert slow.predicted > 10 * fast.predicted
    (nothing,) = sweep(unit, xeon, {"timing.interval": [0]}, gemm, trials=2)
    assert "expected cycles above zero" in nothing.reason


@pytest.mark.parametrize(
    "path", ["timing.intervall", "timing.x.interval", "requires.x", "machine.features.x"]
)
def test_lists_of_what_has_no_name(path: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown value to set"):
        _points({path: [4]})


def test_levels_of_the_machine_go_by_their_names() -> None:
    slow, fast = _points({"machine.levels.DRAM.read_bandwidth": [1e8, 0.8e9]})
    assert slow.simulated > 2 * fast.simulated
    assert (
        resize(VTA, PYNQ, {"machine.DRAM.read_bandwidth": 1e8})[1].levels[-1].read_bandwidth == 1e8
    )
    with pytest.raises(UnknownNameError, match="known are DRAM, sram"):
        _points({"machine.levels.cache.read_bandwidth": [1e8]})


def test_tiles_of_all_buffers_fit_the_memory_that_these_are_in() -> None:
    (mapping,) = amos.enumerate_mappings(GEMM[0], VTA)
    rng = np.random.default_rng(0)
    big = max(
        (ScheduleSpace(mapping, PYNQ).sample(rng) for _ in range(20)),
        key=_bytes,
    )
    unit, small = resize(VTA, PYNQ, {"machine.sram": 4096})
    (sized,) = amos.enumerate_mappings(GEMM[0], unit)
    drawn = [ScheduleSpace(sized, small).sample(rng) for _ in range(20)]
    assert 2048 < max(_bytes(s) for s in drawn) <= 4096
    assert _bytes(big) > 4096
    with pytest.raises(BuildError, match=r"and .* in buffer vta_pynq\.sram, which has 4096 bytes"):
        StreamPlan.of(sized, big, small)
    with pytest.raises(MachineError, match=r"the tiles in buffer vta_pynq\.sram exceed it"):
        amos.predict(sized, small, big)


def _bytes(schedule: Any) -> int:
    """Bytes of all tiles that have room at once, for a product of rows and columns."""
    tile, steps, buffers = schedule.tile, schedule.steps, schedule.buffers
    rows, columns, sums = tile["i1.tile"], tile["i2.tile"], steps["r1.tile"]
    return int(
        buffers["Src1"] * rows * sums * 16
        + buffers["Src2"] * columns * sums * 256
        + buffers["Dst"] * rows * columns * 64
    )


def test_buffers_that_grow_take_their_memory_with_them() -> None:
    def inner(settings: dict[str, Any]) -> int:
        return resize(VTA, PYNQ, settings)[1].levels[0].capacity

    assert inner({"memory.acc.capacity": 256 << 10}) == PYNQ.levels[0].capacity + (128 << 10)
    assert inner({"memory.acc.capacity": 64 << 10}) == PYNQ.levels[0].capacity
    assert inner({"memory.acc.capacity": 256 << 10, "machine.sram": 1 << 16}) == 1 << 16


def test_the_machine_that_has_a_unit() -> None:
    gemmini = amos.intrinsics.get("gemmini_matmul_m16n16k16_s8_s32")
    own = replace(gemmini, name="acme", timing=(Timing(8, "test"),))
    units = [VTA, gemmini, own]
    assert [machine_of(unit).name for unit in units] == ["vta_pynq", "gemmini", "gemmini"]
    assert machine_of(own).peak("acme").interval == 8e-9
    for unit, where in (
        (amos.intrinsics.get("wmma_m16n16k16_f16_f32"), "a100, h200"),
        (replace(gemmini, name="acme", timing=()), "no described machine"),
    ):
        with pytest.raises(ExploreError, match=f"expected a machine; it has a rate on {where}"):
            machine_of(unit)


@pytest.mark.long
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", VTA.name, "out[i,j] += a[i,k] * weight[j,k]"]
    command += [x for n in ("i=8", "j=32", "k=32") for x in ("--extent", n)]
    command += ["--trials", "1", "--set", "memory.acc.capacity=64k,128k"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [p["settings"]["memory.acc.capacity"] for p in report] == [65536, 131072]
    assert all(p["simulated"] > 0 and p["mappings"] == 1 for p in report)
    assert main([*command[:-2], "--set", "machine.sram=4k", "--machine", "vta_pynq"]) == 0
    assert f"{VTA.name} on vta_pynq" in capsys.readouterr().out
    assert main([*command[:-2], "--set", "extents.i2"]) == 2
    assert "expected PATH=VALUES" in capsys.readouterr().err
    twice = ["--set", "memory.inp.double=true", "--set", "memory.inp.double=false"]
    assert main([*command, *twice]) == 2
    assert "memory.inp.double: expected all values in one" in capsys.readouterr().err
    assert main([*command[:-2], "--set", "memory.inp.double=true,false", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [p["settings"]["memory.inp.double"] for p in report] == [True, False]
    assert main([*command[:-2], "--set", "memory.acc.capacity=8,16"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none of 2 points can be had" in line
    assert "expected at least one fragment, 64 bytes, got 8" in line


@pytest.mark.long
def test_points_are_searched_in_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the values, networks among them; the same as one by one."""
    onnx = pytest.importorskip("onnx")
    from tests.network.quantized_models import Model, convolution

    small = Model(0)
    onnx.save(small.model(convolution(small)), tmp_path / "small.onnx")
    board, unit = files(tmp_path)
    gemm = ["out[i,j] += a[i,k] * weight[j,k]", "--dtype", "s8"]
    gemm += [x for n in ("i=8", "j=32", "k=32") for x in ("--extent", n)]
    command = ["sweep", unit, str(tmp_path / "small.onnx"), *gemm, "--machine", board, "--json"]
    command += ["--set", "timing.interval=i1,i1*2,i1*4", "--trials", "1"]
    assert main(command) == 0
    points = json.loads(capsys.readouterr().out)
    assert [p["settings"]["timing.interval"] for p in points[::2]] == ["i1", "i1*2", "i1*4"]
    assert [p["operator"] for p in points] == [points[0]["operator"], "out"] * 3
    assert all(points[n + 2]["predicted"] > points[n]["predicted"] for n in range(4))
    monkeypatch.setattr("amos.explore.sweep.map_in_processes", map)
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == points
    (tmp_path / "none.onnx").write_text("none")
    assert main(["sweep", unit, str(tmp_path / "none.onnx"), "--machine", board]) == 2
    assert "none.onnx" in capsys.readouterr().err


def test_sliders_move_among_what_was_swept(browser: Any) -> None:
    axes = {"extents.i2": 16, "machine.clock": 1e8}
    points = [
        Point(axes, "<b>gemm</b>", mappings=1, predicted=2e-3),
        Point(axes | {"machine.clock": 2e8}, "<b>gemm</b>", reason="too fast"),
    ]
    page = browser.new_page()
    page.set_content(viz.sliders(points))
    row = page.locator("#amos-sizes tr").nth(1)
    assert row.inner_text().split("\t")[:5] == ["<b>gemm</b>", "1", "0", "-", "2.0000"]
    page.locator("input").nth(1).fill("1")
    assert row.inner_text().split("\t")[-1] == "too fast"
    assert page.locator("output").all_inner_texts() == ["16", "200000000"]
