"""Accesses of drawn chains, and their products as operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.support.oracle.bounds import Bounded

__all__ = ["Layer", "Read"]


@dataclass(frozen=True)
class Read:
    """An access: for each dimension a loop, its step, a second loop or nothing, and an offset."""

    name: str
    indices: tuple[tuple[str, int, str, int], ...]
    padded: bool = False

    def __str__(self) -> str:
        inner = ",".join(
            loop + (f"*{step}" if step != 1 else "") + (f"+{more}" if more else "")
            + (f"-{-offset}" if offset else "")
            for loop, step, more, offset in self.indices
        )  # fmt: skip
        return f"pad({self.name}[{inner}])" if self.padded else f"{self.name}[{inner}]"

    @property
    def loops(self) -> list[str]:
        """Those of its indices, in order."""
        return [name for a, _, b, _ in self.indices for name in (a, b) if name]

    def at(self, arrays: Mapping[str, Bounded], grid: Mapping[str, np.ndarray]) -> Bounded:
        """The elements at all points; zero beyond the tensor."""
        array, beyond, places = arrays[self.name], np.False_, []
        for (a, step, b, offset), size in zip(self.indices, array.value.shape, strict=True):
            place = grid[a] * step + (grid[b] if b else 0) + offset
            beyond = beyond | (place < 0) | (place >= size)
            places.append(np.clip(place, 0, size - 1))
        assert self.padded or not np.any(beyond)
        read = array.at(tuple(places))
        return Bounded(np.where(beyond, 0, read.value), np.where(beyond, 0, read.error))


@dataclass(frozen=True)
class Layer:
    """A product as an operator.

    Attributes:
        text: of its statement.
        sources: what it multiplies.
        dtypes: of its tensors.
        epilogue: of what is stored; may be empty.
        more: dtypes of tensors of the epilogue.
    """

    text: str
    sources: tuple[str, ...]
    dtypes: Mapping[str, str]
    epilogue: str
    more: Mapping[str, str]
