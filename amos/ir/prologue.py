"""Elementwise expressions that compute a source before it is multiplied.

``op.with_prologue("image", "relu(x[n,c,h,w] * scale[c])")`` makes the source ``image`` of
a statement a function of other tensors, which are inputs in its place. The expression is
that of an epilogue (:mod:`amos.ir.epilogue`, with its functions and its exact arithmetic)
without ``acc``; its tensors are indexed by the dimensions of the source. It is applied as
the source is staged, or folded while a constant is packed. Outside of the source
``pad`` reads the padding's value, not the expression of a zero. A prologue changes no access
of the statement, so mappings do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amos.errors import OperatorError
from amos.ir.epilogue import Elementwise
from amos.ir.expression import CASTS, Arithmetic, Node
from amos.ir.nodes import BufferLoad, Tensor

#: dtypes that a source may be computed in.
_VALUES = tuple(CASTS.values())


@dataclass(frozen=True)
class Prologue(Elementwise):
    """A source of a statement as an expression of other tensors.

    Attributes:
        dimensions: names of the source's dimensions, which index the tensors.
        dtype: canonical dtype of the source: floats are rounded to the nearest integer,
            ties to even, and clamped to its range, as an epilogue's results are.

    Raises:
        OperatorError: the expression reads no tensor, is of an accumulator, or is not
            elementwise.
    """

    tensor: str
    dimensions: tuple[str, ...]
    dtype: str

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"prologue of {self.tensor!r}"
        if len(set(self.dimensions)) != len(self.dimensions):
            raise OperatorError(f"{where}: a dimension is named twice in {self.head}")
        if any(node.name == "acc" for node in self.expression.nodes()):
            raise OperatorError(
                f"{where}: acc is what a sum has accumulated, which an epilogue has; read a tensor"
            )
        if self.dtype not in _VALUES:
            raise OperatorError(
                f"{where}: expected a source of {', '.join(_VALUES)}, got {self.dtype}"
            )
        if not self.loads:
            raise OperatorError(f"{where}: expected an expression of a tensor, got none in it")
        tensors: dict[str, Tensor] = {}
        for load in self.loads:
            if load.padded:
                raise OperatorError(f"{where}: {load}: only a source of the statement is padded")
            if tensors.setdefault(load.tensor.name, load.tensor) != load.tensor:
                raise OperatorError(f"{where}: {load.tensor.name!r} has two shapes or dtypes")
            if foreign := sorted(load.names - set(self.dimensions)):
                raise OperatorError(
                    f"{where}: {foreign[0]!r} is no dimension of {self.head}: it is not elementwise"
                )

    @cached_property
    def head(self) -> str:
        """The source with its dimensions."""
        return f"{self.tensor}[{', '.join(self.dimensions)}]"

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Distinct tensors, in order of first appearance."""
        return tuple(dict.fromkeys(load.tensor for load in self.loads))

    @property
    def kind(self) -> str:
        """``"int32"`` or ``"float32"``: kind of the expression before it becomes the source."""
        return self.expression.kind({})

    def compute(self, by: Arithmetic) -> Any:
        """Evaluate the expression, as its own kind, by NumPy's arithmetic or a kernel's."""
        return self.expression.compute({}, by).value

    def at(self, load: BufferLoad) -> Node:
        """Return the expression for one access to the source, with the indices of the access."""
        values = dict(zip(self.dimensions, load.indices, strict=True))
        return self.expression.with_loads(lambda read: read.substitute(values))

    def check(self, source: Tensor) -> None:
        """Refuse a prologue that does not give every element of a source its value.

        Raises:
            OperatorError: rank or dtype differ, an index leaves its tensor, or two
                dimensions in one index may read the same element.
        """
        where = f"prologue of {self.tensor!r}"
        if len(self.dimensions) != len(source.shape):
            raise OperatorError(
                f"{where}: {self.head} has {len(self.dimensions)} dimensions, "
                f"the source has {len(source.shape)}"
            )
        if source.dtype != self.dtype:
            raise OperatorError(f"{where}: it gives {self.dtype}, the source is {source.dtype}")
        extents = dict(zip(self.dimensions, source.shape, strict=True))
        for load in self.loads:
            if overrun := load.overrun(extents):
                raise OperatorError(f"{where}: {overrun}")
            for index in load.indices:
                if index.find_overlap(extents):
                    raise OperatorError(
                        f"{where}: index {index} of {load.tensor.name!r} is the same for different "
                        f"elements of {self.head}: it is not elementwise"
                    )

    def __str__(self) -> str:
        cast = next((name for name, kind in CASTS.items() if kind == self.dtype), None)
        plain = cast is None or self.dtype == self.kind
        value = str(self.expression) if plain else f"{cast}({self.expression})"
        return f"{self.head} = {value}"

    @property
    def text(self) -> str:
        """The expression as :meth:`Operator.with_prologue` reads it."""
        return str(self).removeprefix(f"{self.head} = ")
