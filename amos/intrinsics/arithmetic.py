"""Rounding, saturation, speed and shapes of an instruction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import sub
from typing import Literal, get_args

import numpy as np

from amos.errors import IntrinsicError, quote
from amos.intrinsics.expression import evaluate

#: Source of figures that are our own measurements, to half cycles.
MEASURED = "measured with amos.codegen.probes.memory, AMD EPYC of family 26 model 2, November 2026"

Rounding = Literal["once", "fused", "fused-descending", "14-bit"]


@dataclass(frozen=True)
class Arithmetic:
    """The part of a meaning that the scalar statement does not express.

    Products are exact. How they are added up differs:

    Attributes:
        saturate: the sum of the accumulator and **all** products of a call is
            taken without overflow and clamped once to the destination's range;
            otherwise integers wrap around.
        rounding: for a floating-point destination. ``"once"``: the exact sum is
            rounded once; this is the ideal of hardware that leaves order and
            intermediate rounding open, and an implementation is held to it
            within the error of any order. ``"fused"``: products are added one
            after another in the order of the reduction, each with one rounding,
            and an implementation has to agree bit for bit;
            ``"fused-descending"``: the same from the last product to the first.
            ``"14-bit"``: like ``"once"``, but sums may keep no more than 14 bits
            on their way, as for eight-bit floats on Ada and Hopper (DeepSeek-V3
            Technical Report, 2024, section 3.3.2).
        flush: subnormal inputs count as zero and subnormal results become zero.
    """

    saturate: bool = False
    rounding: Rounding = "once"
    flush: bool = False

    def __post_init__(self) -> None:
        if self.rounding not in get_args(Rounding):
            raise IntrinsicError(
                f"arithmetic: rounding: expected {' or '.join(map(repr, get_args(Rounding)))}, "
                f"got {self.rounding!r}"
            )

    @property
    def bitwise(self) -> bool:
        """True if a floating-point implementation has to agree in every bit."""
        return self.rounding.startswith("fused")

    @property
    def precision(self) -> float:
        """Relative error that adding one product may cost beyond the destination's own."""
        return 2.0**-13 if self.rounding == "14-bit" else 0.0

    def __str__(self) -> str:
        order = "last" if "-" in self.rounding else "first"
        properties = {
            "saturates": self.saturate,
            f"one rounding a product, {order} first": self.bitwise,
            "sums keep 14 bits or more": self.precision > 0,
            "subnormals are zero": self.flush,
        }
        return ", ".join(words for words, holds in properties.items() if holds)


#: Implausible cycles of a call.
_CYCLES = 1 << 31


@dataclass(frozen=True)
class Timing:
    """Speed of an instruction on one machine, in its clock cycles.

    Attributes:
        interval: cycles between independent calls that one core issues, the
            inverse of throughput.
        source: where the figures come from.
        latency: cycles until a call that needs the result can start; ``None`` if
            unpublished.
        machine: the processor that they apply to; the name of a machine description
            (:mod:`amos.machines`) where there is one, which then has to agree.
    """

    interval: float
    source: str
    latency: float | None = None
    machine: str = ""

    def __post_init__(self) -> None:
        for name in ("latency", "interval"):
            value = getattr(self, name)
            if value is not None and not 0 < value < _CYCLES:
                raise IntrinsicError(
                    f"timing: {name}: expected cycles above zero, below 2**31, got {value!r}"
                )
        if not self.source:
            raise IntrinsicError(
                f"timing: source: expected where the figures come from, got {self.source!r}"
            )

    def __str__(self) -> str:
        latency = "latency not published" if self.latency is None else f"latency {self.latency:g}"
        on = f" on {self.machine}" if self.machine else ""
        return f"{latency}, one every {self.interval:g} cycles{on} ({self.source})"


@dataclass(frozen=True)
class ShapeFamily:
    """Legal problem sizes of an instruction.

    Attributes:
        m, n, k: values that each size may take.
        where: a formula over ``m``, ``n``, ``k`` that a legal shape fulfils.
    """

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    where: str = "m == m"

    def __post_init__(self) -> None:
        for name in "mnk":
            values = getattr(self, name)
            if not values or any(type(v) is not int or v < 1 for v in values):
                raise IntrinsicError(
                    f"shapes: {name}: expected positive sizes, got {quote(values)}"
                )
        if (combinations := len(self.m) * len(self.n) * len(self.k)) > _LOOKED_AT:
            raise IntrinsicError(
                f"shapes: expected at most {_LOOKED_AT} combinations of m, n and k, "
                f"got {combinations}"
            )
        if not self.members:
            raise IntrinsicError(f"shapes: no shape fulfils {self.where!r}")

    @cached_property
    def members(self) -> tuple[tuple[int, int, int], ...]:
        """Every legal (m, n, k).

        >>> len(ShapeFamily((8, 16, 32), (8, 16, 32), (16,), "m*n*k == 4096").members)
        3
        """
        shapes = list(product(self.m, self.n, self.k))
        # Objects, so that sizes stay exact.
        m, n, k = np.array(shapes, dtype=object).T
        legal = np.broadcast_to(evaluate(self.where, dict(m=m, n=n, k=k)), len(shapes))
        return tuple(shape for shape, fulfils in zip(shapes, legal, strict=True) if fulfils)

    def __str__(self) -> str:
        condition = f" with {self.where}" if self.where != ShapeFamily.where else ""
        if len(self.members) <= _LISTED:
            return ", ".join(f"{m}x{n}x{k}" for m, n, k in self.members) + condition
        return ", ".join(f"{name} = {_values(getattr(self, name))}" for name in "mnk") + condition


#: Most shapes that are listed, and combinations that are examined.
_LISTED, _LOOKED_AT = 12, 4096


def _values(sizes: tuple[int, ...]) -> str:
    """Print ``(4, 8, 12)`` as ``4, 8 ... 12``."""
    if len(sizes) > 3 and len(set(map(sub, sizes[1:], sizes))) == 1:
        return f"{sizes[0]}, {sizes[1]} ... {sizes[-1]}"
    return " or ".join(map(str, sizes))
