"""IR nodes shared by operators and intrinsics (AMOS, section 6, Table 4).

A tensor computation and the compute abstraction of an intrinsic (Definition 4.1)
are the same kind of statement, so both are one :class:`Compute` node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isinf, prod
from typing import Literal

import numpy as np

from amos.errors import OperatorError, quote
from amos.ir.affine import Affine
from amos.ir.combining import COMBINERS, JOINS, fills_lanes, function, neutral
from amos.ir.dtypes import DType, dtype
from amos.ir.limits import LOOPS, TENSOR, WORD, whole_number
from amos.ir.padding import check_padding, padded_text, padding_of, plain_number

Kind = Literal["spatial", "reduce"]


@dataclass(frozen=True)
class Iteration:
    """One loop, running over ``range(extent)``.

    ``kind`` is ``"spatial"`` if the iteration indexes the destination and
    ``"reduce"`` if it does not.
    """

    name: str
    extent: int
    kind: Kind

    def __post_init__(self) -> None:
        extent = whole_number(self.extent, f"extent of iteration {self.name!r}")
        object.__setattr__(self, "extent", extent)

    @property
    def is_reduce(self) -> bool:
        """True if the destination is not indexed by this iteration."""
        return self.kind == "reduce"


class LoopNest:
    """What the iterations of a statement, spatial ones first, say of its loops."""

    iterations: tuple[Iteration, ...]

    @property
    def extents(self) -> dict[str, int]:
        """Extent of each iteration by name; of an intrinsic its problem size."""
        return {it.name: it.extent for it in self.iterations}

    @property
    def spatial(self) -> tuple[Iteration, ...]:
        """Iterations that index the destination."""
        return tuple(it for it in self.iterations if it.kind == "spatial")

    @property
    def reduce(self) -> tuple[Iteration, ...]:
        """Iterations that are summed, or otherwise combined, over."""
        return tuple(it for it in self.iterations if it.kind == "reduce")


@dataclass(frozen=True)
class Tensor:
    """An n-dimensional buffer.

    Attributes:
        dtype: canonical name; ``None`` while it is still open. A range, as
            :func:`amos.ir.dtype` reads it, is moved to ``bounds``.
        bounds: smallest and largest declared value; ``None`` if all values may occur.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None
    bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if any(s < 1 for s in self.shape):
            raise OperatorError(
                f"shape of tensor {self.name!r}: expected positive sizes, got {quote(self.shape)}"
            )
        if self.elements > TENSOR:
            raise OperatorError(
                f"shape of tensor {self.name!r}: expected at most 2**56 elements, "
                f"got {quote(self.shape)}"
            )
        if self.dtype is not None:
            kind = dtype(self.dtype)
            object.__setattr__(self, "dtype", kind.name)
            object.__setattr__(self, "bounds", kind.bounds or self.bounds)

    @property
    def kind(self) -> DType | None:
        """The dtype with the bounds; ``None`` while it is open."""
        if self.dtype is None:
            return None
        kind = dtype(self.dtype)
        return kind if self.bounds is None else replace(kind, bounds=self.bounds)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a NumPy array that holds it; an open dtype counts as float32."""
        return self.elements * dtype(self.dtype or "float32").numpy.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes in a kernel's memory; an open dtype counts as float32."""
        return -(-self.elements * dtype(self.dtype or "float32").bits // 8)


@dataclass(frozen=True)
class BufferLoad:
    """Access to one element of a tensor: one affine expression for each dimension.

    ``padded`` means that a read outside the tensor gives ``padding`` (the ``pad(...)``
    of the operator text), by default zero, instead of being an error. An infinity means
    the smallest or largest value of a dtype without infinities.

    Raises:
        OperatorError: there are more or fewer indices than dimensions, or ``padding`` is
            no value of the tensor's dtype.
    """

    tensor: Tensor
    indices: tuple[Affine, ...]
    padded: bool = False
    padding: int | float = 0

    def __post_init__(self) -> None:
        where = f"padding of {self.tensor.name!r}"
        object.__setattr__(self, "padding", plain_number(self.padding, where))
        if self.padding and not self.padded:
            raise OperatorError(f"{where}: {self} is not padded, so that it has no value outside")
        if self.padding and (kind := self.tensor.kind) is not None:
            object.__setattr__(self, "padding", padding_of(self.padding, kind))
            check_padding(self.padding, kind, where)
        if len(self.indices) != len(self.tensor.shape):
            raise OperatorError(
                f"access to {self.tensor.name!r}: {len(self.tensor.shape)} dimensions, "
                f"but {len(self.indices)} indices"
            )

    @cached_property
    def names(self) -> frozenset[str]:
        """Iterations that occur in any index: one row of the access matrix."""
        return frozenset(n for index in self.indices for n in index.names)

    @cached_property
    def flat(self) -> Affine:
        """The element's place in the tensor, whose last index is the fastest."""
        flat = Affine()
        for index, size in zip(self.indices, self.tensor.shape, strict=True):
            flat = flat * size + index
        return flat

    def overrun(self, extents: Mapping[str, int]) -> str:
        """Describe a read or write outside of the tensor, in words; empty if there is none."""
        for d, (index, size) in enumerate(zip(self.indices, self.tensor.shape, strict=True)):
            low, high = index.bounds(extents)
            if low < 0 or high >= size:
                return (
                    f"index {index} of {self.tensor.name!r} runs from {low} to {high}, "
                    f"outside dimension {d} of size {size}"
                )
        return ""

    def substitute(self, values: Mapping[str, Affine]) -> BufferLoad:
        """Replace each iteration by an expression of other iterations."""
        return replace(self, indices=tuple(index.substitute(values) for index in self.indices))

    def __str__(self) -> str:
        inner = f"{self.tensor.name}[{', '.join(map(str, self.indices))}]"
        return padded_text(inner, self.padding) if self.padded else inner


@dataclass(frozen=True)
class Compute(LoopNest):
    """``dst (+)= source * source * …`` over iterations, or the same with other functions.

    The arithmetic ``F`` of Definition 4.1 is ``join`` of the sources. With a ``combiner`` the
    statement is ``+=``, ``max=`` and so on, on a destination that starts at the combiner's
    neutral value (operators) or at the value of the accumulator (intrinsics).

    Attributes:
        iterations: spatial ones first.
        combiner: ``"+"``, ``"*"``, ``"max"``, ``"min"``, or nothing for ``=``.
        join: ``"*"``, ``"+"``, ``"-"``, ``"max"`` or ``"min"``; ``"*"`` for a single source.

    Raises:
        OperatorError: too many iterations or points to count, an unknown function, or one
            that compares values which the destination cannot hold.
    """

    dst: BufferLoad
    sources: tuple[BufferLoad, ...]
    iterations: tuple[Iteration, ...]
    combiner: str = "+"
    join: str = "*"

    def __post_init__(self) -> None:
        if self.combiner not in ("", *COMBINERS):
            raise OperatorError(
                f"combiner: expected {_list_symbols(COMBINERS)}, got {self.combiner!r}"
            )
        if self.join not in JOINS:
            raise OperatorError(f"join: expected {_list_symbols(JOINS)}, got {self.join!r}")
        if len(self.sources) < 2:
            object.__setattr__(self, "join", "*")
        if len(self.iterations) > LOOPS:
            raise OperatorError(f"expected at most {LOOPS} iterations, got {len(self.iterations)}")
        if prod(it.extent for it in self.iterations) >= WORD:
            raise OperatorError(
                "expected fewer than 2**63 points, the product of all extents; got "
                + quote(self.extents)
            )
        if self.dst.tensor.bounds is not None:
            raise OperatorError(
                f"{self}: no range of {self.dst.tensor.name!r} can be declared, which is written"
            )
        self._check_compared()
        for load in self.sources:
            if isinf(load.padding) and self.combiner not in ("max", "min"):
                raise OperatorError(
                    f"{self}: padding of {load.tensor.name!r}: only max= and min= take an infinity"
                )

    def _check_compared(self) -> None:
        """Refuse to compare values that are others as values of the destination."""
        into = self.dst.tensor
        if into.dtype is None or not {self.combiner, self.join} & {"max", "min"}:
            return
        for tensor in (load.tensor for load in self.sources):
            if (kind := tensor.kind) is not None and not dtype(into.dtype).represents(kind):
                raise OperatorError(
                    f"{self}: {into.name!r} is {into.dtype}, which does not hold every value of "
                    f"{tensor.name!r}, {tensor.dtype}, so that they cannot be compared in it"
                )

    @property
    def accumulates(self) -> bool:
        """Whether the destination keeps its earlier value, as with ``+=``."""
        return self.combiner != ""

    @property
    def sums_products(self) -> bool:
        """Whether the statement is a sum of products, or a product."""
        return self.combiner in ("", "+") and self.join == "*"

    def neutral(self, kind: str) -> int | float:
        """Return the start value of accumulators of a dtype, which also fills unused lanes."""
        return neutral(self.combiner, kind)

    def fills_lanes(self, kind: str, *, arbitrary_source: bool = False) -> bool:
        """Return whether such lanes keep the result; see :func:`~amos.ir.combining.fills_lanes`."""
        return fills_lanes(
            self.combiner, self.join, len(self.sources), kind, arbitrary_source=arbitrary_source
        )

    @property
    def operands(self) -> tuple[BufferLoad, ...]:
        """Sources in written order, then the destination: the rows of X and Z."""
        return (*self.sources, self.dst)

    def with_loads(self, change: Callable[[BufferLoad], BufferLoad]) -> Compute:
        """Replace every access."""
        return replace(self, dst=change(self.dst), sources=tuple(map(change, self.sources)))

    @property
    def arithmetic(self) -> str:
        """``multiply-add``, ``add``, ``multiply``, ``copy``, or a formula as ``max= a + b``."""
        several = len(self.sources) > 1
        if self.sums_products:
            if self.accumulates:
                return "multiply-add" if several else "add"
            return "multiply" if several else "copy"
        names = [chr(ord("a") + n) for n in range(len(self.sources))]
        return f"{self.combiner}= {function(self.join).text(names)}"

    def __str__(self) -> str:
        sign = f"{self.combiner}="
        return f"{self.dst} {sign} {function(self.join).text(list(map(str, self.sources)))}"


def _list_symbols(symbols: tuple[str, ...]) -> str:
    return ", ".join(map(repr, symbols))


class Computation(LoopNest):
    """A single statement: an operator, or the meaning of an intrinsic."""

    compute: Compute

    @property
    def statements(self) -> tuple[Computation, ...]:
        """This statement alone; a chain has several."""
        return (self,)

    @property
    def iterations(self) -> tuple[Iteration, ...]:  # type: ignore[override]
        """All iterations: the columns of matching matrices of an operator, rows of an intrinsic."""
        return self.compute.iterations

    @property
    def sources(self) -> tuple[BufferLoad, ...]:
        """The accesses to the sources, in written order."""
        return self.compute.sources

    @property
    def operands(self) -> tuple[BufferLoad, ...]:
        """Sources in written order, then the destination."""
        return self.compute.operands

    @cached_property
    def access_matrix(self) -> np.ndarray:
        """X or Z of Algorithm 1 (AMOS, section 5.2, Figure 4).

        A bool array, operands (sources, then destination) × iterations; true where the
        iteration occurs in an index of the operand.
        """
        rows = [[it.name in load.names for it in self.iterations] for load in self.operands]
        return np.array(rows, dtype=bool).reshape(len(self.operands), len(self.iterations))

    @property
    def points(self) -> int:
        """Number of scalar statements that are executed."""
        return prod(it.extent for it in self.iterations)

    @property
    def operations(self) -> int:
        """Arithmetic operations: two where sources are joined and combined, else one."""
        both = self.compute.accumulates and len(self.sources) > 1
        return self.points * (2 if both else 1)
