"""The text of one kernel, from its plan.

The text is CUDA C++ with no dependence on TVM: a prelude of fragments, then one
function. Copies to shared memory gather by the mapping's own arithmetic, so that a
convolution is never unfolded in global memory.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from amos.codegen.device.access import STEP
from amos.codegen.device.kernel import DeviceText
from amos.codegen.device.launch import describe_launch
from amos.codegen.device.text import (
    StepSource,
    block,
    fragment_at,
    identifier,
    multiply_step,
    unroll,
)
from amos.cuda.codegen.copies import copy_code, may_part
from amos.cuda.codegen.epilogue import CUDA, epilogue_helpers
from amos.cuda.codegen.fragments import copy_helpers, fragment_code, lane_place
from amos.cuda.codegen.output import output_code
from amos.cuda.codegen.reductions import element_blocks, reduction_helpers
from amos.cuda.codegen.text import ELEMENT_THREADS, OWN, cuda_type
from amos.cuda.plan import GpuPlan
from amos.cuda.shared_operand import SharedOperand
from amos.ir.index_text import Expr, variable

_HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <mma.h>\n"
#: Head of the functions that are launched before and behind.
_ELEMENTS = f'extern "C" __global__ void __launch_bounds__({ELEMENT_THREADS})'
_LAYOUT = "Tensors are row-major and begin at multiples of 16 bytes."


class KernelText(DeviceText[GpuPlan]):
    """The parts of a ``kernel.cu``."""

    own = OWN

    @cached_property
    def source(self) -> str:
        """The whole file."""
        p = self._spelled_plan
        return "\n".join(
            [
                self._comment(p.architecture, self._launch, _LAYOUT),
                _HEADERS,
                copy_helpers(p) + epilogue_helpers(p) + reduction_helpers(p) + fragment_code(p),
                "",
                self._declare_shared(),
                "",
                f'extern "C" __global__ void __launch_bounds__({p.threads}, '
                f"{p.granted[1]})\n"
                f"{self.function}({self.parameters}) {{",
                *block(self._body()),
                "}",
                *self._extra_functions(_ELEMENTS, CUDA),
                "",
            ]
        )

    @property
    def _launch(self) -> str:
        p = self.plan
        return (
            f"grid {p.grid[0]} x {p.grid[1]}, {p.threads} threads, "
            f"{p.shared_bytes} bytes of shared memory, {p.accumulators} accumulators a warp"
        )

    def _parameter(self, qualifier: str, kind: str, name: str) -> str:
        return f"{qualifier}{cuda_type(kind)} *__restrict__ {name}"

    def _declare_shared(self) -> str:
        p = self._spelled_plan
        kind, size = ("extern ", "") if p.dynamic_bytes else ("", p.shared_bytes)
        return f"{kind}__shared__ __align__(128) unsigned char shared_memory[{size}];"

    def _body(self) -> list[str]:
        p = self._spelled_plan
        lines = self._buffers()
        lines += [
            "const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;",
            *self._places(),
        ]
        lines += self._stages()
        lines += [
            f"FragmentC c[{p.accumulators}];",
            "#pragma unroll",
            f"for (int i = 0; i < {p.accumulators}; ++i) clear(c[i]);",
            "",
        ]
        for source in p.sources:
            lines += copy_code(p, source)
        return [*lines, *self._multiply(), "", *self._loop(), "", *output_code(p)]

    def _buffers(self) -> list[str]:
        lines, offset = [], 0
        for source in self._spelled_plan.sources:
            kind = cuda_type(source.tile.dtype)
            lines.append(
                f"{kind} *const shared_{source.name} = "
                f"reinterpret_cast<{kind} *>(shared_memory + {offset});"
            )
            offset += source.bytes * self._spelled_plan.depth
        return lines

    def _places(self) -> list[str]:
        p = self._spelled_plan
        lines = ["// The first step of this block, and the place of this warp in it, by loop."]
        for worker, name, tasks in (
            ("blockIdx.x", "first", self.grid or p.grid_tasks),
            ("warp", "warp", p.worker_tasks),
        ):
            places = zip(p.spatial, tasks.at(variable(worker, tasks.workers)), strict=True)
            for loop, value in reversed(list(places)):
                if isinstance(value, Expr):
                    step = p.spans[loop.name] if name == "first" else 1
                    code = f"static_cast<int>({value.code}) * {step}" if step > 1 else value.code
                    lines.append(f"const int {name}_{identifier(loop.name)} = {code};")
        return lines if len(lines) > 1 else []

    def _stages(self) -> list[str]:
        p = self._spelled_plan
        # A single part has blockIdx.y = 0, which the compiler does not know: it would unroll
        # a loop of known length whatever it is told, into code beyond the instruction cache.
        lines = [f"const int begin = blockIdx.y * {p.share};"]
        if p.parts * p.share == p.sequence:
            return [*lines, f"const int end = begin + {p.share};"]
        return [
            *lines,
            f"const int end = begin + {p.share} < {p.sequence} ? begin + {p.share} : {p.sequence};",
        ]

    def _loop(self) -> list[str]:
        """Write the reduction: one stage after another, or several in flight."""
        p = self._spelled_plan
        fetch = [f"fetch_{s.name}" for s in p.sources]
        put = [f"put_{s.name}" for s in p.sources if s.is_kept]
        stages = ("#pragma unroll 1", "for (int stage = begin; stage < end; ++stage) {")
        if p.depth == 1:
            return [
                *stages,
                *block(f"{name}(stage);" for name in (*fetch, *put)),
                *block(["__syncthreads();", "multiply(stage);", "__syncthreads();"]),
                "}",
            ]
        # Products take all threads of a warp together.
        converge = ["__syncwarp();"] if any(may_part(p, s) for s in p.sources) else []
        some = any(s.is_async for s in p.sources)
        commit = ["commit_copies();"] if some else []
        wait = [f"wait_copies<{p.depth - 2}>();"] if some else []
        return [
            "#pragma unroll 1",
            f"for (int stage = begin; stage < begin + {p.depth - 1}; ++stage) {{",
            *block(["if (stage < end) {"]),
            *block(block(f"{name}(stage);" for name in (*fetch, *put))),
            *block(["}", *commit]),
            "}",
            *stages,
            *block([*wait, "__syncthreads();", f"const int next = stage + {p.depth - 1};"]),
            *block(["if (next < end) {", *block(f"{name}(next);" for name in fetch), "}"]),
            *block([*commit, *converge, "multiply(stage);"]),
            *(
                block([f"if (next < end) {{ {' '.join(f'{n}(next);' for n in put)} }}"])
                if put
                else []
            ),
            "}",
            *(["wait_copies<0>();"] if some else []),
            "__syncthreads();",
        ]

    def _multiply(self) -> list[str]:
        """One stage: load the warp's fragments of each step, multiply all pairs."""
        p, tile, whole = (
            self._spelled_plan,
            self._spelled_plan.schedule.tile,
            self._spelled_plan.whole_source,
        )
        tiled = [x.name for x in p.spatial if tile[x.name] > 1]
        own = [[n for n in tiled if n in source.tile.loops] for source in p.sources]
        loads, pairs = [], []
        for source, letter, loops in zip(p.sources, "ab", own, strict=True):
            terms = [f"from_{source.name}"]
            for axis in source.axes:
                if axis.name == STEP:
                    terms.append(f"step * {axis.stride}")
                elif axis.name in loops:
                    stride = axis.stride * p.distances(axis.name)[1]
                    terms.append(f"t_{identifier(axis.name)} * {stride}")
            place = fragment_at(tile, loops) if source.number == whole else "0"
            loads.append(f"load_{letter}({letter}[{place}], {' + '.join(terms)});")
            pairs.append(f"{letter}[{place}]")
        product = f"multiply_add(c[{fragment_at(tile, tiled)}], {', '.join(pairs)});"
        resident, single = (
            StepSource(variable, own[number], [loads[number]])
            for number, variable in (
                (whole, f"Fragment{'AB'[whole]} {'ab'[whole]}"),
                (1 - whole, f"Fragment{'BA'[whole]} {'ba'[whole]}[1]"),
            )
        )
        step = multiply_step(tile, tiled, resident, single, product)
        bases = [_warp_base(p, source) for source in p.sources]
        body = [*bases, *unroll("step", p.staged, step)]
        return ["auto multiply = [&](int stage) {", *block(body), "};"]


def _warp_base(plan: GpuPlan, source: SharedOperand) -> str:
    terms = [f"shared_{source.name}"]
    if plan.depth > 1:
        terms.append(f"stage % {plan.depth} * {source.elements}")
    for axis in source.axes:
        if axis.name != STEP and plan.schedule.warps[axis.name] > 1:
            stride = axis.stride * plan.distances(axis.name)[0]
            terms.append(f"warp_{identifier(axis.name)} * {stride}")
    if lane_place(plan, source):
        terms.append(f"lane_{'ab'[source.number]}()")
    return f"const {cuda_type(source.tile.dtype)} *const from_{source.name} = {' + '.join(terms)};"


def launch_of(plan: GpuPlan, name: str) -> dict[str, Any]:
    """Return the contents of ``launch.json``."""
    text = KernelText(plan, name)
    return describe_launch(
        plan,
        kernel=name,
        **({"start": _elements(text.start, element_blocks(plan))} if text.start else {}),
        **({"end": _elements(text.end, element_blocks(plan, ends=True))} if text.end else {}),
        architecture=plan.architecture,
        grid=list(plan.grid),
        block=[plan.threads, 1, 1],
        shared_bytes=plan.shared_bytes,
        dynamic_shared_bytes=plan.dynamic_bytes,
    )


def _elements(name: str, blocks: int) -> dict[str, Any]:
    """Describe the launch of the function before or after, with the same arguments."""
    return {"kernel": name, "grid": [blocks, 1, 1], "block": [ELEMENT_THREADS, 1, 1]}
