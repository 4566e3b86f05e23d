"""The plan of a CPU kernel says what the kernel does."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import amos
from amos.codegen import scheduled as generator
from amos.codegen.amx import tiles
from amos.codegen.tir import cpu
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, Schedule
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace

#: Layers, the layout of their tensors, and the instruction.
CASES = [
    ("resnet18:C0", "NHWC", "vnni_dpbusd_m16k4_u8_s8_s32"),
    ("resnet18:C0", "NCHW", "vnni_dpbusd_m16k4_u8_s8_s32"),
    ("resnet18:C3", "NHWC", "vnni_dpbusd_m16k4_u8_s8_s32"),
    ("resnet18:C11", "NHWC", "vnni_dpbusd_m16k4_u8_s8_s32"),
    ("resnet18:C0", "NHWC", "amx_tdpbusd_m16n16k64_u8_s8_s32"),
    ("resnet18:C8", "NHWC", "amx_tdpbf16ps_m16n16k32_bf16_f32"),
]
DTYPES = {"vnni": "u8s8", "amx_tdpbusd": "u8s8", "amx_tdpbf16ps": "bf16"}


def _drawn(layer: str, layout: str, unit: str, count: int) -> list[Candidate]:
    """Candidates whose gathered sources are all copied where they are used."""
    kind = next(dtype for name, dtype in DTYPES.items() if unit.startswith(name))
    op = amos.operators.resolve(layer, dtype=kind, layout=layout)
    rng = np.random.default_rng([*layer.encode(), *unit.encode()])
    mappings = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="access")
    drawn: list[Candidate] = []
    while len(drawn) < count:
        mapping = mappings[int(rng.integers(len(mappings)))]
        space = ScheduleSpace(mapping)
        values = space.sample(rng).as_dict()
        places = [name for name in space.variables if name.startswith("stage.")]
        drawn.append(Candidate(mapping, Schedule.of(values | dict.fromkeys(places, "tile"))))
    return drawn


def _size(extent: Any, around: list[Any]) -> int:
    """The extent of a loop, the largest over all steps of the loops around it."""
    from tvm import sym, tirx

    used = tirx.analysis.undefined_vars(extent) if not isinstance(extent, int) else []
    loops = [x for x in around if any(x.loop_var.same_as(variable) for variable in used)]
    sizes = []
    for point in product(*(range(int(x.extent)) for x in loops)):
        analyzer = sym.Analyzer()
        for loop, at in zip(loops, point, strict=True):
            analyzer.bind(loop.loop_var, at)
        sizes.append(int(analyzer.simplify(extent)))
    return max(sizes)


@pytest.mark.parametrize(("layer", "layout", "unit"), CASES)
def test_a_copy_covers_what_tvm_finds_that_it_covers(
    layer: str, layout: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a range of steps and in a single one: the loops that TVM makes for the copy."""
    compared = []

    def stage(sch: Any, plan: CpuPlan, places: dict[str, Any]) -> None:
        shares = {"range": plan.steps // plan.ranges if places else 1, "step": 1}
        for op in plan.sources:
            if op.name not in plan.copies or not places:
                continue
            block = sch.get_sblock(f"stage_{op.name}")
            for place, loop in places.items():
                sch.compute_at(block, loop)
                loops = [sch.get(x) for x in sch.get_loops(block)]
                depth = next(n for n, x in enumerate(loops) if x.same_as(sch.get(loop))) + 1
                made = [_size(x.extent, loops[:depth]) for x in loops[depth:]]
                covered = [n for n in plan.covered(op, shares[place]) if n > 1]
                compared.append((str(plan.schedule), plan.limits.cores, place, covered, made))

    monkeypatch.setattr(cpu, "stage_blocks", stage)
    monkeypatch.setattr(tiles, "stage_blocks", stage)
    rng = np.random.default_rng(0)
    for candidate in _drawn(layer, layout, unit, 12):
        generator.scheduled(candidate, "native", CpuLimits(int(rng.integers(1, 40)), 1 << 20))
    wrong = [x for x in compared if x[3] != x[4]]
    assert compared and not wrong


def test_a_plan_depends_on_limits_alone() -> None:
    """The same limits, whoever asks, are the same plan in words, and the same code."""
    (candidate,) = _drawn(*CASES[0], 1)
    machine = amos.machines.get("xeon_6240")
    plan = amos.plan(candidate, "xeon_6240")
    assert str(plan) == str(amos.plan(candidate, machine))
    assert "18 cores, 1024 KiB of cache" in str(plan)
    texts = {
        str(generator.scheduled(candidate, "native", limits)[1].script())
        for limits in (CpuLimits.of(machine), CpuLimits(18, 1 << 20))
    }
    assert len(texts) == 1
