"""A chain as one kernel whose loops run on work-groups and work-items (Lift, sections 3 and 4).

A valid assignment of :class:`amos.chains.ParallelSpace` says what each loop of a nest is. Loops
around a barrier make equal numbers of trips in all work-items of a group, and what lies beyond a
loop's end is skipped where elements are computed: so every valid assignment synchronizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from amos.chains import Tiling
from amos.chains.loop_nest import Access, Allocation, Loop, Node
from amos.chains.loops import assignment_of
from amos.codegen.device.arithmetic import SUM, TextArithmetic
from amos.codegen.device.text import WIDE_OPENCL, block, element_at
from amos.codegen.naming import spell
from amos.errors import BuildError
from amos.intrinsics import implementations
from amos.ir import Assignment, BufferLoad, Operator, Tensor, dtype
from amos.ir.chain import loads_of
from amos.ir.expression import Typed
from amos.ir.index_text import Expr, Value, text
from amos.machine import Machine
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.codegen.products import ProductText, call_name
from amos.opencl.codegen.text import OPENCL, OWN, loose_vectors, write_call
from amos.opencl.plan import TYPES

#: What a reduction begins with.
_NEUTRAL = {
    ("+", "float32"): "0.0f",
    ("max", "float32"): "-INFINITY",
    ("min", "float32"): "INFINITY",
    ("+", "int32"): "0",
    ("max", "int32"): "INT_MIN",
    ("min", "int32"): "INT_MAX",
}


def list_problems(tiling: Tiling) -> Iterator[str]:
    """Yield why a chain in tiles has no kernels, whatever its loops are."""
    if tiling.cut is not None:
        yield f"OpenCL kernels of chains keep rows whole, got parts of {tiling.cut.name}"
    for tensor in tensors_of(tiling):
        if dtype(str(tensor.dtype)).name not in TYPES:
            yield f"OpenCL kernels have no elements of type {dtype(str(tensor.dtype)).short}"
    for step in tiling.chain.steps:
        name = step.output.tensor.name
        if isinstance(step, Operator) and step.epilogue is not None:
            yield f"{name}: write its epilogue as a statement"
        if any(load.padded for load in loads_of(step)):
            yield f"{name}: OpenCL kernels of chains read nothing beyond a tensor, got pad(…)"


def tensors_of(tiling: Tiling) -> tuple[Tensor, ...]:
    """Return inputs, and what steps write."""
    outputs = (tiled.step.output.tensor for tiled in tiling.steps)
    return (*tiling.chain.inputs, *outputs)


@dataclass(frozen=True)
class ParallelKernel:
    """The text and the launch of a kernel.

    Raises:
        BuildError: the candidate breaks a rule, or something of the chain has no form here.
    """

    candidate: ParallelCandidate
    name: str = "chain"
    machine: Machine | None = None

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise BuildError(f"{self.candidate.chain.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        yield from self.candidate.violations(self.machine)
        if spell(self.name, OWN) != self.name:
            yield f"name: expected an identifier that OpenCL does not have, got {self.name!r}"
        yield from list_problems(self.candidate.tiling)

    @cached_property
    def _writer(self) -> _Writer:
        return _Writer(self)

    @cached_property
    def source(self) -> str:
        """The whole file."""
        writer, chain, items = self._writer, self.candidate.chain, self.candidate.group_items
        parameters = ", ".join(
            f"__global {'' if tensor is chain.result else 'const '}{_element(tensor)} *restrict "
            f"{writer.whole[tensor.name]}"
            for tensor in (*chain.inputs, chain.result)
        )
        contract = "#pragma OPENCL FP_CONTRACT"
        return "\n".join(
            [
                *(f"// {statement.text}" for statement in chain.statements),
                f"{contract} OFF",
                writer.arithmetic.definitions(),
                *loose_vectors(writer.body),
                *self._calls(),
                f"__kernel __attribute__((reqd_work_group_size({items}, 1, 1)))",
                f"void {self.name}({parameters}) {{",
                *block([*writer.places(), *writer.local_memory, *writer.body]),
                "}",
                "",
            ]
        )

    def _calls(self) -> list[str]:
        """Write functions of instructions, in which compilers fuse products and sums."""
        products = {call_name(each): each for each in self.candidate.products.values()}
        lines = [
            line
            for name, each in products.items()
            for line in write_call(name, each.mapping.intrinsic)
        ]
        contract = "#pragma OPENCL FP_CONTRACT"
        return [f"{contract} ON", *lines, f"{contract} OFF"] if lines else []

    @property
    def launch(self) -> dict[str, Any]:
        """What :class:`amos.opencl.runtime.loader.Kernel` launches."""
        chain, items = self.candidate.chain, self.candidate.group_items
        units = [implementations(unit.name)["opencl"] for unit in self.candidate.intrinsics]
        return {
            "kernel": self.name,
            "machine": self.machine.name if self.machine else "",
            "extensions": sorted({name for unit in units for name in unit.requires}),
            "operations": chain.operations,
            "chain": str(chain),
            "schedule": self.candidate.values(),
            "global_size": self.candidate.groups * items,
            "local_size": items,
            "local_bytes": self.candidate.local_bytes,
            "arguments": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "dtype": dtype(str(tensor.dtype)).name,
                    "role": "output" if tensor is chain.result else "input",
                    "zeroed": False,
                }
                for tensor in (*chain.inputs, chain.result)
            ],
        }


def _element(tensor: Tensor) -> str:
    return TYPES[dtype(str(tensor.dtype)).name]


class _Arithmetic(TextArithmetic):
    """Expressions whose reads go to memory of a tile, or to whole tensors."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__(OPENCL, {})
        self.writer = writer
        self.copies: Mapping[str, str] = {}

    def element(self, load: BufferLoad) -> str:
        """Write an element, of a copy if the statement reads one."""
        where = {name: self.at.get(name, 0) for name in load.names}
        indices = [index.evaluate(where) for index in load.indices]
        return self.writer.element(self._buffer(load), indices)

    def space_of(self, load: BufferLoad) -> str:
        """Return the address space that an access reads."""
        memory = {x.buffer: x.memory for x in self.writer.candidate.nest.allocations}
        return f"__{memory.get(self._buffer(load), 'global')}"

    def _buffer(self, load: BufferLoad) -> str:
        return self.copies.get(load.tensor.name, load.tensor.name)


class _Writer:
    """Writes the body.

    Attributes:
        whole: names of the parameters by tensor.
        memory: names of memory of tiles by buffer.
        local_memory: declarations of what work-groups share.
    """

    def __init__(self, kernel: ParallelKernel) -> None:
        self.candidate, self.tiling = kernel.candidate, kernel.candidate.tiling
        chain, nest = self.tiling.chain, self.candidate.nest
        self.whole = {x.name: f"x{n}" for n, x in enumerate((*chain.inputs, chain.result))}
        self.memory = {x.buffer: f"m{n}" for n, x in enumerate(nest.allocations)}
        self.variables = {loop.name: f"l{n}" for n, loop in enumerate(nest.loops)}
        self.tensors = {tensor.name: tensor for tensor in tensors_of(self.tiling)}
        self.arithmetic = _Arithmetic(self)
        self.local_memory: list[str] = []
        self.values: dict[str, Value] = {}
        self.origins: dict[str, Value] = {loop.name: 0 for loop in self.tiling.loops}
        #: Work-items around an allocation, which each have their own: the index that tells them.
        self.owners: dict[str, str] = {}
        self.body = self._nodes(nest.body, (), ())

    def places(self) -> Iterator[str]:
        """Declare the places of a work-item and its group along each dimension."""
        for call, name, counts in (
            ("get_group_id(0)", "group", self.candidate.grid),
            ("get_local_id(0)", "item", self.candidate.group_shape),
        ):
            below = 1
            for d, count in counts.items():
                yield f"const int {name}{d} = {call} / {below} % {count};"
                below *= count

    def _nodes(
        self, nodes: Sequence[Node], loops: tuple[Loop, ...], guards: tuple[str, ...]
    ) -> list[str]:
        """Write nodes in order, with barriers behind those that fill or read shared memory."""
        lines: list[str] = []
        shares = any(isinstance(x, Allocation) and x.memory == "local" for x in nodes)
        for node in nodes:
            match node:
                case Allocation():
                    lines += self._allocate(node, loops)
                    continue
                case Loop():
                    lines += self._loop(node, loops, guards)
                case Access():
                    lines += self._access(node, (), guards)
            lines += ["barrier(CLK_LOCAL_MEM_FENCE);"] if shares else []
        return lines

    def _allocate(self, node: Allocation, loops: tuple[Loop, ...]) -> list[str]:
        tensor = node.buffer.removesuffix(".copy")
        kind, size = _element(self.tensors[tensor]), prod(self.tiling.size(tensor))
        if node.memory == "private":
            return [f"{kind} {self.memory[node.buffer]}[{size}];"]
        owners, count = "", 1
        for dimension, items in self.candidate.owners_of(loops).items():
            owners += f"item{dimension} * {count * size} + "
            count *= items
        self.owners[node.buffer] = owners
        self.local_memory.append(f"__local {kind} {self.memory[node.buffer]}[{size * count}];")
        return []

    def _loop(self, loop: Loop, loops: tuple[Loop, ...], guards: tuple[str, ...]) -> list[str]:
        """Write a loop over all its values, or over those of this work-group or work-item."""
        if loop.is_reduce:
            return self._reduction(loop, guards)
        name = self.variables[loop.name]
        level, _, dimension = self.candidate.choices[loop.name].partition(" ")
        items, step = self.candidate.group_shape, self.candidate.stride_of(loop)
        first = "0"
        if level == "global":
            first = f"group{dimension} * {items[int(dimension)]} + item{dimension}"
        elif dimension:
            first = f"{'item' if level == 'local' else 'group'}{dimension}"
        trips = -(-loop.extent // step)
        self.values[loop.name] = Expr(name, 0, loop.extent - 1)
        lines = [f"const int {name} = {f't{name} * {step} + ' if trips > 1 else ''}{first};"]
        if step == 1:
            lines = [f"const int {name} = t{name};"]
        if loop.extent % step:
            guards = (*guards, f"{name} < {loop.extent}")
        lines += self._origin(loop)
        lines += self._nodes(loop.body, (*loops, loop), guards)
        if trips == 1:
            return ["{", *block(lines), "}"]
        return [f"for (int t{name} = 0; t{name} < {trips}; ++t{name}) {{", *block(lines), "}"]

    def _origin(self, loop: Loop) -> list[str]:
        """Write where the tile of a shared loop begins; the last one ends with the loop."""
        shared = {each.name: each for each in self.tiling.loops}.get(loop.name)
        if shared is None:
            return []
        last, name = shared.extent - shared.tile, f"o{self.variables[loop.name]}"
        self.origins[loop.name] = Expr(name, 0, last)
        start = f"{self.variables[loop.name]} * {shared.tile}"
        if shared.extent % shared.tile:
            start = f"i_less({start}, {last})"
        return [f"const int {name} = {start};"]

    def _reduction(self, loop: Loop, guards: tuple[str, ...]) -> list[str]:
        loops = [loop]
        while isinstance(loops[-1].body[0], Loop):
            loops.append(loops[-1].body[0])
        (access,) = loops[-1].body
        assert isinstance(access, Access)
        for reduction in loops:
            self.values[reduction.name] = Expr(
                self.variables[reduction.name], 0, reduction.extent - 1
            )
        return self._access(access, loops, guards)

    def _access(self, access: Access, loops: Sequence[Loop], guards: tuple[str, ...]) -> list[str]:
        """Write a copied element, or an element of a step with its reductions."""
        if access.name.endswith(".copy"):
            lines = self._copy(access)
        else:
            lines = self._element_of_step(access, loops)
        return [f"if ({' && '.join(guards)}) {{", *block(lines), "}"] if guards else lines

    def _copy(self, access: Access) -> list[str]:
        tensor = access.name.removesuffix(".copy")
        at = [
            self.values.get(f"{access.name}.{n}", 0) for n in range(len(self.tiling.size(tensor)))
        ]
        return [f"{self.element(access.name, at)} = {self.element(tensor, at)};"]

    def _element_of_step(self, access: Access, loops: Sequence[Loop]) -> list[str]:
        tiled, by = self.candidate.step_of(access.name), self.arithmetic
        local = self.tiling.localize(tiled, {})
        by.copies = {x.removesuffix(".copy"): x for x in access.buffers if x.endswith(".copy")}
        if (product := self.candidate.products.get(access.name)) is not None:
            assert isinstance(local, Operator)
            own = {it.name: f"{access.name}.{it.name}" for it in local.iterations}
            return ProductText(
                product=product,
                tiled=tiled,
                local=local,
                values={it: self.values[n] for it, n in own.items() if n in self.values},
                stride=self.candidate.stride_between,
                space=by.space_of,
                arithmetic=by,
            ).lines(loops, self.variables)
        # Where rows are whole, a product may divide its sums by those of rows.
        epilogue = local.epilogue if isinstance(local, Operator) else None
        step = assignment_of(local) if isinstance(local, Operator) else local
        assert isinstance(step, Assignment)
        at = {it.name: self.values.get(f"{access.name}.{it.name}", 0) for it in step.iterations}
        by.at = at
        variables = {
            name: Typed(f"({text(run.start.evaluate(self.origins) + at[name])})", "int32")
            for name, run in tiled.ranges.items()
        }
        value = step.expression.compute(variables, by)
        where = {name: at[name] for name in step.destination.names}
        target = self.element(
            step.output.tensor.name, [index.evaluate(where) for index in step.destination.indices]
        )
        final = dtype(str(step.output.tensor.dtype)).name
        if not step.combiner:
            return [f"{target} = {by.write_stored(value.value, value.kind, final)};"]
        kind = "int" if value.kind == "int32" else "float"
        lines = [f"{SUM} = {by.combine(step.combiner, value.kind, SUM, value.value)};"]
        for loop in reversed(loops):
            name = self.variables[loop.name]
            lines = [
                f"for (int {name} = 0; {name} < {loop.extent}; ++{name}) {{",
                *block(lines),
                "}",
            ]
        first = f"{kind} {SUM} = {_NEUTRAL[step.combiner, value.kind]};"
        if epilogue is None:
            result = by.write_stored(SUM, value.kind, final)
        else:
            result = by.write_result(epilogue, value.kind)
        return ["{", *block([first, *lines, f"{target} = {result};"]), "}"]

    def element(self, buffer: str, at: Sequence[Value]) -> str:
        """Write an element of a tile, in its memory or in the whole tensor.

        Args:
            buffer: a temporary, the copy of an input, an input or the result.
            at: indices from the tile's first element on.
        """
        if buffer in self.memory:
            shape = self.tiling.size(buffer.removesuffix(".copy"))
            place = element_at(shape or (1,), at or [0], WIDE_OPENCL)
            return f"{self.memory[buffer]}[{self.owners.get(buffer, '')}{place}]"
        starts = [place.start.evaluate(self.origins) for place in self.tiling.boxes[buffer]]
        indices = [start + each for start, each in zip(starts, at, strict=True)]
        place = element_at(self.tensors[buffer].shape or (1,), indices or [0], WIDE_OPENCL)
        return f"{self.whole[buffer]}[{place}]"
