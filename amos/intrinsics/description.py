"""What an intrinsic means and what it moves (AMOS, section 4).

:class:`Intrinsic` joins a compute abstraction (Definition 4.1), one
:class:`~amos.ir.nodes.Compute` node, with a memory abstraction (Definition 4.2),
a list of :class:`Memory` statements. Implementations live in ``amos.codegen``
and are looked up by the intrinsic's name; the meaning needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from amos.errors import IntrinsicError, OperatorError, ParseError
from amos.ir import BufferLoad, Compute, Iteration, access_matrix, dtype

__all__ = ["Intrinsic", "Memory"]


@dataclass(frozen=True)
class Memory:
    """One statement of a memory abstraction: ``Memory(Tensor, String, BufferLoad)``.

    A load moves a fragment from ``scope`` into registers, a store moves it back.
    The address of fragment element ``(x, y, …)`` is
    ``address + x*strides[0] + y*strides[1] + …``, in elements.

    Attributes:
        operand: the operand's name in the compute abstraction.
        direction: ``"load"`` or ``"store"``.
        scope: where the data is outside registers (``"global"``, ``"shared"``,
            ``"memory"``).
        indices: the intrinsic iterations that index the fragment, in order.
        address: symbol of the base address.
        strides: for each index the symbol of its stride, or ``"1"``.
        broadcast: intrinsic iterations along which the hardware replicates the
            fragment by itself (VNNI's broadcast of four bytes to all lanes).
        register_scope: name of the scope that the fragment lives in.
    """

    operand: str
    direction: Literal["load", "store"]
    scope: str
    indices: tuple[str, ...]
    address: str
    strides: tuple[str, ...]
    broadcast: tuple[str, ...] = ()
    register_scope: str = "reg"

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.indices):
            raise IntrinsicError(
                f"memory statement of {self.operand!r}: {len(self.indices)} indices "
                f"but {len(self.strides)} strides"
            )

    def __str__(self) -> str:
        fragment = f"{self.register_scope}.{self.operand}[{', '.join(self.indices)}]"
        terms = [
            i if s == "1" else f"{i} * {s}" for i, s in zip(self.indices, self.strides, strict=True)
        ]
        outside = f"{self.scope}.{self.operand}[{' + '.join([self.address, *terms])}]"
        if self.direction == "store":
            return f"{outside} = {fragment}"
        note = f"  (broadcast along {', '.join(self.broadcast)})" if self.broadcast else ""
        return f"{fragment} = {outside}{note}"


@dataclass(frozen=True)
class Intrinsic:
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
        registers: number of registers that hold fragments, per thread of
            execution; 0 if it is not known.
    """

    name: str
    compute: Compute
    memory: tuple[Memory, ...]
    family: str
    source: str
    description: str = ""
    requires: tuple[str, ...] = ()
    registers: int = 0

    def __post_init__(self) -> None:
        operands = [load.tensor.name for load in self.compute.operands]
        if len(set(operands)) != len(operands):
            raise IntrinsicError(f"{self.name}: operand names repeat: {', '.join(operands)}")
        for load in self.compute.operands:
            if load.tensor.dtype is None:
                raise IntrinsicError(f"{self.name}: operand {load.tensor.name!r} has no dtype")
            if any(len(index.terms) != 1 or index.constant for index in load.indices):
                raise IntrinsicError(
                    f"{self.name}: operand {load} of an intrinsic is indexed by single iterations"
                )
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

    @staticmethod
    def define(
        name: str,
        compute: str,
        extents: Mapping[str, int],
        dtypes: Mapping[str, str],
        memory: Sequence[Memory],
        *,
        family: str,
        source: str,
        description: str = "",
        requires: Sequence[str] = (),
        registers: int = 0,
    ) -> Intrinsic:
        """Describe an intrinsic by one line of math and its memory statements.

        Args:
            name: registry key.
            compute: for example ``"Dst[i1] += Src1[r1] * Src2[i1, r1]"``.
            extents: extent of each intrinsic iteration (the problem size).
            dtypes: dtype of each operand.
            memory: one statement for each operand.

        Raises:
            IntrinsicError: the parts do not fit together.
        """
        from amos.ir.parser import parse_statement

        try:
            node = parse_statement(compute, extents, dtypes)
        except (ParseError, OperatorError) as error:
            raise IntrinsicError(f"intrinsic {name!r}: {error}") from error
        return Intrinsic(
            name,
            node,
            tuple(memory),
            family,
            source,
            description,
            tuple(requires),
            registers,
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

    @property
    def operations(self) -> int:
        """Arithmetic operations of one call."""
        points = 1
        for it in self.iterations:
            points *= it.extent
        return points * (2 if self.compute.arithmetic == "multiply-add" else 1)

    def fragment(self, operand: BufferLoad) -> tuple[int, ...]:
        """Shape of an operand's fragment, in elements."""
        return operand.tensor.shape

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
        return "\n".join(lines)
