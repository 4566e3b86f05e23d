"""The description of an intrinsic: its meaning and its memory traffic (AMOS, section 4).

:class:`Intrinsic` joins a compute abstraction (Definition 4.1), one
:class:`~amos.ir.nodes.Compute` node, with a memory abstraction (Definition 4.2),
a list of :class:`~amos.intrinsics.memory.Memory` statements. Implementations are separate
(:mod:`amos.intrinsics.implementation`), found by the intrinsic's name; the meaning needs none
of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from amos._display import Shown
from amos.errors import IntrinsicError, OperatorError, ParseError
from amos.intrinsics.arithmetic import Arithmetic, ShapeFamily, Timing
from amos.intrinsics.implementation import newest_architecture
from amos.intrinsics.memory import WINDOWS, Memory
from amos.intrinsics.memory_checks import complete_statement, memory_problems
from amos.intrinsics.placement import PLACES, Placement
from amos.intrinsics.scratchpad import Scratchpad, scratchpads
from amos.ir import BufferLoad, Computation, Compute, DType, dtype
from amos.ir.limits import SOURCES


@dataclass(frozen=True)
class AffineSystem:
    """Index ranges as ``A·i + Σ B[m]·j[m] + C < 0`` (AMOS, equation 1).

    ``i`` are the destination's indices and ``j[m]`` those of source m; all are
    at least zero. Each iteration bounds one row, and is counted where it first
    occurs: an index that the destination or an earlier source has already
    bounded has a column of zeros.

    Attributes:
        A: rows × indices of the destination.
        B: for each source rows × indices of that source.
        C: rows; minus the extents.
    """

    A: np.ndarray
    B: tuple[np.ndarray, ...]
    C: np.ndarray

    def holds(self, i: Sequence[int], j: Sequence[Sequence[int]]) -> bool:
        """Return whether the indices are inside their ranges."""
        total = self.A @ np.asarray(i, dtype=np.int64) + self.C
        for matrix, index in zip(self.B, j, strict=True):
            total = total + matrix @ np.asarray(index, dtype=np.int64)
        return bool((total < 0).all() and min([*i, *(v for index in j for v in index)]) >= 0)


@dataclass(frozen=True)
class Intrinsic(Shown, Computation):
    """An instruction as AMOS sees it.

    Attributes:
        name: registry key, ``<family>_<instruction>_m<M>n<N>k<K>_<dtypes>``.
        compute: the scalar statement and its index ranges.
        memory: how fragments are loaded and stored.
        family: instruction family (``"vnni"``, ``"wmma"``, …).
        source: manual and section that the meaning was taken from.
        description: one line in plain words.
        requires: CPU or GPU features that the instruction needs
            (``"avx512_vnni"``, ``"sm_70"``).
        registers: number of **fragments of the destination** that registers hold
            at once, for one thread of execution (32 for 512-bit vectors); the
            bound on register tiles. 0 if it is not known.
        overwrites_sources: whether the result may take the register of any source, as in the
            three forms of a multiply-add of x86.
        arithmetic: saturation and rounding.
        shapes: the legal problem sizes, if this is one of several.
        timing: latency and throughput on each machine for which they are known.
    """

    name: str
    compute: Compute
    memory: tuple[Memory, ...]
    family: str
    source: str
    description: str = ""
    requires: tuple[str, ...] = ()
    registers: int = 0
    overwrites_sources: bool = False
    arithmetic: Arithmetic = Arithmetic()
    shapes: ShapeFamily | None = None
    timing: tuple[Timing, ...] = ()

    def __post_init__(self) -> None:
        self._refuse_first(_problems(self))
        loads = {load.tensor.name: load for load in self.operands}
        memory = tuple(
            complete_statement(statement, loads[statement.operand]) for statement in self.memory
        )
        object.__setattr__(self, "memory", memory)
        self._refuse_first(memory_problems(self))

    def _refuse_first(self, problems: Iterator[str]) -> None:
        try:
            problem = next(problems, None)
        except IntrinsicError as error:
            problem = str(error)
        if problem is not None:
            raise IntrinsicError(f"intrinsic {self.name!r}: {problem}")

    @staticmethod
    def define(
        name: str,
        compute: str,
        extents: Mapping[str, int],
        dtypes: Mapping[str, str],
        memory: Sequence[Memory | str],
        *,
        family: str,
        source: str,
        description: str = "",
        requires: Sequence[str] = (),
        registers: int = 0,
        overwrites_sources: bool = False,
        arithmetic: Arithmetic | None = None,
        shapes: ShapeFamily | None = None,
        timing: Sequence[Timing] = (),
    ) -> Intrinsic:
        """Describe an intrinsic by one line of math and its memory statements.

        Args:
            name: registry key.
            compute: for example ``"Dst[i1] += Src1[r1] * Src2[i1, r1]"``.
            extents: extent of each intrinsic iteration (the problem size).
            dtypes: dtype of each operand.
            memory: one statement for each operand, also as the paper writes it:
                ``"reg.Src1[r1] = memory.Src1[addr_a + r1]"``.
            family, source, description, requires, registers, overwrites_sources,
                arithmetic, shapes, timing: see :class:`Intrinsic`.

        Raises:
            IntrinsicError: the parts do not fit together.
        """
        from amos.ir.parser import parse_statement

        try:
            node = parse_statement(compute, extents, dtypes)
            statements = [m if isinstance(m, Memory) else Memory.parse(m) for m in memory]
        except (ParseError, OperatorError, IntrinsicError) as error:
            raise IntrinsicError(f"intrinsic {name!r}: {error}") from error
        return Intrinsic(
            name=name,
            compute=node,
            memory=tuple(statements),
            family=family,
            source=source,
            description=description,
            requires=tuple(requires),
            registers=registers,
            overwrites_sources=overwrites_sources,
            arithmetic=arithmetic or Arithmetic(),
            shapes=shapes,
            timing=tuple(timing),
        )

    @property
    def destination(self) -> BufferLoad:
        """Destination operand."""
        return self.compute.dst

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Canonical dtype of each operand, destination last."""
        return tuple(str(load.tensor.dtype) for load in self.operands)

    @cached_property
    def kinds(self) -> tuple[DType, ...]:
        """Dtypes with the ranges for which the instruction is exact."""
        return tuple(kind for load in self.operands if (kind := load.tensor.kind) is not None)

    @cached_property
    def staged_dtypes(self) -> tuple[str, ...]:
        """Canonical dtype in which each operand is staged, destination last."""
        staged = {statement.operand: statement.staged for statement in self.memory}
        return tuple(
            staged[load.tensor.name] or kind
            for load, kind in zip(self.operands, self.dtypes, strict=True)
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k): the first and second spatial extent, and all reductions together.

        Further spatial iterations count into n; a missing one is 1.
        """
        m, *further = [it.extent for it in self.compute.spatial] or [1]
        return m, prod(further), prod(it.extent for it in self.compute.reduce)

    @property
    def architecture(self) -> int:
        """Oldest CUDA architecture that has the instruction, as 80 for ``sm_80``; 0 if none."""
        return newest_architecture(self.requires)

    @cached_property
    def tile_registers(self) -> bool:
        """Whether every fragment lives in a tile register, as with AMX.

        Fragments of such an instruction move as contiguous rows at any distance from each other.
        """
        return all(statement.register_scope == "tile" for statement in self.memory)

    @cached_property
    def open_registers(self) -> bool:
        """Whether the register of each element of each fragment is known to software."""
        return all(statement.layout is not None for statement in self.memory)

    @cached_property
    def placements(self) -> dict[str, Placement]:
        """Addresses of the elements of each operand's fragment, by its name."""
        return {each.operand: each.placement for each in self.memory}

    @cached_property
    def ordered(self) -> Intrinsic:
        """The intrinsic with each fragment's indices in the order of memory, longest stride first.

        Implementations take fragments in this order; iterations are in the destination's.
        """
        orders = {name: each.order for name, each in self.placements.items()}
        if all(order == tuple(range(len(order))) for order in orders.values()):
            return self

        def move_load(load: BufferLoad) -> BufferLoad:
            order, tensor = orders[load.tensor.name], load.tensor
            shape = tuple(tensor.shape[d] for d in order)
            indices = tuple(load.indices[d] for d in order)
            return replace(load, tensor=replace(tensor, shape=shape), indices=indices)

        compute = self.compute.with_loads(move_load)
        spatial = [index.names[0] for index in compute.dst.indices]
        steps = sorted(
            compute.iterations,
            key=lambda it: spatial.index(it.name) if it.name in spatial else len(spatial),
        )
        return replace(
            self,
            compute=replace(compute, iterations=tuple(steps)),
            memory=tuple(each.reorder(orders[each.operand]) for each in self.memory),
        )

    @cached_property
    def scratchpads(self) -> tuple[Scratchpad, ...]:
        """Buffers on chip that fragments live in."""
        return scratchpads(self.memory)

    @cached_property
    def affine_system(self) -> AffineSystem:
        """The index ranges as matrices (AMOS, Definition 4.1)."""
        rows = {it.name: row for row, it in enumerate(self.iterations)}
        counted: set[str] = set()
        matrices = []
        for load in (self.destination, *self.sources):
            matrix = np.zeros((len(rows), len(load.indices)), dtype=np.int64)
            for column, index in enumerate(load.indices):
                if index.names[0] not in counted:
                    counted.add(index.names[0])
                    matrix[rows[index.names[0]], column] = 1
            matrices.append(matrix)
        bounds = np.array([-it.extent for it in self.iterations], dtype=np.int64)
        return AffineSystem(matrices[0], tuple(matrices[1:]), bounds)

    def staged_dtype(self, operand: str) -> str:
        """Return the canonical dtype in which an operand is staged, by its name."""
        return self.staged_dtypes[[x.tensor.name for x in self.operands].index(operand)]

    def fragment_bytes(self, operand: BufferLoad) -> int:
        """Return the bytes of an operand's staged fragment, rounded up."""
        bits = dtype(self.staged_dtype(operand.tensor.name)).bits
        return -(-operand.tensor.elements * bits // 8)

    def __str__(self) -> str:
        ranges = ", ".join(f"{it.name} < {it.extent}" for it in self.iterations)
        types = ", ".join(
            f"{load.tensor.name}: {kind.spelled}"
            for load, kind in zip(self.operands, self.kinds, strict=True)
        )
        lines = [self.name, f"  compute  {self.compute}", f"           {ranges}  ({types})"]
        lines += [
            f"  {'memory' if n == 0 else '':8} {statement}"
            for n, statement in enumerate(self.memory)
        ]
        if str(self.arithmetic):
            lines.append(f"  rounding {self.arithmetic}")
        return "\n".join(lines)


def _problems(unit: Intrinsic) -> Iterator[str]:
    """Yield the errors of a description, in words; callers stop at the first."""
    for key in ("name", "family", "source"):
        value = getattr(unit, key)
        if not isinstance(value, str) or not value.strip():
            yield f"{key}: expected a text, got {value!r}"
    if not unit.name.isidentifier():
        yield "name: expected letters, digits and underscores"
    if unit.registers < 0:
        yield f"registers: expected zero or more, got {unit.registers!r}"
    operands = [load.tensor.name for load in unit.operands]
    if len(set(operands)) != len(operands):
        yield f"operand names repeat: {', '.join(operands)}"
    if len(unit.sources) > SOURCES:
        yield f"compute: expected at most {SOURCES} sources, got {len(unit.sources)}"
    for tensor in (load.tensor for load in unit.operands):
        if tensor.dtype is None:
            yield f"operand {tensor.name!r} has no dtype"
        if tensor.bounds is not None and not tensor.bounds[0] <= 0 <= tensor.bounds[1]:
            yield f"dtype of {tensor.name!r}: expected a range with 0, which fills what lies beyond"
        if tensor.elements > PLACES:
            yield (
                f"extents: expected fragments of at most {PLACES} elements, got "
                f"{tensor.elements} for {tensor.name!r}"
            )
    for load in unit.operands:
        for index in load.indices:
            # Definition 4.1 has no windows: p + r would be two iterations in one index.
            if len(index.terms) != 1 or index.constant or index.terms[0][1] != 1:
                yield (
                    f"operand {load.tensor.name!r}: expected a single iteration as each index, "
                    f"got {str(index)!r}; {WINDOWS}"
                )
    covered = [statement.operand for statement in unit.memory]
    if unknown := [name for name in covered if name not in operands]:
        yield (
            f"memory statement for unknown operand {unknown[0]!r}; operands are "
            f"{', '.join(operands)}"
        )
    if missing := [name for name in operands if name not in covered]:
        yield f"no memory statement covers operand {', '.join(missing)}"
    yield from _arithmetic_problems(unit)
    if unit.shapes is not None and unit.shape not in unit.shapes.members:
        shape = "x".join(map(str, unit.shape))
        yield f"shapes: expected one of {unit.shapes}, got {shape}"


def _arithmetic_problems(unit: Intrinsic) -> Iterator[str]:
    """Yield reasons against this arithmetic, or against the staging of its operands."""
    kind, rules = dtype(unit.dtypes[-1]), unit.arithmetic
    if (rules.saturate or rules.bitwise or rules.flush) and not unit.compute.sums_products:
        yield f"arithmetic: {rules}: expected a sum of products, got {unit.compute}"
    if unit.reduce:
        yield from _lane_problems(unit)
    tiles = all(statement.register_scope == "tile" for statement in unit.memory)
    if tiles and unit.compute.arithmetic != "multiply-add":
        yield f"memory: tile registers hold sums of products; its arithmetic is {unit.compute}"
    if rules.saturate and not kind.is_integer:
        yield f"arithmetic: saturate: expected an integer destination, got {kind.name}"
    if (rules.bitwise or rules.flush) and kind.name != "float32":
        yield f"arithmetic: {rules}: expected a float32 destination, got {kind.name}"


def _lane_problems(unit: Intrinsic) -> Iterator[str]:
    """Yield reasons why neutral values in lanes beyond a reduction would change the result."""
    compute, kind = unit.compute, unit.dtypes[-1]
    if compute.fills_lanes(kind, arbitrary_source=True):
        return
    if not compute.fills_lanes(kind):
        yield (
            f"compute: {compute}: no value of {kind} in lanes beyond the reduction leaves a "
            f"{compute.combiner}= alone; leave the reduction to loops around the calls"
        )
    elif short := [x for x in unit.sources if not {it.name for it in unit.reduce} <= x.names]:
        yield (
            f"compute: {compute}: {short[0]} would count again in lanes beyond the reduction; "
            "let every source have its iterations"
        )
    if len(set(unit.dtypes)) > 1 and compute.combiner in ("max", "min"):
        kinds = ", ".join(unit.dtypes)
        yield f"compute: {compute}: expected one dtype of all operands, got {kinds}"
