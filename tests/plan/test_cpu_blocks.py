"""Batches of plans, single plans and the model say of a kernel what its code does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir.program import Program
from amos.ir import Operator
from amos.machine import Costs, Level, Machine, Peak
from amos.machine.limits import CpuLimits
from amos.mapping import Mapping
from amos.perfmodel import evaluate
from amos.plan import Candidate, CpuSchedule, Schedule, Structure, batch_of
from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.cpu_copies import PLACES
from amos.plan.cpu_plan import CpuPlan, SourceCopy
from amos.schedule import ScheduleSpace
from tests.support.executed import Event, run_loops
from tests.support.models import LEVELS, machine_of

#: Instructions of every kind of CPU kernel, by the dtype of the operators that are mapped to them.
UNITS = {
    "u8s8": (
        "vnni_dpbusd_m16k4_u8_s8_s32",
        "vnni_dpbusd_lhs_m8k4_u8_s8_s32",
        "avxvnni_dpbusd_m8k4_u8_s8_s32",
        "avx2_pmaddwd_m8k2_u8_s8_s32",
        "vnni_dpbusd_dot_m1k32_u8_s8_s32",
        "amx_tdpbusd_m16n16k64_u8_s8_s32",
        "amx_tdpbusd_m7n16k64_u8_s8_s32",
    ),
    "f32": ("avx2_fmadd_m8_f32_f32", "avx512_fmadd_m16_f32_f32"),
    "bf16": ("avx512bf16_dpbf16ps_m16k2_bf16_f32", "amx_tdpbf16ps_m16n16k32_bf16_f32"),
    "max": ("avx2_vmaxps_acc_m8_f32_f32", "avx512_vmaxps_acc_m16_f32_f32"),
}
CASES = [(kind, unit) for kind, units in UNITS.items() for unit in units]


def _operators(kind: str) -> list[Operator]:
    """Small ones with windows over padding, tiles that do not fit, and long reductions."""
    if kind == "max":
        pool = amos.operators.max_pool2d
        return [pool(c=c, p=5, q=4, layout="NHWC", dtype="f32") for c in (8, 24)]
    convolutions = [
        amos.operators.conv2d(
            n=1, c=c, k=k, p=p, q=6, r=3, s=3, padding=1, stride=stride, layout=layout, dtype=kind
        )
        for c, k, p, stride, layout in ((8, 24, 5, 1, "NHWC"), (3, 16, 4, 2, "NCHW"))
    ]
    shapes = (dict(m=6, n=48, k=640), dict(m=2, n=16, k=4096))
    return [*convolutions, *(amos.operators.get("gemm", dtype=kind, **x) for x in shapes)]


@cache
def _mappings(kind: str, unit: str) -> list[Mapping]:
    spaces = (
        amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="access", commute=True)
        for op in _operators(kind)
    )
    return [mapping for space in spaces for mapping in space]


@dataclass(frozen=True)
class Drawn:
    """A candidate and its code.

    Attributes:
        candidate: of a small operator.
        limits: of the CPU.
        kind: of implementation.
    """

    candidate: Candidate
    limits: CpuLimits
    kind: str

    @cached_property
    def blocks(self) -> CpuBlocks:
        """Its plan as the last but one of a batch of different schedules."""
        mapping, rng = self.candidate.mapping, np.random.default_rng(0)
        space, structure = ScheduleSpace(mapping), Structure(mapping)
        batch = [space.sample(rng), self.candidate.schedule, space.sample(rng)]
        return CpuBlocks(structure, self.limits, batch_of(structure, batch), self.kind)

    @cached_property
    def program(self) -> Program:
        return self._scheduled[0]

    @property
    def plan(self) -> CpuPlan:
        return self.program.plan

    @cached_property
    def events(self) -> list[Event]:
        ((_, function),) = self._scheduled[1].functions.items()
        return run_loops(function)

    @property
    def calls(self) -> list[Event]:
        name = "multiply" if self.plan.tiled else self.program.main
        return [event for event in self.events if event.name == name]

    @cached_property
    def _scheduled(self) -> tuple[Program, Any]:
        return schedule_candidate(self.candidate, self.kind, self.limits)

    @property
    def machine(self) -> Machine:
        """A machine of these limits on which calls, and starting a region, take a second each."""
        peak = Peak(latency=1e-9, interval=1.0, generic=self.kind == "generic")
        cores = self.limits.cores
        levels = (Level("L1", self.limits.cache, 64.0, 32.0, units=cores), LEVELS[-1])
        machine = replace(machine_of(*levels, cores=cores), costs=Costs(), launch=1.0)
        return replace(machine, peaks={self.candidate.mapping.intrinsic.name: peak})


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Candidates of every kind of CPU kernel."""
    mappings = _mappings(*draw(st.sampled_from(CASES)))
    mapping = mappings[draw(st.integers(0, len(mappings) - 1))]
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    values = ScheduleSpace(mapping).sample(rng).as_dict()
    cores = draw(st.sampled_from((1, 2, 3, 8)))
    limits = CpuLimits(cores, draw(st.sampled_from((1 << 8, 1 << 11, 1 << 18))))
    kind = draw(st.sampled_from(("native", "native", "generic")))
    return Drawn(Candidate(mapping, Schedule.of(values)), limits, kind)


@settings(max_examples=15, deadline=None)
@given(drawn())
@pytest.mark.long
def test_the_code_does_what_the_plan_says(case: Drawn) -> None:
    plan, blocks = case.plan, case.blocks
    assert (plan.ranges, plan.steps) == (blocks.ranges[1], blocks.loops.steps[1])
    assert (plan.accumulators, plan.registers) == (blocks.accumulators[1], blocks.registers[1])
    assert plan.resident_source == blocks.resident_source[1]
    ranges = {tuple(x for x in call.steps if x.parallel) for call in case.calls}
    assert len(ranges) == plan.ranges
    for name, copy in plan.copies.items():
        _check_copy(case, name, copy)
    _check_fetches(case)
    if not plan.mapping.intrinsic.tile_registers or case.kind == "native":
        # The model has no other operands than those of tile registers.
        _check_model(case)


def _check_copy(case: Drawn, name: str, copy: SourceCopy) -> None:
    """Where it stands, what it covers, and how wide a step of it is."""
    block, batch = f"stage_{name}", case.blocks.copies[name]
    events = [x for x in case.events if x.name in (block, f"{block}_vectors")]
    assert copy.place == PLACES[batch.place[1]]
    assert copy.extents == tuple(batch.extents[:, 1])
    assert (copy.width, copy.shared) == (batch.width[1], batch.shared[1])
    # The loops around both the copy and the calls.
    both = {x.loop for x in case.calls[0].steps} & {x.loop for x in events[0].steps}
    elements: Counter[object] = Counter()
    for event in events:
        lanes = event.lanes
        if event.name.endswith("vectors"):
            assert copy.vectors is not None
            lanes = copy.vectors.elements * len([*copy.vectors.places()])
        elements[tuple(x for x in event.steps if x.loop in both)] += lanes
    times = {"ahead": 1, "range": case.plan.ranges, "step": case.plan.steps}
    assert len(elements) == times[copy.place]
    assert max(elements.values()) == prod(copy.extents) == batch.elements[1]
    assert any(x.name.endswith("vectors") for x in events) == (copy.vectors is not None)
    if copy.tail:
        assert {x.lanes for x in events} == {copy.width}


def _check_fetches(case: Drawn) -> None:
    """Each step of the reduction fetches the lines of one piece."""
    fetches, fetch = case.blocks.fetches, case.plan.fetch
    assert (fetches.source[1] >= 0) == (fetch is not None)
    events = [x for x in case.events if x.name == "fetch"]
    if fetch is None:
        assert not events
        return
    assert (fetch.tiles, fetch.elements) == (fetches.tiles[1], fetches.elements[1])
    line = 64 * 8 // amos.ir.dtype(fetch.op.kind).bits
    assert len(events) == len({x.steps for x in events}) * -(-fetch.elements // line)


def _check_model(case: Drawn) -> None:
    """The calls that run on one core, and the parallel regions."""
    structure, schedule = case.blocks.structure, case.candidate.schedule
    loops: dict[int, set[int]] = {}
    for step in (x for event in case.events for x in event.steps if x.parallel):
        loops.setdefault(step.loop, set()).add(step.number)
    predicted = evaluate(structure, case.machine, schedule.batch(structure))
    assert predicted.launch[0] == sum(len(numbers) > 1 for numbers in loops.values())
    single = replace(case.machine, cores=1)
    predicted = evaluate(structure, single, schedule.batch(structure))
    # Whole tiles beyond the end of a loop are no part of what a border is a share of.
    if case.plan.edges or not case.plan.padded or not case.plan.skips:
        assert predicted.compute[0] == pytest.approx(len(case.calls))


def test_every_decision_is_drawn() -> None:
    """What the tests above compare occurs among their candidates."""
    rng, seen = np.random.default_rng(0), set[str]()
    for case in CASES * 6:
        mappings = _mappings(*case)
        mapping = mappings[int(rng.integers(len(mappings)))]
        schedule = CpuSchedule.of(ScheduleSpace(mapping).sample(rng).as_dict())
        plan = CpuPlan(mapping, schedule, CpuLimits(2, 1 << 11))
        seen |= {copy.place for copy in plan.copies.values()}
        seen |= {"vectors" for copy in plan.copies.values() if copy.vectors}
        seen |= {"strided" for op in plan.sources if plan.form(op) == "strided"}
        flags = {
            "edges": plan.edges, "cut": [x for x in plan.edges if x.cut],
            "beyond": [x for x in plan.edges if x.beyond], "skips": plan.skips,
            "split": plan.split, "fetch": plan.fetch, "padded": plan.padded,
            "tiled": plan.tiled, "shared": any(x.shared for x in plan.copies.values()),
            "spread": any(x.spread is not None for x in plan.copies.values()),
        }  # fmt: skip
        seen |= {name for name, value in flags.items() if value}
    assert seen == {
        *PLACES, "vectors", "strided", "edges", "cut", "beyond", "skips", "split", "fetch",
        "padded", "tiled", "shared", "spread",
    }  # fmt: skip
