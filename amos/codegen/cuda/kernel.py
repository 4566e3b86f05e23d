"""The text of one kernel, from its block program.

What is emitted is CUDA C++ with no dependence on TVM: a prelude of fragments, then one
function. Copies to shared memory gather by the mapping's own arithmetic, so that a
convolution is never unfolded in global memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from amos.codegen.cuda.copies import copy_code, may_part
from amos.codegen.cuda.epilogue import epilogue_helpers
from amos.codegen.cuda.fragments import copy_helpers, fragment_code, lane_place
from amos.codegen.cuda.output import output_code
from amos.codegen.cuda.text import OWN, block, identifier
from amos.codegen.cuda.types import cuda_type
from amos.codegen.naming import Names, spelled
from amos.plan.gpu_plan import GpuPlan
from amos.plan.shared_operand import STEP, SharedOperand

__all__ = ["KernelText", "kernel_name"]

_HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <mma.h>\n"


def kernel_name(program: GpuPlan) -> str:
    """Name of the function: the operator's and the mapping's."""
    return spelled(f"{program.mapping.operator.name}_{program.mapping.name}", OWN)


def _named(program: GpuPlan, names: Names) -> GpuPlan:
    """The program of the operator under other names."""
    mapping = names.mapping(program.mapping)
    if mapping is program.mapping:
        return program
    return replace(
        program,
        mapping=mapping,
        tile={names.loop(loop): count for loop, count in program.tile.items()},
        block={names.loop(loop): count for loop, count in program.block.items()},
        order=tuple(map(names.loop, program.order)),
        reduce_order=tuple(map(names.loop, program.reduce_order)),
    )


@dataclass(frozen=True)
class KernelText:
    """The parts of a ``kernel.cu``.

    Attributes:
        program: what the kernel does.
        name: of the function; by default the operator's and the mapping's.
    """

    program: GpuPlan
    name: str = ""

    @cached_property
    def names(self) -> Names:
        """What the operator's names are called in the text."""
        return Names.of(self.program.mapping.operator, OWN)

    @cached_property
    def _named(self) -> GpuPlan:
        return _named(self.program, self.names)

    @cached_property
    def source(self) -> str:
        """The whole file."""
        p = self._named
        return "\n".join(
            [
                self._comment(),
                _HEADERS,
                copy_helpers(p) + epilogue_helpers(p) + fragment_code(p),
                "",
                self._shared(),
                "",
                f'extern "C" __global__ void __launch_bounds__({p.threads}, '
                f"{p.granted[1]})\n"
                f"{self.name or kernel_name(self.program)}({self.parameters}) {{",
                *block(self._body()),
                "}",
                "",
            ]
        )

    @cached_property
    def parameters(self) -> str:
        """The function's parameters: each input once, then the output."""
        *inputs, (out, kind) = self._named.arguments.items()
        made = [f"const {cuda_type(k).name} *__restrict__ {n}" for n, k in inputs]
        return ", ".join([*made, f"{cuda_type(kind).name} *__restrict__ {out}"])

    def _comment(self) -> str:
        p = self.program
        lines = [
            str(p.mapping.operator),
            f"mapping {p.mapping.name}: {p.mapping}",
            f"{p.mapping.intrinsic.name}, {p.architecture}",
            f"grid {p.grid[0]} x {p.grid[1]}, {p.threads} threads, "
            f"{p.shared_bytes} bytes of shared memory, {p.accumulators} accumulators a warp",
            "Tensors are row-major and begin at multiples of 16 bytes."
            + (" The output must be zero at the start." if p.zeroed else ""),
        ]
        return "".join(f"// {line}\n" for line in lines)

    def _shared(self) -> str:
        p = self._named
        if p.is_dynamic:
            return "extern __shared__ __align__(128) unsigned char shared_memory[];"
        return f"__shared__ __align__(128) unsigned char shared_memory[{p.shared_bytes}];"

    def _body(self) -> list[str]:
        p = self._named
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
        for source in self._named.sources:
            kind = cuda_type(source.tile.dtype).name
            lines.append(
                f"{kind} *const shared_{source.name} = "
                f"reinterpret_cast<{kind} *>(shared_memory + {offset});"
            )
            offset += source.bytes * self._named.depth
        return lines

    def _places(self) -> list[str]:
        """Where the block and the warp begin along each loop."""
        p = self._named
        lines = ["// The first step of this block, and the place of this warp in it, by loop."]
        for base, name, counts in (
            ("blockIdx.x", "first", p.blocks),
            ("warp", "warp", {x.name: p.warps_of(x.name) for x in p.spatial}),
        ):
            rest, weight = prod(counts.values()), 1
            for loop in reversed(p.spatial):
                count = counts[loop.name]
                if count > 1:
                    value = base if weight == 1 else f"{base} / {weight}"
                    if weight * count < rest:
                        value = f"({value}) % {count}" if weight > 1 else f"{value} % {count}"
                    step = p.spans[loop.name] if name == "first" else 1
                    scaled = f"static_cast<int>({value}) * {step}" if step > 1 else value
                    lines.append(f"const int {name}_{identifier(loop.name)} = {scaled};")
                weight *= count
        return lines if len(lines) > 1 else []

    def _stages(self) -> list[str]:
        p = self._named
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
        """The reduction: one stage after another, or several in flight."""
        p = self._named
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
        together = ["__syncwarp();"] if any(may_part(p, s) for s in p.sources) else []
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
            *block([*commit, *together, "multiply(stage);"]),
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
        p = self._named
        tiled = [x.name for x in p.spatial if p.tile_of(x.name) > 1]
        own = [[n for n in tiled if n in source.tile.loops] for source in p.sources]
        counts = [prod(p.tile_of(n) for n in loops) for loops in own]
        loads, pairs, whole = [], [], p.whole_source
        for number, (source, letter) in enumerate(zip(p.sources, "ab", strict=True)):
            terms = [f"from_{source.name}"]
            for axis in source.axes:
                if axis.name == STEP:
                    terms.append(f"step * {axis.stride}")
                elif axis.name in own[number]:
                    terms.append(f"t_{identifier(axis.name)} * {axis.stride}")
            place = _index(p, own[number]) if number == whole else "0"
            loads.append(f"load_{letter}({letter}[{place}], {' + '.join(terms)});")
            pairs.append(f"{letter}[{place}]")
        other = 1 - whole
        inner = [f"Fragment{'AB'[whole]} {'ab'[whole]}[{counts[whole]}];"]
        inner += _nest(p, own[whole], [loads[whole]])
        product = f"multiply_add(c[{_index(p, tiled)}], {', '.join(pairs)});"
        inner += _nest(
            p,
            own[other],
            [
                f"Fragment{'AB'[other]} {'ab'[other]}[1];",
                loads[other],
                *_nest(p, [n for n in tiled if n not in own[other]], [product]),
            ],
        )
        lines = ["auto multiply = [&](int stage) {"]
        for source in p.sources:
            lines += block([_warp_base(p, source)])
        lines += block(
            [
                "#pragma unroll",
                f"for (int step = 0; step < {p.staged}; ++step) {{",
                *block(inner),
                "}",
            ]
        )
        return [*lines, "};"]


def _warp_base(program: GpuPlan, source: SharedOperand) -> str:
    terms = [f"shared_{source.name}"]
    if program.depth > 1:
        terms.append(f"stage % {program.depth} * {source.elements}")
    for axis in source.axes:
        if axis.name != STEP and program.warps_of(axis.name) > 1:
            stride = axis.stride * program.tile_of(axis.name)
            terms.append(f"warp_{identifier(axis.name)} * {stride}")
    if lane_place(program, source):
        terms.append(f"lane_{'ab'[source.number]}()")
    kind = cuda_type(source.tile.dtype).name
    return f"const {kind} *const from_{source.name} = {' + '.join(terms)};"


def _index(program: GpuPlan, loops: Sequence[str]) -> str:
    """Position among the fragments of a warp."""
    code = ""
    for name in loops:
        t = f"t_{identifier(name)}"
        code = t if not code else f"({code}) * {program.tile_of(name)} + {t}"
    return code or "0"


def _nest(program: GpuPlan, loops: Sequence[str], body: list[str]) -> list[str]:
    """Unrolled loops over a warp's fragments."""
    for name in reversed(loops):
        t = f"t_{identifier(name)}"
        body = [
            "#pragma unroll",
            f"for (int {t} = 0; {t} < {program.tile_of(name)}; ++{t}) {{",
            *block(body),
            "}",
        ]
    return body
