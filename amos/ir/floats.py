"""Values and bit patterns of the types that NumPy lacks.

Such a value is held exactly in its container (:class:`~amos.ir.dtypes.DType`):
bfloat16, tf32 and the eight-bit floats in float32, nibbles and bits in a byte.
Rounding happens where a value enters a type, :func:`quantize`; the bit pattern
exists only where memory is shared with hardware, :func:`pack` and :func:`unpack`.
"""

from __future__ import annotations

import numpy as np

from amos.errors import OperatorError
from amos.ir.dtypes import DType, dtype

#: Bits after the point, exponent of the smallest normal number, largest number.
_FORMATS = {
    "bfloat16": (7, -126, 3.3895313892515355e38),
    "tfloat32": (10, -126, 3.4011621342146535e38),
    "float8_e4m3": (3, -6, 448.0),
    "float8_e5m2": (2, -14, 57344.0),
}
#: Powers of two without a sign, which scale blocks of elements (OCP Microscaling Formats 1.0):
#: a byte is the exponent plus the bias; 255 is NaN, and there is no zero.
SCALE, _BIAS = "float8_e8m0", 127


def limits(kind: str | DType) -> tuple[float, float]:
    """Return the smallest and largest finite value; integers for integer types.

    >>> limits("int4"), limits("e4m3")
    ((-8, 7), (-448.0, 448.0))
    """
    scalar = dtype(kind)
    if scalar.name == SCALE:
        return 2.0**-_BIAS, 2.0**_BIAS
    if scalar.is_integer:
        return scalar.limits
    name = scalar.name
    top = _FORMATS[name][2] if name in _FORMATS else float(np.finfo(scalar.numpy).max)
    return -top, top


def quantize(values: np.ndarray, kind: str | DType) -> np.ndarray:
    """Round floats to the nearest value of a type, ties to even.

    Args:
        values: array of any shape.
        kind: a floating-point type; an integer type holds its values as they are.

    Returns:
        array of the type's container; beyond the largest value it holds an
        infinity, or NaN for ``float8_e4m3``, which has no infinity. ``float8_e8m0`` holds its
        smallest value for zero, and NaN for values that are negative or too large.

    >>> quantize(np.array([1.01, 449.0, 500.0]), "e4m3").tolist()
    [1.0, 448.0, nan]
    >>> quantize(np.array([0.3, 6.5, -1.0]), "e8m0").tolist()
    [0.25, 8.0, nan]
    """
    scalar = dtype(kind)
    if scalar.name == SCALE:
        return _quantize_scale(np.asarray(values, dtype=np.float64))
    with np.errstate(over="ignore"):
        if scalar.name not in _FORMATS:
            return np.asarray(values).astype(scalar.numpy)
        bits, least, top = _FORMATS[scalar.name]
        wide = np.asarray(values, dtype=np.float64)
        exponent = np.maximum(np.frexp(wide)[1] - 1, least)
        unit = np.ldexp(1.0, exponent - bits)
        rounded = np.where(np.isfinite(wide), np.rint(wide / unit) * unit, wide)
        beyond = np.nan if scalar.name == "float8_e4m3" else np.copysign(np.inf, rounded)
        return np.where(np.abs(rounded) > top, beyond, rounded).astype(scalar.numpy)


def _quantize_scale(wide: np.ndarray) -> np.ndarray:
    """Round to the nearest power of two, ties to the larger one."""
    with np.errstate(invalid="ignore"):
        significand, exponent = np.frexp(wide)
        power = exponent - (significand < 0.75)
        rounded = np.ldexp(1.0, np.clip(power, -_BIAS, _BIAS))
        valid = np.isfinite(wide) & (wide >= 0) & (power <= _BIAS)
    return np.where(valid, np.where(wide == 0, 2.0**-_BIAS, rounded), np.nan).astype(np.float32)


def pack(values: np.ndarray, kind: str | DType) -> np.ndarray:
    """Pack values into the bit patterns that hardware reads, in little-endian bytes.

    Types below a byte are packed along the flattened array, the first element
    in the lowest bits.

    Args:
        values: array of the type's container, holding values of the type.

    Returns:
        one-dimensional uint8 array.

    Raises:
        OperatorError: a sub-byte array does not fill whole bytes.
    """
    scalar, flat = dtype(kind), np.ascontiguousarray(values).reshape(-1)
    if scalar.bits < 8:
        if flat.size * scalar.bits % 8:
            raise OperatorError(f"{flat.size} elements of {scalar.name} do not fill whole bytes")
        digits = flat.astype(np.uint8)[:, None] >> np.arange(scalar.bits, dtype=np.uint8) & 1
        return np.packbits(digits.astype(np.uint8).reshape(-1), bitorder="little")
    if scalar.name == "bfloat16":
        return np.asarray(flat.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if scalar.name == SCALE:
        powers = np.frexp(flat)[1] - 1 + _BIAS
        codes = np.where(np.isfinite(flat), np.where(flat > 0, powers, 0), 255)
        return np.asarray(codes).astype(np.uint8)
    if scalar.bits == 8 and not scalar.is_integer:
        return _float8(flat, *_FORMATS[scalar.name][:2])
    return flat.view(np.uint8)


def _float8(flat: np.ndarray, bits: int, least: int) -> np.ndarray:
    size = np.abs(flat.astype(np.float64))
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, least), least)
    steps = np.rint(size / np.ldexp(1.0, exponent - bits)).astype(np.int64)
    # One formula covers a normal number's leading one and a subnormal's zero.
    code = ((exponent - least) << bits) + steps
    return np.asarray(code + (np.signbit(flat).astype(np.int64) << 7)).astype(np.uint8)


def unpack(data: np.ndarray, kind: str | DType, shape: tuple[int, ...]) -> np.ndarray:
    """Invert :func:`pack` for types of a byte and more.

    Raises:
        OperatorError: the type is below a byte or an eight-bit float, which no
            intrinsic has as its destination.
    """
    scalar = dtype(kind)
    if scalar.bits < 8 or (scalar.bits == 8 and not scalar.is_integer):
        raise OperatorError(f"{scalar.name} cannot be unpacked")
    if scalar.name == "bfloat16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return data.view(scalar.numpy).reshape(shape).copy()
