"""Addresses at which a memory statement places the elements of a fragment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np

from amos.errors import IntrinsicError

#: Most elements of a fragment, addresses that it spans, and places of a layout; hardware has far
#: fewer.
PLACES = 2**20


@dataclass(frozen=True)
class Placement:
    """Addresses of a fragment's elements, counted in elements from its base address.

    Attributes:
        step: from a fragment to the next one: its span, rounded up to the alignment.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    step: int

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Numbers of the indices, the one with the longest stride first."""
        return tuple(sorted(range(len(self.shape)), key=lambda d: -self._reach(d)))

    def _reach(self, d: int) -> float:
        """Return the distance of a step; a dimension of extent 1 reaches what is inside it."""
        inner = [self._reach(e) for e in range(d + 1, len(self.shape))]
        return self.strides[d] if self.shape[d] > 1 else max(inner, default=0.0)

    @cached_property
    def dense(self) -> bool:
        """Whether fragments lie side by side without gaps, inside and between them."""
        return self.step == prod(self.shape)

    def resize(self, shape: tuple[int, ...]) -> Placement:
        """Place a fragment of another shape in the same order, without gaps."""
        strides, step = {}, 1
        for d in reversed(self.order):
            strides[d] = step
            step *= shape[d]
        return Placement(shape, tuple(strides[d] for d in range(len(shape))), step)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Address of each element: int64 array of :attr:`shape`."""
        grid = np.indices(self.shape, np.int64)
        return np.asarray(np.tensordot(np.array(self.strides, np.int64), grid, 1))


def placement(shape: Sequence[int], strides: Sequence[str], alignment: int, bits: int) -> Placement:
    """Place a fragment by strides that are numbers or symbols.

    The compiler sets the symbols: each is the least stride that steps over the indices behind it,
    and over those whose stride is a number.

    Args:
        alignment: bytes that a base address is a multiple of.
        bits: of an element.

    Raises:
        IntrinsicError: two elements have one address.
    """
    values = {d: int(s) for d, s in enumerate(strides) if s.isdigit()}
    for d in reversed(range(len(shape))):
        if d not in values:
            values[d] = max((shape[e] * s for e, s in values.items()), default=1)
    ordered = tuple(values[d] for d in range(len(shape)))
    span = 1 + sum((n - 1) * s for n, s in zip(shape, ordered, strict=True))
    unit = alignment * 8 // gcd(alignment * 8, bits) if alignment > 1 else 1
    result = Placement(tuple(shape), ordered, -(-span // unit) * unit)
    what = f"strides {' and '.join(map(str, ordered))} of a fragment of {_shape_text(shape)}"
    if span > PLACES:
        raise IntrinsicError(f"{what}: expected at most {PLACES} addresses, got {span}")
    if len(np.unique(result.offsets)) < prod(shape):
        raise IntrinsicError(f"{what} give two elements one address")
    return result


def _shape_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
