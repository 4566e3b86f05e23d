"""The text of one kernel, from its plan.

Fragments are vectors, which compilers hold in registers: the intrinsic is a function of
them. Loops that contain a barrier run alike in every work-item, and what lies beyond the
operator's loops is read as zero and not stored, so that every schedule synchronizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from amos.codegen.device.access import STEP, ResultPoint, locate_result
from amos.codegen.device.arithmetic import SUM, arithmetic_helpers, write_result, write_wide
from amos.codegen.device.kernel import DeviceText
from amos.codegen.device.launch import describe_launch
from amos.codegen.device.reductions import count_elements, list_reductions
from amos.codegen.device.text import (
    WIDE_OPENCL,
    StepSource,
    block,
    fragment_at,
    multiply_step,
    over_fragments,
    result_at,
    unroll,
)
from amos.ir import Result
from amos.ir.index_text import Value, variable
from amos.opencl.codegen.borders import list_read_conditions, list_store_conditions, loop_steps
from amos.opencl.codegen.copies import (
    copy_local,
    declare_local,
    load_fragment,
    number_groups,
    split_lanes,
)
from amos.opencl.codegen.reductions import (
    combine_element,
    combine_part,
    reduction_helpers,
    start_part,
)
from amos.opencl.codegen.stages import declare_steps, loop_over_steps, stage_step, step_axes
from amos.opencl.codegen.text import OPENCL, OWN, loose_vectors, vector_at, vector_type, write_call
from amos.opencl.plan import TYPES, OpenClPlan

#: Function of a call; steps that are unrolled of one loop, and at most of several.
_CALL, _UNROLLED, _MOST_UNROLLED = "call", 4, 32


class KernelText(DeviceText[OpenClPlan]):
    """The parts of a ``kernel.cl``."""

    own = OWN

    @cached_property
    def source(self) -> str:
        """The whole file."""
        p, body = self._spelled_plan, self._body()
        return "\n".join(
            [
                self._comment(p.machine.name, self._launch, "Tensors are row-major."),
                *loose_vectors(body),
                *write_call(_CALL, self.plan.mapping.intrinsic),
                *self._helpers(),
                f"__kernel __attribute__((reqd_work_group_size({p.items}, 1, 1)))",
                f"void {self.function}({self.parameters}) {{",
                *block(body),
                "}",
                *self._extra_functions("__kernel void", OPENCL),
                "",
            ]
        )

    @property
    def _launch(self) -> str:
        p = self.plan
        return (
            f"{p.groups} groups of {p.items} work-items, {p.local_bytes} bytes of local memory, "
            f"{p.accumulators} accumulators"
        )

    def _parameter(self, qualifier: str, kind: str, name: str) -> str:
        return f"__global {qualifier}{TYPES[kind]} *restrict {name}"

    def _helpers(self) -> list[str]:
        """Write functions of epilogues and prologues, in which no compiler fuses operations."""
        p = self._spelled_plan
        helpers = arithmetic_helpers(p.mapping.operator, p.accumulator, OPENCL)
        helpers += reduction_helpers(p.mapping.operator, p.accumulator)
        contract = "#pragma OPENCL FP_CONTRACT"
        return [f"{contract} OFF", helpers, f"{contract} ON", ""] if helpers else []

    def _body(self) -> list[str]:
        p = self._spelled_plan
        staged = [source for source in p.sources if p.is_local(source)]
        barrier = ["barrier(CLK_LOCAL_MEM_FENCE);"] if staged else []
        kind = vector_type(p.accumulator, p.fragments[-1].elements)
        copies = [line for source in staged for line in copy_local(p, source)]
        accumulators = [
            f"{kind} c[{p.accumulators}];",
            *unroll("e", p.accumulators, [f"c[e] = ({kind})(0);"]),
            "",
        ]
        stage = [*declare_steps(p), *copies, *barrier]
        if p.sequence > 1:
            head = f"for (int stage = 0; stage < {p.sequence}; ++stage) {{"
            stage = [*accumulators, head, *block([*stage, *self._multiply(), *barrier]), "}"]
        else:
            # No accumulator is alive at the only barrier.
            stage += [*accumulators, *self._multiply()]
        return [
            "const int group = get_group_id(0), item = get_local_id(0);",
            *number_groups(p, self.grid or p.grid_tasks),
            *(declare_local(p, source) for source in staged),
            *stage,
            "",
            *self._output(),
        ]

    def _multiply(self) -> list[str]:
        """Write one stage; work-items that read no border have no conditions."""
        p = self._spelled_plan
        direct = [source for source in p.sources if not p.is_local(source)]
        conditions = [c for source in direct for c in list_read_conditions(p, source)]
        if conditions:
            head = f"if ({' & '.join(dict.fromkeys(conditions))}) {{"
            interior, border = self._steps(interior=True), self._steps()
            return [head, *block(interior), "} else {", *block(border), "}"]
        if p.is_serial and p.items > 1:
            # PoCL would compute each step of a loop for all work-items, and store accumulators in
            # between, unless the loop is under a condition that depends on the work-item.
            return ["if (item >= 0) {", *block(self._steps()), "}"]
        return self._steps()

    def _steps(self, *, interior: bool = False) -> list[str]:
        """Load the work-item's fragments of each step, multiply all pairs."""
        p = self._spelled_plan
        tile, whole = p.schedule.tile, p.sources[p.whole_source]
        tiled = [x.name for x in p.spatial if tile[x.name] > 1]
        (single,) = [x for x in p.sources if x is not whole]
        own = {x.staged.name: [n for n in tiled if n in x.loops] for x in p.sources}
        axes = step_axes(p)
        local = loop_steps(p) | {axis.name: variable(axis.name, axis.extent) for axis in axes}
        local[STEP] = stage_step(p, local)
        slots = {
            whole.staged.name: f"a[{fragment_at(tile, own[whole.staged.name])}]",
            single.staged.name: "b",
        }
        place = f"c[{fragment_at(tile, tiled)}]"
        arguments = ", ".join([slots[x.staged.name] for x in p.sources] + [place])
        whole_step, single_step = (
            StepSource(
                f"{vector_type(source.dtype, source.elements)} {slots[source.staged.name][0]}",
                own[source.staged.name],
                load_fragment(p, source, slots[source.staged.name], local, interior=interior),
            )
            for source in (whole, single)
        )
        call = f"{place} = {_CALL}({arguments});"
        step = multiply_step(tile, tiled, whole_step, single_step, call)
        if not axes:
            return ["{", *block(step), "}"]
        whole_steps = 1
        for axis in axes:
            whole_steps *= axis.extent
            head = loop_over_steps(p, axis, axis.name)
            pragma = []
            if len(axes) > 1 and whole_steps <= _MOST_UNROLLED:
                # What depends on the place within the loop becomes constant.
                pragma = ["#pragma unroll"]
            elif axis is axes[0]:
                pragma = [f"#pragma unroll {min(axis.extent, _UNROLLED)}"]
            step = [*pragma, head, *block(step), "}"]
        return step

    def _output(self) -> list[str]:
        """Store each live element of each accumulator, those of no border as vectors."""
        p = self._spelled_plan
        op, last, tile = p.mapping.operator, p.fragments[-1], p.schedule.tile
        tiled = [x.name for x in p.spatial if tile[x.name] > 1]
        place = f"c[{fragment_at(tile, tiled)}]"
        is_plain = not (op.epilogues or op.further or op.redirected)
        if not (is_plain and 1 < last.width == last.elements):
            return over_fragments(tile, tiled, self._store_elements(place))
        first, end = (
            locate_result(p, last.staged.fragment, loop_steps(p), split_lanes(last, e, 1))
            for e in (0, last.elements - 1)
        )
        where = f"{op.stored.tensor.name} + {result_at(op.stored, first.at, WIDE_OPENCL)}"
        vector = vector_type(p.accumulator, last.elements)
        whole = [f"{vector_at(vector, where, '__global')} = {place};"]
        interior, conditions = over_fragments(tile, tiled, whole), list_store_conditions(p)
        if not conditions:
            return interior
        cut = ["} else {", *block(self._store_elements(place))] if last.is_cut else []
        at_border = [f"if ({end.condition}) {{", *block(whole), *cut, "}"]
        head = f"if ({' & '.join(conditions)}) {{"
        border = over_fragments(tile, tiled, at_border)
        return [head, *block(interior), "} else {", *block(border), "}"]

    def _store_elements(self, place: str) -> list[str]:
        """Store the live elements of an accumulator one by one."""
        p, last = self._spelled_plan, self._spelled_plan.fragments[-1]
        lanes = split_lanes(last, variable("e", last.elements), 1)
        point = locate_result(p, last.staged.fragment, loop_steps(p), lanes)
        meeting = self._meeting()
        lines = _when(point.condition, self._elements(point.at, meeting))
        kind = vector_type(p.accumulator, last.elements)
        read = f"((const {TYPES[p.accumulator]} *)&leaving)[e]" if lanes else "leaving"
        named = [f"const {TYPES[p.accumulator]} {SUM} = {read};", *lines]
        named = unroll("e", last.elements, named) if lanes else named
        starts = [start_part(x, p.accumulator, name) for x, name in meeting.items()]
        first = self._locate_lane(0)  # If it is no result, neither is another.
        ends = [
            combine_element(x, p.accumulator, result_at(x.store, first.at, WIDE_OPENCL), name)
            for x, name in meeting.items()
        ]
        leaving = f"const {kind} leaving = {place};"
        return ["{", *block([leaving, *starts, *named, *_when(first.condition, ends)]), "}"]

    def _locate_lane(self, lane: int) -> ResultPoint:
        p, last = self._spelled_plan, self._spelled_plan.fragments[-1]
        return locate_result(p, last.staged.fragment, loop_steps(p), split_lanes(last, lane, 1))

    def _meeting(self) -> dict[Result, str]:
        """Return reductions in which all elements of a vector meet, with names of their parts."""
        count = self._spelled_plan.fragments[-1].elements
        points = [self._locate_lane(lane).at for lane in range(count)] if count > 1 else []
        meeting: dict[Result, str] = {}
        for number, result in enumerate(list_reductions(self._spelled_plan.mapping.operator)):
            if points and len({result_at(result.store, at, WIDE_OPENCL) for at in points}) == 1:
                meeting[result] = f"part_{number}"
        return meeting

    def _elements(self, at: dict[str, Value], meeting: Mapping[Result, str]) -> list[str]:
        """Store the results of an accumulator's element, or combine them with others."""
        p = self._spelled_plan
        op, kind = p.mapping.operator, p.accumulator
        value = SUM if op.epilogue is None else write_result(OPENCL, op.epilogue, kind, at)
        lines = [f"{op.stored.tensor.name}[{result_at(op.stored, at, WIDE_OPENCL)}] = {value};"]
        for result in op.further:
            place, name = result_at(result.store, at, WIDE_OPENCL), result.store.tensor.name
            if result in meeting:
                lines.append(combine_part(result, kind, meeting[result], at))
            elif result.reduces:
                value = write_wide(OPENCL, result.epilogue, kind, at)
                lines.append(combine_element(result, kind, place, value))
            else:
                value = write_result(OPENCL, result.epilogue, kind, at)
                lines.append(f"{name}[{place}] = {value};")
        return lines


def _when(condition: str, lines: list[str]) -> list[str]:
    """Write lines under a condition, if there is one and there are any."""
    return [f"if ({condition}) {{", *block(lines), "}"] if condition and lines else lines


def launch_of(plan: OpenClPlan, name: str) -> dict[str, Any]:
    """Return the contents of ``launch.json``."""
    text, operator = KernelText(plan, name), plan.mapping.operator
    extra = {"start": text.start, "end": text.end}
    return describe_launch(
        plan,
        kernel=name,
        **{
            when: {"kernel": function, "global_size": count_elements(operator, ends=when == "end")}
            for when, function in extra.items()
            if function
        },
        machine=plan.machine.name,
        extensions=list(plan.implementation.requires),
        global_size=plan.groups * plan.items,
        local_size=plan.items,
        local_bytes=plan.local_bytes,
    )
