"""Memory traffic of an intrinsic: the memory abstraction (AMOS, Definition 4.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np

from amos.errors import IntrinsicError, OperatorError, quote
from amos.intrinsics.expression import evaluate
from amos.intrinsics.placement import PLACES, Placement, placement
from amos.ir.affine import Affine
from amos.ir.dtypes import dtype
from amos.ir.nodes import BufferLoad, Tensor

#: Scopes that need no buffer: registers, and the memories of every machine.
REGISTERS = ("reg", "vector", "tile", "acc")
MEMORIES = ("global", "memory", "shared")

_SIDE = re.compile(r"\s*([A-Za-z_]\w*)\s*\.\s*([A-Za-z_]\w*)\s*\[([^\[\]]*)\]\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")
#: Advice for ``p + r``: Definition 4.1 has one iteration in each index.
WINDOWS = (
    "a unit with a window is described by the call for one place of the window, whose loops "
    "stay in the operator"
)
_FORM = "'reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]'"


@dataclass(frozen=True)
class FragmentLayout:
    """Lane and place of each element of a fragment.

    Attributes:
        lanes: lanes (threads of a warp, rows of a tile) that share a fragment.
        elements: elements that each lane holds, in the order of its registers.
        where: for each index of the fragment a formula over ``lane`` and ``e``.

    Raises:
        IntrinsicError: a formula mentions anything else.

    >>> FragmentLayout(32, 2, (("i1", "lane // 4"), ("i2", "lane % 4 * 2 + e"))).table("i2")[5]
    array([2, 3])
    """

    lanes: int
    elements: int
    where: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for _, formula in self.where:
            evaluate(formula, {"lane": 0, "e": 0})
        for name in ("lanes", "elements"):
            if getattr(self, name) < 1:
                raise IntrinsicError(
                    f"layout: {name}: expected a positive integer, got {quote(getattr(self, name))}"
                )
        if self.lanes * self.elements > PLACES:
            raise IntrinsicError(
                f"layout: expected at most {PLACES} places, lanes times elements, "
                f"got {self.lanes} times {self.elements}"
            )

    def table(self, index: str) -> np.ndarray:
        """Evaluate a fragment index: int array, lanes × elements."""
        lane, e = np.ogrid[: self.lanes, : self.elements]
        value = evaluate(dict(self.where)[index], {"lane": lane, "e": e})
        return np.broadcast_to(value, (self.lanes, self.elements)).astype(np.int64)

    def check(self, operand: str, indices: tuple[str, ...], shape: tuple[int, ...]) -> None:
        """Check that the same number of lanes holds each element of the fragment, at least one.

        Raises:
            IntrinsicError: an index has no formula, or the layout misses elements.
        """
        if [name for name, _ in self.where] != list(indices):
            raise IntrinsicError(
                f"layout of {operand!r}: expected a formula for {', '.join(indices) or 'nothing'}, "
                f"got {', '.join(name for name, _ in self.where) or 'nothing'}"
            )
        tables = [self.table(name) for name in indices]
        if any(t.min() < 0 or t.max() >= n for t, n in zip(tables, shape, strict=True)):
            raise IntrinsicError(f"layout of {operand!r} leaves the fragment of shape {shape}")
        slots = np.ravel_multi_index(tuple(tables), shape).reshape(-1)
        counts = np.bincount(slots, minlength=int(np.prod(shape)))
        if counts.min() < 1 or counts.min() != counts.max():
            raise IntrinsicError(
                f"layout of {operand!r}: expected each of {counts.size} elements to be held "
                f"equally often, got from {counts.min()} to {counts.max()} times"
            )


@dataclass(frozen=True)
class Memory:
    """One statement of a memory abstraction: ``Memory(Tensor, String, BufferLoad)`` (Table 4).

    A load moves a fragment from ``scope`` into registers, a store moves it back. As part of
    an intrinsic it is an IR node of the :attr:`tensor` that it writes, the ``scope``, and the
    access that it reads, :attr:`load`. The address of fragment element ``(x, y, …)`` is
    ``address + x*strides[0] + y*strides[1] + …``, in elements, also in staged operands:
    strides that are numbers, the order that they imply, and the alignment of the address hold
    there too (:attr:`placement`); a backend that cannot honour them raises an error.

    Attributes:
        operand: the operand's name in the compute abstraction.
        direction: ``"load"`` or ``"store"``.
        scope: memory that holds the data outside registers (``"global"``, ``"shared"``,
            ``"memory"``).
        indices: the intrinsic iterations that index the fragment, in order; as part
            of an intrinsic, an empty list means all of them, contiguous in ``scope``.
        address: symbol of the base address.
        strides: for each index the symbol of its stride, or a number.
        broadcast: intrinsic iterations along which the hardware replicates the
            fragment by itself (VNNI's broadcast of four bytes to all lanes).
        register_scope: name of the scope that the fragment lives in.
        capacity: bytes that the buffer on chip holds (``register_scope``), which all
            operands of that scope share; 0 if another statement says it, or if it is no buffer.
        banks: of that buffer. With more than one, a tile that is filled or emptied while
            another is in use begins at a bank of its own.
        double: whether the buffer can be filled or emptied while it is in use at all.
        alignment: bytes that the base address must be a multiple of; 1 for any address.
        explicit: false if the compute instruction takes the operand from
            ``scope`` itself, so that no load or store instruction is needed.
        write_interval: cycles that must pass between two writes to the same
            address of a store's scope; 0 if there is no such constraint.
        layout: lane and register of each element, if known to software.
        vectors: bytes that one access of a copy towards ``scope`` may have; none
            if the instruction does not restrict them.
        transposes: whether the instruction can also move the fragment with its two strides
            swapped (``col_major`` of ``load_matrix_sync``).
        staged: dtype that the instruction reads from ``scope``; staging converts the
            operator's values to it, exactly. Empty: the operand's own.
        fragment: the operand's fragment; the intrinsic sets it.
    """

    operand: str
    direction: Literal["load", "store"]
    scope: str
    indices: tuple[str, ...]
    address: str
    strides: tuple[str, ...]
    broadcast: tuple[str, ...] = ()
    register_scope: str = "reg"
    capacity: int = 0
    banks: int = 1
    double: bool = True
    alignment: int = 1
    explicit: bool = True
    write_interval: int = 0
    layout: FragmentLayout | None = None
    vectors: tuple[int, ...] = ()
    transposes: bool = False
    staged: str = ""
    fragment: Tensor | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        where = f"memory statement of {self.operand!r}"
        if len(self.strides) != len(self.indices):
            raise IntrinsicError(
                f"{where}: {len(self.indices)} indices but {len(self.strides)} strides"
            )
        if self.direction not in ("load", "store"):
            raise IntrinsicError(f"{where}: expected 'load' or 'store', got {self.direction!r}")
        for name in ("capacity", "write_interval"):
            if getattr(self, name) < 0:
                raise IntrinsicError(
                    f"{where}: {name}: expected zero or more, got {getattr(self, name)!r}"
                )
        if self.banks < 1:
            raise IntrinsicError(f"{where}: banks: expected 1 or more, got {self.banks!r}")
        if bad := [s for s in self.strides if not (s.isdigit() or _NAME.fullmatch(s))]:
            raise IntrinsicError(f"{where}: stride: expected a number or a name, got {bad[0]!r}")
        if self.staged:
            try:
                object.__setattr__(self, "staged", dtype(self.staged).name)
            except OperatorError as error:
                raise IntrinsicError(f"{where}: staged: {error}") from None
        if min(self.vectors, default=1) < 1:
            raise IntrinsicError(
                f"{where}: vectors: expected positive numbers of bytes, got {self.vectors!r}"
            )
        if self.alignment < 1 or self.alignment.bit_count() != 1:
            raise IntrinsicError(
                f"{where}: alignment: expected a power of two, got {self.alignment!r}"
            )

    @staticmethod
    def parse(text: str, **extra: Any) -> Memory:
        """Read a statement as the paper writes it.

        Args:
            text: for example ``reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]``;
                the symbol of a base address begins with ``addr``.
            extra: any further attribute of :class:`Memory`.

        Raises:
            IntrinsicError: the text is no such statement.

        >>> str(Memory.parse("global.Dst[addr_c + i1*4 + i2] = reg.Dst[i1, i2]"))
        'global.Dst[addr_c + i1 * 4 + i2] = reg.Dst[i1, i2]'
        """
        if not isinstance(text, str):
            _refuse(text, type(text).__name__)
        sides = text.split("=")
        if len(sides) != 2:
            _refuse(text, f"{len(sides) - 1} signs '='")
        matches = [_SIDE.fullmatch(side) for side in sides]
        if (bad := next((n for n, match in enumerate(matches) if match is None), None)) is not None:
            _refuse(text, f"{sides[bad].strip()!r}")
        lhs, rhs = ([token.strip() for token in match.groups()] for match in matches if match)
        if lhs[1] != rhs[1]:
            _refuse(text, f"two operands, {lhs[1]!r} and {rhs[1]!r}")
        addressed = [side for side in (lhs, rhs) if side[2].startswith("addr")]
        if len(addressed) != 1:
            _refuse(text, f"{len(addressed)} sides with a base address addr…")
        direction: Literal["load", "store"] = "store" if addressed[0] is lhs else "load"
        location, fragment = (lhs, rhs) if direction == "store" else (rhs, lhs)
        indices = tuple(i.strip() for i in fragment[2].split(",")) if fragment[2] else ()
        if wide := [i for i in indices if not _NAME.fullmatch(i)]:
            _refuse(
                text, f"index {wide[0]!r} of a fragment, which is no single iteration; {WINDOWS}"
            )
        address, strides = _address(text, location[2], indices)
        return Memory(
            lhs[1],
            direction,
            location[0],
            indices,
            address,
            strides,
            register_scope=fragment[0],
            **extra,
        )

    def reorder(self, order: tuple[int, ...]) -> Memory:
        """Reorder the indices of the fragment."""
        indices, strides = (tuple(x[d] for d in order) for x in (self.indices, self.strides))
        layout = self.layout
        if layout is not None:
            layout = replace(layout, where=tuple(layout.where[d] for d in order))
        return replace(self, indices=indices, strides=strides, layout=layout)

    @cached_property
    def placement(self) -> Placement:
        """Addresses of the fragment's elements, relative to its base address.

        Raises:
            IntrinsicError: two of them are at one place, or this is of no intrinsic.
        """
        shape, kind = self._moved
        try:
            return placement(shape, self.strides, self.alignment, dtype(kind).bits)
        except IntrinsicError as error:
            raise IntrinsicError(f"memory statement of {self.operand!r}: {error}") from None

    @property
    def tensor(self) -> Tensor:
        """The buffer that the statement writes."""
        return self.store.tensor

    @property
    def load(self) -> BufferLoad:
        """The access that is read, for each element of the fragment."""
        return self._fragment_access if self.direction == "store" else self._memory_access

    @property
    def store(self) -> BufferLoad:
        """The access that is written, for each element of the fragment."""
        return self._memory_access if self.direction == "store" else self._fragment_access

    @cached_property
    def _fragment_access(self) -> BufferLoad:
        """The fragment's element."""
        tensor = Tensor(f"{self.register_scope}.{self.operand}", *self._moved)
        return BufferLoad(tensor, tuple(Affine.of({index: 1}) for index in self.indices))

    @cached_property
    def _memory_access(self) -> BufferLoad:
        """Its access relative to the base address, within the memory that a fragment spans."""
        terms = zip(self.indices, self.placement.strides, strict=True)
        tensor = Tensor(f"{self.scope}.{self.operand}", (self.placement.step,), self._moved[1])
        return BufferLoad(tensor, (Affine.of([(self.address, 1), *terms]),))

    @property
    def _moved(self) -> tuple[tuple[int, ...], str]:
        """The fragment with the shape and dtype of the transfer."""
        if self.fragment is None:
            raise IntrinsicError(
                f"memory statement of {self.operand!r}: expected one of an intrinsic's memory, "
                "which has sizes; got one alone"
            )
        return self.fragment.shape, self.staged or str(self.fragment.dtype)

    @property
    def statement(self) -> str:
        """The statement as :meth:`parse` reads it."""
        fragment = f"{self.register_scope}.{self.operand}[{', '.join(self.indices)}]"
        terms = [
            i if s == "1" else f"{i} * {s}" for i, s in zip(self.indices, self.strides, strict=True)
        ]
        location = f"{self.scope}.{self.operand}[{' + '.join([self.address, *terms])}]"
        sides = (location, fragment) if self.direction == "store" else (fragment, location)
        return " = ".join(sides)

    def __str__(self) -> str:
        notes = [f"staged as {dtype(self.staged).short}"] if self.staged else []
        if self.broadcast:
            notes.append(f"broadcast along {', '.join(self.broadcast)}")
        return f"{self.statement}  ({'; '.join(notes)})" if notes else self.statement


def _refuse(text: str, got: str) -> NoReturn:
    raise IntrinsicError(f"memory statement {text!r}: expected the form {_FORM}, found {got}")


def _address(text: str, sum_: str, indices: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    address, *terms = (term.strip() for term in sum_.split("+"))
    if not _NAME.fullmatch(address):
        _refuse(text, f"base address {address!r}")
    strides: dict[str, str] = {}
    for term in terms:
        index, _, stride = (factor.strip() for factor in term.partition("*"))
        if index not in indices or index in strides or not re.fullmatch(r"\w*", stride):
            _refuse(text, f"term {term!r}; the fragment's indices are {', '.join(indices)}")
        strides[index] = stride or "1"
    if missing := [i for i in indices if i not in strides]:
        _refuse(text, f"an address without {', '.join(missing)}")
    return address, tuple(strides[i] for i in indices)
