"""What an exploration says of its times: a busy machine, loops in place of an instruction."""

from __future__ import annotations

import html
import json
import platform
from dataclasses import replace
from typing import Any

import pytest

import amos
from amos import viz
from amos.explore import Exploration
from amos.ir import Operator
from amos.records import Measurement
from tests.support.exploring import grouped

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=32, c=16, r=3, s=3),
    shapes=dict(image=(1, 14, 14, 16)),
)


def _model(op: Operator = CONV, **options: Any) -> Exploration:
    return amos.explore(op, VNNI, **grouped({"machine": "xeon_6240"} | options))


def test_times_of_a_busy_machine_say_so() -> None:
    """Others use the cores, or every candidate is far slower than predicted."""
    result = _model(trials=4)
    assert result.disturbance == ""

    def timed(factor: float, load: float = 0.0, count: int = 4) -> Exploration:
        trials = tuple(
            replace(t, measurement=Measurement((t.predicted * factor, t.predicted * factor * 1.5)))
            for t in result.trials[:count]
        )
        return replace(
            result, trials=trials, machine=replace(result.machine, name="host"), load=load
        )

    quiet = timed(1.2, load=result.machine.cores)
    assert quiet.disturbance == ""
    busy = timed(1.2, load=result.machine.cores + 1.0)
    least = busy.best.measurement.least_seconds  # type: ignore[union-attr]
    assert least == pytest.approx(busy.best.seconds / 1.25)
    assert f"(load {result.machine.cores + 1.0:.1f})" in busy.disturbance
    assert f"least time {least * 1e3:.4f} ms" in busy.disturbance
    assert busy.disturbance in str(busy)
    assert busy.to_dict()["least_seconds"] == least
    assert "took at least 25 times as long as predicted" in timed(20.0).disturbance
    # Of few candidates the model may be wrong.
    assert timed(20.0, count=2).disturbance == ""
    # An OpenCL device that is this CPU has the same cores, a GPU has its own.
    pocl, mali = (amos.machines.get(name) for name in ("pocl", "mali_g76"))
    assert "load 9.0" in replace(timed(1.2, load=9.0), machine=pocl)._crowded
    assert replace(timed(1.2, load=9e3), machine=mali)._crowded == ""


def test_a_busy_machine_ranks_least_times() -> None:
    """Of medians the one that others disturbed least would win."""
    result = _model(trials=2)
    times = (2e-3, 2e-3, 2e-3), (1e-3, 5e-3, 5e-3)
    trials = [
        replace(trial, measurement=Measurement(each))
        for trial, each in zip(result.trials, times, strict=True)
    ]
    host = replace(result, trials=tuple(trials), machine=replace(result.machine, name="host"))
    assert host.best.number == 0
    assert replace(host, load=host.machine.cores + 1.0).best.number == 1


def _measured(unit: str, implementation: str, features: tuple[str, ...]) -> Exploration:
    """A result whose best kernel was made that way, on a machine that has those features."""
    result = _model(GEMM, trials=1)
    measured = Measurement((1e-5,), 192, 0.0, implementation)
    trials = tuple(replace(trial, measurement=measured) for trial in result.trials)
    machine = replace(result.machine, features=features)
    return replace(result, trials=trials, machine=machine, intrinsic=amos.intrinsics.get(unit))


#: Needs nothing of a CPU, and has nothing that LLVM could emit.
LOOPS = "virtual_axpy_m16_f16_f32"


@pytest.mark.parametrize(
    ("unit", "features", "why"),
    [
        (VNNI, ("avx2",), "this CPU lacks avx512_vnni"),
        (VNNI, ("avx2", "avx512_vnni"), "as asked"),
        (LOOPS, (), f"{LOOPS} has no LLVM implementation for this CPU"),
    ],
)
def test_a_result_says_that_loops_stand_for_the_instruction(
    unit: str, features: tuple[str, ...], why: str
) -> None:
    """In text and notebooks, with its reason, and without a share of a peak that loops lack."""
    if "as asked" in why and platform.machine() != "x86_64":
        pytest.skip("an instruction of x86-64")
    result = _measured(unit, "generic", features)
    note = f"compiled through the intrinsic's generic implementation: {why}"
    assert result.note == note
    assert note in str(result)
    assert note in viz.text(result)
    assert html.escape(note) in viz.html(result)
    assert (result.peak_tops, result.peak_fraction) == (None, None)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["peak_fraction"] is None
    for rendered in (result.speed, viz.text(result), viz.html(result)):
        assert "Top/s" in rendered
        assert " peak" not in rendered


def test_a_result_with_the_instruction_has_no_note() -> None:
    result = _measured(VNNI, "native", ("avx512_vnni",))
    assert result.note == "" == result.emulated
    assert "generic" not in str(result)
    assert "% of the " in viz.text(result)
