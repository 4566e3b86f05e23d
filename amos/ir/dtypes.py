"""Data types under one canonical name each, with the field's short spellings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from amos.errors import OperatorError, quote


@dataclass(frozen=True)
class DType:
    """A scalar type.

    Attributes:
        name: canonical name, as NumPy and TVM spell it (``"uint8"``).
        short: the field's short name, used in intrinsic names (``"u8"``).
        bits: storage size in bits.
        kind: ``"int"``, ``"uint"`` or ``"float"``.
        container: the NumPy dtype that represents each value exactly; a type
            that NumPy lacks (bfloat16, tf32, fp8, int4) is held in a wider one.
        bounds: smallest and largest declared value of an integer type; ``None`` if all of its
            values may occur.
    """

    name: str
    short: str
    bits: int
    kind: str
    container: str
    bounds: tuple[int, int] | None = None

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        if self.bounds is not None:
            return self.bounds
        low = -(1 << self.bits - 1) if self.kind == "int" else 0
        return low, low + (1 << self.bits) - 1

    @property
    def declared(self) -> str:
        """The canonical name with the bounds, as :func:`dtype` reads it."""
        return self.name + self._range

    @property
    def spelled(self) -> str:
        """The short name with the bounds.

        >>> dtype("int8 in [-64, 64]").spelled
        's8 in [-64, 64]'
        """
        return self.short + self._range

    @property
    def _range(self) -> str:
        return "" if self.bounds is None else f" in [{self.bounds[0]}, {self.bounds[1]}]"

    def find_violation(self, array: np.ndarray) -> str:
        """Describe the first element beyond the limits of an integer type; empty if there is none.

        >>> dtype("s8 in [-64, 64]").find_violation(np.array([3, 65]))
        'expected values in [-64, 64], got 65 at [1]'
        """
        low, high = self.limits
        if not array.size or (array.min() >= low and array.max() <= high):
            return ""
        at = tuple(int(index) for index in np.argwhere((array < low) | (array > high))[0])
        return f"expected values in [{low}, {high}], got {array[at]} at {list(at)}"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that holds values of this type exactly."""
        return np.dtype(self.container)

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers."""
        return self.kind in ("int", "uint")

    def represents(self, source: DType) -> bool:
        """Return whether every value that another type may hold is a value of this one.

        >>> dtype("s16").represents(dtype("u8")), dtype("s16").represents(dtype("u16"))
        (True, False)
        """
        if self == source:
            return True
        if self.is_integer and source.is_integer:
            (low, high), (least, most) = self.limits, source.limits
            return low <= least and most <= high
        floats = self.kind == source.kind == "float"
        return floats and self.name in ("float32", "float64") and source.bits <= self.bits

    def stores(self, source: DType) -> bool:
        """Return whether values of another type can be read in place as this one."""
        alike = (self.bits, self.container) == (source.bits, source.container)
        return self == source or (alike and self.is_integer and self.represents(source))


_ALL = (
    DType("uint8", "u8", 8, "uint", "uint8"),
    DType("int8", "s8", 8, "int", "int8"),
    DType("uint16", "u16", 16, "uint", "uint16"),
    DType("int16", "s16", 16, "int", "int16"),
    DType("uint32", "u32", 32, "uint", "uint32"),
    DType("int32", "s32", 32, "int", "int32"),
    DType("int64", "s64", 64, "int", "int64"),
    DType("int4", "s4", 4, "int", "int8"),
    DType("uint4", "u4", 4, "uint", "uint8"),
    DType("bool", "b1", 1, "uint", "uint8"),
    DType("float16", "f16", 16, "float", "float16"),
    DType("bfloat16", "bf16", 16, "float", "float32"),
    DType("tfloat32", "tf32", 32, "float", "float32"),
    DType("float32", "f32", 32, "float", "float32"),
    DType("float64", "f64", 64, "float", "float64"),
    DType("float8_e4m3", "e4m3", 8, "float", "float32"),
    DType("float8_e5m2", "e5m2", 8, "float", "float32"),
    DType("float8_e8m0", "e8m0", 8, "float", "float32"),
)

_BY_NAME = {d.name: d for d in _ALL} | {d.short: d for d in _ALL}
_BY_NAME |= {f"i{d.bits}": d for d in _ALL if d.kind == "int"}
_S7 = replace(_BY_NAME["s8"], bounds=(-64, 63))
_U7 = replace(_BY_NAME["u8"], bounds=(0, 127))
_BY_NAME |= {"s7": _S7, "int7": _S7, "u7": _U7, "uint7": _U7}
_RANGE = re.compile(r"\s*(\w+)\s+in\s*\[\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*\]\s*")

#: Meaning of ``dtype="f16"`` for a whole operator: (sources …, output). Narrow
#: inputs accumulate in the type that the hardware accumulates them in.
_ACCUMULATOR = dict.fromkeys(("uint8", "int8", "int4", "uint4", "bool", "int16"), "int32")
_ACCUMULATOR |= dict.fromkeys(
    ("float16", "bfloat16", "tfloat32", "float8_e4m3", "float8_e5m2", "float8_e8m0"), "float32"
)


def dtype(name: str | DType) -> DType:
    """Look up a type by canonical or short name.

    The values of an integer type may be declared to stay in a range, as ``s8 in [-64, 64]``:
    some instructions are exact only within a range. Arrays are then checked. ``s7`` and ``u7`` are
    ``s8 in [-64, 63]`` and ``u8 in [0, 127]``.

    Raises:
        OperatorError: the name is not one of the known types, or the range is not within its own.

    >>> dtype("u8").name, dtype("float16").short, dtype("u8 in [0, 127]").limits
    ('uint8', 'f16', (0, 127))
    """
    if isinstance(name, DType):
        return name
    try:
        return _BY_NAME[name]
    except (KeyError, TypeError):
        if isinstance(name, str) and (match := _RANGE.fullmatch(name)):
            return _restrict(dtype(match[1]), int(match[2]), int(match[3]))
        names = ", ".join(d.short for d in _ALL)
        raise OperatorError(
            f"unknown dtype {quote(name)}: known are {names}, and ranges as 's8 in [-64, 64]'"
        ) from None


@cache
def _restrict(kind: DType, low: int, high: int) -> DType:
    """Restrict a type to a declared range; return the type itself if it is the full range."""
    where = f"dtype '{kind.short} in [{low}, {high}]'"
    if not kind.is_integer:
        raise OperatorError(f"{where}: expected an integer type")
    least, most = kind.limits
    if not least <= low <= high <= most:
        raise OperatorError(f"{where}: expected a range within [{least}, {most}]")
    return kind if (low, high) == (least, most) else replace(kind, bounds=(low, high))


def resolve_dtypes(spec: str | tuple[str, ...] | None, sources: int) -> tuple[str | None, ...]:
    """Expand a short dtype request into one dtype for each source and the output.

    Args:
        spec: ``None`` (leave open: taken from the intrinsic), one name
            (``"f16"``: every source in it, the output in its usual accumulator),
            ``"u8s8"`` (VNNI: first source unsigned, second signed, output int32; so
            are ``"u8s7"`` and ``"u7s8"``),
            or a tuple with ``sources + 1`` names.

    Returns:
        ``sources + 1`` canonical names, with declared ranges, the output last; ``None``
        where open.

    >>> resolve_dtypes("f16", 2)
    ('float16', 'float16', 'float32')
    """
    if spec is None:
        return (None,) * (sources + 1)
    if isinstance(spec, tuple):
        if len(spec) != sources + 1:
            raise OperatorError(
                f"dtypes {spec!r}: expected {sources + 1} (each source, then the output)"
            )
        return tuple(dtype(s).declared for s in spec)
    if spec in ("u8s8", "u8s7", "u7s8"):
        first, second = dtype(spec[:2]).declared, dtype(spec[2:]).declared
        return (first, *(second,) * sources)[:sources] + ("int32",)
    scalar = dtype(spec)
    return (scalar.declared,) * sources + (_ACCUMULATOR.get(scalar.name, scalar.name),)
