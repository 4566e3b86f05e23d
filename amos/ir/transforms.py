"""Linear transforms: sums of products of one tensor with literal matrices.

A *literal* is a small matrix whose values are known when a kernel is compiled. A statement whose
factors are literals but one, such as
``v[a,b,y,x,c] += bt[a,i] * bt[b,j] * pad(image[y*4+i-1,x*4+j-1,c])``, transforms small tiles, as
the wavelets of a codec do, or Winograd's convolutions. Kernels unroll the loops of literals: zeros
vanish, and the tile is multiplied by one literal after the other, the last one first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

from amos.errors import OperatorError
from amos.ir.affine import Affine
from amos.ir.chain import Assignment, Chain
from amos.ir.dtypes import dtype
from amos.ir.epilogue import Elementwise, Epilogue
from amos.ir.nodes import BufferLoad, Iteration

#: Limit of operations of a tile, which are all unrolled.
_MOST_OPERATIONS = 4096


@dataclass(frozen=True)
class Literal:
    """A literal matrix, by rows, as a factor of a statement; the product sums over ``column``."""

    name: str
    values: tuple[tuple[int | float, ...], ...]
    row: str
    column: str

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.values), len(self.values[0])

    @property
    def term_count(self) -> int:
        """Number of terms in its sums."""
        return sum(bool(x) for row in self.values if not is_copy(row) for x in row)

    def __str__(self) -> str:
        return f"{self.name}[{self.row},{self.column}]"


def is_copy(row: Collection[float]) -> bool:
    """Return whether a row of a matrix selects one value."""
    return max(row) == sum(map(bool, row)) == 1


@dataclass(frozen=True, kw_only=True)
class Transform(Assignment):
    """``destination += literal * literal * … * source``.

    Its expression is the source. Sums of integers wrap around in the dtype of sums. Elements
    of the destination beyond its tensor are not stored.

    Attributes:
        literals: the factors, the last of which is applied first.
        epilogue: the expression of each sum that is stored; it reads at the destination's indices.

    Raises:
        OperatorError: a literal's shape is not that of its iterations, or it sums over no later
            iteration; a fraction is added to integers; too much would be unrolled.
    """

    literals: tuple[Literal, ...]
    epilogue: Epilogue | None = None

    def __post_init__(self) -> None:
        Elementwise.__post_init__(self)
        overrun = "" if self.source.padded else self.source.overrun(self.extents)
        if overrun:
            raise OperatorError(f"{self}: {overrun}")
        extents, spatial = self.extents, {it.name for it in self.spatial}
        axes = {name for name in self.source.names if name not in spatial}
        for literal in reversed(self.literals):
            if literal.shape != (
                rows_and_columns := (extents[literal.row], extents[literal.column])
            ):
                raise OperatorError(
                    f"{self}: {literal} has {rows_and_columns[0]} rows and {rows_and_columns[1]} "
                    f"columns by its iterations, and {literal.shape[0]} and {literal.shape[1]} by "
                    "its values"
                )
            if literal.column not in axes:
                raise OperatorError(
                    f"{self}: expected {literal} to sum over an index of what stands behind it, "
                    f"{', '.join(sorted(axes)) or 'which has none to sum over'}"
                )
            if literal.row in axes or literal.row in self.source.names:
                raise OperatorError(f"{self}: {literal.row} indexes what stands behind {literal}")
            axes = axes - {literal.column} | {literal.row}
        if axes - spatial:
            raise OperatorError(f"{self}: no literal sums over {', '.join(sorted(axes - spatial))}")
        if self.operation_count > _MOST_OPERATIONS:
            raise OperatorError(
                f"{self}: expected at most {_MOST_OPERATIONS} operations of a tile, as all are "
                f"unrolled, got {self.operation_count}"
            )
        self._check_output()

    def _check_output(self) -> None:
        into, final = self.output, dtype(self.sum_dtype)
        lane = into.indices[-1] if into.indices else None
        if lane is None or len(lane.terms) != 1 or lane.names[0] in self.unrolled:
            raise OperatorError(
                f"{self}: expected an iteration that indexes no literal as the last index of {into}"
            )
        values = [x for literal in self.literals for row in literal.values for x in row]
        is_exact = self.is_integer and all(isinstance(x, int) for x in values)
        if final.is_integer and not (final.bits in (16, 32) and is_exact):
            raise OperatorError(
                f"{self}: sums of {final.spelled}; those of integers are int16 or int32, and "
                "those with fractions floats"
            )
        if final.is_integer and (largest := max(map(abs, values))) > final.limits[1]:
            raise OperatorError(f"{self}: {largest} is too large a factor of {final.spelled}")
        for load in self.epilogue.loads if self.epilogue else ():
            sizes = dict(zip(into.indices, into.tensor.shape, strict=True))
            sizes |= {x: x.constant + 1 for x in load.indices if not x.terms and x.constant >= 0}
            pairs = zip(load.indices, load.tensor.shape, strict=True)
            if any(size < sizes.get(index, size + 1) for index, size in pairs):
                raise OperatorError(
                    f"{self}: expected the indices of {into}, and a shape no smaller, got {load} "
                    f"of {load.tensor.shape}"
                )

    def with_loads(
        self,
        place: Callable[[BufferLoad], BufferLoad],
        iterations: tuple[Iteration, ...] | None = None,
    ) -> Transform:
        """Replace every access, also the destination, and optionally the iterations."""
        return replace(
            self,
            expression=self.expression.with_loads(place),
            destination=place(self.destination),
            epilogue=self.epilogue and self.epilogue.with_loads(place),
            iterations=iterations or self.iterations,
        )

    def shift(self, starts: Mapping[str, int], tensors: Collection[str]) -> Transform:
        """Shift iterations to begin at zero; accesses to ``tensors`` add the starts."""
        places = {name: Affine(((name, 1),), start) for name, start in starts.items()}
        return self.with_loads(
            lambda load: load.substitute(places) if load.tensor.name in tensors else load
        )

    def check_reach(self) -> None:
        """Refuse to write an element twice, or not at all."""
        into = self.output
        names = [name for index in into.indices for name in index.names]
        for index, size in zip(into.indices, into.tensor.shape, strict=True):
            count = prod(self.extents[name] for name in index.names)
            is_dense = index.bounds(self.extents) == (0, count - 1) and size <= count
            overlaps = index.find_overlap(self.extents) or len(set(names)) < len(names)
            if overlaps or not is_dense:
                raise OperatorError(f"{self}: expected {into} to reach each element once")

    @property
    def is_integer(self) -> bool:
        """Whether the source has integers."""
        return dtype(str(self.source.tensor.dtype)).is_integer

    @property
    def source(self) -> BufferLoad:
        """The access that is transformed."""
        load = self.expression.load
        assert load is not None
        return load

    @property
    def loads(self) -> tuple[BufferLoad, ...]:
        """Accesses of the source and of the epilogue."""
        return (self.source, *(self.epilogue.loads if self.epilogue else ()))

    @property
    def unrolled(self) -> frozenset[str]:
        """The iterations of literals."""
        return frozenset(name for each in self.literals for name in (each.row, each.column))

    @property
    def sum_dtype(self) -> str:
        """dtype of sums: integers, those of the destination if they are stored, or float32."""
        kind = dtype(str(self.output.tensor.dtype))
        if self.epilogue is not None:
            return "int32" if self.is_integer else "float32"
        return kind.name if kind.is_integer else "float32"

    @property
    def operation_count(self) -> int:
        """Number of operations of a tile: sums of products, loads and stores."""
        sizes = {name: self.extents[name] for name in self.source.names & self.unrolled}
        total = prod(sizes.values())
        for literal in reversed(self.literals):
            del sizes[literal.column]
            total += literal.term_count * prod(sizes.values())
            sizes[literal.row] = self.extents[literal.row]
        stored = 1 + (self.epilogue.expression.operation_count if self.epilogue else 0)
        return total + prod(sizes.values()) * stored

    def __str__(self) -> str:
        return f"{self.output} += {' * '.join(map(str, (*self.literals, self.source)))}"


def transforms_of(chain: Chain) -> tuple[Transform, ...]:
    """Return the transforms of a chain."""
    return tuple(step for step in chain.steps if isinstance(step, Transform))


def unrolled_loops(chain: Chain) -> frozenset[str]:
    """Return the iterations of a chain's literals, which are unrolled."""
    return frozenset().union(*(step.unrolled for step in transforms_of(chain)))
