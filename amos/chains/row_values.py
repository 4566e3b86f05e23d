"""Values of a tensor while one of its iterations comes in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amos.ir import Affine, BufferLoad, dtype


@dataclass(frozen=True)
class Divisor:
    """A running sum that values are yet to be divided by.

    Attributes:
        total: where it is.
        quotient: the name of the operation, a division or a function that divides.
    """

    total: BufferLoad
    quotient: str


@dataclass(frozen=True)
class RowValue:
    """Values of a tensor that depends on the cut iteration.

    Attributes:
        written: the access of the chain that writes it; the others have its iterations.
        read: where its values are.
        scale: the running maximum to which it is relative.
        divisors: running sums that it is yet to be divided by.
        combiner: of a running one; nothing for a part of a row.
    """

    written: BufferLoad
    read: BufferLoad
    scale: BufferLoad | None = None
    divisors: tuple[Divisor, ...] = ()
    combiner: str = ""

    @property
    def is_partial(self) -> bool:
        """Whether its values are not yet what the chain says."""
        return self.scale is not None or bool(self.divisors)

    def at(self, load: BufferLoad) -> RowValue:
        """Return the value by the iterations of a step that reads the tensor."""
        places = {name: Affine(((name, 1),)) for x in self.written.indices for name in x.names}
        for own, index in zip(self.written.indices, load.indices, strict=True):
            if own.names:
                places[own.names[0]] = index + -own.constant

        def move(access: BufferLoad) -> BufferLoad:
            indices = tuple(index.substitute(places) for index in access.indices)
            return replace(access, indices=indices)

        return RowValue(
            load,
            move(self.read),
            self.scale and move(self.scale),
            tuple(Divisor(move(each.total), each.quotient) for each in self.divisors),
            self.combiner,
        )


def widen(load: BufferLoad) -> BufferLoad:
    """Return the access to a sum before it is rounded to 16 bits; others as they are."""
    kind = dtype(str(load.tensor.dtype))
    if kind.is_integer or kind.bits >= 32:
        return load
    return replace(load, tensor=replace(load.tensor, dtype="float32"))
