"""What an intrinsic means and what it moves (AMOS, section 4).

:class:`Intrinsic` joins a compute abstraction (Definition 4.1), one
:class:`~amos.ir.nodes.Compute` node, with a memory abstraction (Definition 4.2),
a list of :class:`~amos.intrinsics.memory.Memory` statements. Implementations are
apart (:mod:`amos.intrinsics.implementation`), found by the intrinsic's name; the
meaning needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from amos._display import Shown
from amos.errors import IntrinsicError, OperatorError, ParseError
from amos.intrinsics.architectures import newest
from amos.intrinsics.arithmetic import Arithmetic, ShapeFamily, Timing
from amos.intrinsics.memory import PLACES, WINDOWS, Memory
from amos.ir import BufferLoad, Compute, Iteration, access_matrix, dtype
from amos.ir.limits import SOURCES

__all__ = ["AffineSystem", "Intrinsic", "Memory"]


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
        """True if the indices are inside their ranges."""
        total = self.A @ np.asarray(i, dtype=np.int64) + self.C
        for matrix, index in zip(self.B, j, strict=True):
            total = total + matrix @ np.asarray(index, dtype=np.int64)
        return bool((total < 0).all() and min([*i, *(v for index in j for v in index)]) >= 0)


@dataclass(frozen=True)
class Intrinsic(Shown):
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
    arithmetic: Arithmetic = Arithmetic()
    shapes: ShapeFamily | None = None
    timing: tuple[Timing, ...] = ()

    def __post_init__(self) -> None:
        _check_texts(self)
        operands = [load.tensor.name for load in self.compute.operands]
        if len(set(operands)) != len(operands):
            raise IntrinsicError(f"{self.name}: operand names repeat: {', '.join(operands)}")
        if len(self.sources) > SOURCES:
            raise IntrinsicError(
                f"{self.name}: compute: expected at most {SOURCES} sources, got {len(self.sources)}"
            )
        for load in self.compute.operands:
            if load.tensor.dtype is None:
                raise IntrinsicError(f"{self.name}: operand {load.tensor.name!r} has no dtype")
            if load.tensor.elements > PLACES:
                raise IntrinsicError(
                    f"{self.name}: extents: expected fragments of at most {PLACES} elements, got "
                    f"{load.tensor.elements} for {load.tensor.name!r}"
                )
        _check_indices(self.name, self.compute)
        covered = [statement.operand for statement in self.memory]
        for statement in self.memory:
            if statement.operand not in operands:
                raise IntrinsicError(
                    f"{self.name}: memory statement for unknown operand {statement.operand!r}; "
                    f"operands are {', '.join(operands)}"
                )
        if missing := [name for name in operands if name not in covered]:
            raise IntrinsicError(
                f"{self.name}: no memory statement covers operand {', '.join(missing)}"
            )
        loads = {load.tensor.name: load for load in self.compute.operands}
        memory = tuple(_whole(statement, loads[statement.operand]) for statement in self.memory)
        object.__setattr__(self, "memory", memory)
        for statement in memory:
            _check_statement(self, statement)
        _check_arithmetic(self)
        if self.shapes is not None and self.shape not in self.shapes.members:
            raise IntrinsicError(
                f"{self.name}: shapes: expected one of {self.shapes}, "
                f"got {'x'.join(map(str, self.shape))}"
            )

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
            family, source, description, requires, registers, arithmetic, shapes,
                timing: see :class:`Intrinsic`.

        Raises:
            IntrinsicError: the parts do not fit together.
        """
        from amos.ir.parser import parse_statement

        try:
            node = parse_statement(compute, extents, dtypes)
            _check_indices(name, node)
            statements = [m if isinstance(m, Memory) else Memory.parse(m) for m in memory]
        except (ParseError, OperatorError, IntrinsicError) as error:
            text = str(error).removeprefix(f"{name}: ")
            raise IntrinsicError(f"intrinsic {name!r}: {text}") from error
        return Intrinsic(
            name,
            node,
            tuple(statements),
            family,
            source,
            description,
            tuple(requires),
            registers,
            arithmetic or Arithmetic(),
            shapes,
            tuple(timing),
        )

    @property
    def iterations(self) -> tuple[Iteration, ...]:
        """Intrinsic iterations, spatial ones first."""
        return self.compute.iterations

    @property
    def extents(self) -> dict[str, int]:
        """Problem size: extent of each intrinsic iteration."""
        return self.compute.extents

    @property
    def sources(self) -> tuple[BufferLoad, ...]:
        """Source operands."""
        return self.compute.sources

    @property
    def destination(self) -> BufferLoad:
        """Destination operand."""
        return self.compute.dst

    @property
    def operands(self) -> tuple[BufferLoad, ...]:
        """Sources, then the destination."""
        return self.compute.operands

    @cached_property
    def access_matrix(self) -> np.ndarray:
        """Z of Algorithm 1: bool, operands (sources, then destination) × iterations."""
        return access_matrix(self.compute)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Canonical dtype of each operand, destination last."""
        return tuple(str(load.tensor.dtype) for load in self.operands)

    @cached_property
    def staged_dtypes(self) -> tuple[str, ...]:
        """Canonical dtype in which each operand is staged, destination last."""
        staged = {statement.operand: statement.staged for statement in self.memory}
        return tuple(
            staged[load.tensor.name] or kind
            for load, kind in zip(self.operands, self.dtypes, strict=True)
        )

    @property
    def operations(self) -> int:
        """Arithmetic operations of one call."""
        points = prod(it.extent for it in self.iterations)
        return points * (2 if self.compute.arithmetic == "multiply-add" else 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k): the first and second spatial extent, and all reductions together.

        Further spatial iterations count into n; a missing one is 1.
        """
        m, *rest = [it.extent for it in self.compute.spatial] or [1]
        return m, prod(rest), prod(it.extent for it in self.compute.reduce)

    @property
    def architecture(self) -> int:
        """Oldest CUDA architecture that has the instruction, as 80 for ``sm_80``; 0 if none."""
        return newest(self.requires)

    @cached_property
    def tile_registers(self) -> bool:
        """Whether every fragment lives in a tile register, as with AMX.

        Such an instruction's fragments move as rows, each contiguous, at any distance from
        each other.
        """
        return all(statement.register_scope == "tile" for statement in self.memory)

    @cached_property
    def open_registers(self) -> bool:
        """Whether software knows where each element of each fragment is in the registers."""
        return all(statement.layout is not None for statement in self.memory)

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

    def fragment(self, operand: BufferLoad) -> tuple[int, ...]:
        """Shape of an operand's fragment, in elements."""
        return operand.tensor.shape

    def staged_dtype(self, operand: str) -> str:
        """Canonical dtype in which an operand is staged, by its name."""
        return self.staged_dtypes[[x.tensor.name for x in self.operands].index(operand)]

    def fragment_bytes(self, operand: BufferLoad) -> int:
        """Size of an operand's fragment in bytes as it is staged, rounded up."""
        bits = dtype(self.staged_dtype(operand.tensor.name)).bits
        return -(-operand.tensor.elements * bits // 8)

    def __str__(self) -> str:
        ranges = ", ".join(f"{it.name} < {it.extent}" for it in self.iterations)
        types = ", ".join(
            f"{load.tensor.name}: {dtype(str(load.tensor.dtype)).short}" for load in self.operands
        )
        lines = [self.name, f"  compute  {self.compute}", f"           {ranges}  ({types})"]
        lines += [
            f"  {'memory' if n == 0 else '':8} {statement}"
            for n, statement in enumerate(self.memory)
        ]
        if str(self.arithmetic):
            lines.append(f"  rounding {self.arithmetic}")
        return "\n".join(lines)


def _check_texts(intrinsic: Intrinsic) -> None:
    for key in ("name", "family", "source"):
        value = getattr(intrinsic, key)
        if not isinstance(value, str) or not value.strip():
            raise IntrinsicError(
                f"intrinsic {intrinsic.name!r}: {key}: expected a text, got {value!r}"
            )
    if not intrinsic.name.isidentifier():
        raise IntrinsicError(
            f"intrinsic {intrinsic.name!r}: name: expected letters, digits and underscores"
        )
    for timing in intrinsic.timing:
        if not isinstance(timing, Timing):
            raise IntrinsicError(f"{intrinsic.name}: timing: expected Timing, got {timing!r}")
    count = intrinsic.registers
    if type(count) is not int or count < 0:
        raise IntrinsicError(f"{intrinsic.name}: registers: expected zero or more, got {count!r}")


def _check_indices(name: str, compute: Compute) -> None:
    """Definition 4.1 knows no windows: ``p + r`` would be two iterations in one index."""
    for load in compute.operands:
        for index in load.indices:
            if len(index.terms) != 1 or index.constant or index.terms[0][1] != 1:
                raise IntrinsicError(
                    f"{name}: operand {load.tensor.name!r}: expected a single iteration as each "
                    f"index, got {str(index)!r}; {WINDOWS}"
                )


def _whole(statement: Memory, operand: BufferLoad) -> Memory:
    """A statement without indices moves the whole fragment, which is contiguous outside."""
    if statement.indices or not operand.indices:
        return statement
    shape = operand.tensor.shape
    strides = tuple(str(prod(shape[d + 1 :])) for d in range(len(shape)))
    indices = tuple(index.names[0] for index in operand.indices)
    return replace(statement, indices=indices, strides=strides)


def _check_statement(intrinsic: Intrinsic, statement: Memory) -> None:
    """A memory statement fits the operand that it moves."""
    operand = next(o for o in intrinsic.operands if o.tensor.name == statement.operand)
    where = f"{intrinsic.name}: memory statement of {statement.operand!r}"
    indices = tuple(index.names[0] for index in operand.indices)
    if statement.indices != indices:
        raise IntrinsicError(
            f"{where}: expected the fragment's indices {', '.join(indices) or 'none'}, "
            f"got {', '.join(statement.indices) or 'none'}"
        )
    if unknown := [n for n in statement.broadcast if n not in intrinsic.extents]:
        raise IntrinsicError(
            f"{where}: broadcast along {unknown[0]!r}; iterations are "
            f"{', '.join(intrinsic.extents)}"
        )
    size = intrinsic.fragment_bytes(operand)
    if statement.capacity and statement.capacity < size:
        raise IntrinsicError(
            f"{where}: capacity: expected at least one fragment, {size} bytes, "
            f"got {statement.capacity}"
        )
    expected = "store" if operand is intrinsic.destination else "load"
    if statement.staged:
        kind = dtype(str(operand.tensor.dtype))
        if expected == "store" or not dtype(statement.staged).represents(kind):
            raise IntrinsicError(
                f"{where}: staged: expected a dtype with every value of a source's {kind.name}, "
                f"got {statement.staged}"
            )
    if statement.direction == "store" and expected == "load":
        raise IntrinsicError(f"{where}: a source is loaded, not stored")
    if statement.layout is not None:
        statement.layout.check(statement.operand, indices, operand.tensor.shape)


def _check_arithmetic(intrinsic: Intrinsic) -> None:
    kind = dtype(intrinsic.dtypes[-1])
    rules = intrinsic.arithmetic
    if rules.saturate and not kind.is_integer:
        raise IntrinsicError(
            f"{intrinsic.name}: arithmetic: saturate: expected an integer destination, "
            f"got {kind.name}"
        )
    if (rules.bitwise or rules.flush) and kind.name != "float32":
        raise IntrinsicError(
            f"{intrinsic.name}: arithmetic: {rules}: expected a float32 destination, "
            f"got {kind.name}"
        )
