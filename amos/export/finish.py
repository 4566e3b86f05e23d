"""An epilogue as plain C for the test program, one element at a time.

The arithmetic is written here anew, from what :mod:`amos.ir.epilogue` states, so that
the program shares nothing with the kernel that it checks. Products pass through
memory: no compiler fuses them with a sum, whatever its options.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amos.ir import BufferLoad, Operator, dtype

__all__ = ["FUNCTIONS", "finished"]

#: Every operation on ``int32_t``, which wraps around, and on ``float``.
FUNCTIONS = """static inline int32_t i_add(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a + (uint32_t)b);
}
static inline int32_t i_subtract(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a - (uint32_t)b);
}
static inline int32_t i_multiply(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a * (uint32_t)b);
}
static inline int32_t i_max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t i_min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline float f_add(float a, float b) { return a + b; }
static inline float f_subtract(float a, float b) { return a - b; }
static inline float f_multiply(float a, float b) {
  volatile float product = a * b;
  return product;
}
static inline float f_max(float a, float b) { return a > b ? a : b; }
static inline float f_min(float a, float b) { return a < b ? a : b; }
static inline float f_round(float a) { return nearbyintf(a); }
static inline int32_t f_integer(float a, double low, double high) {
  double whole = nearbyint(a > low ? a : low);
  return (int32_t)(whole < high ? whole : high);
}
/* Floats of many magnitudes, 24 bits or 8 bits long. */
static inline float scaled(uint64_t bits, int length) {
  int32_t value = (int32_t)(bits % (UINT64_C(1) << length)) - (1 << (length - 2));
  return ldexpf((float)value, -length - (int)(bits >> 27) % 20);
}
"""


def finished(op: Operator, accumulator: str, read: Callable[[BufferLoad], str]) -> str:
    """C expression of what is stored for one element.

    Args:
        op: an operator with an epilogue, every dtype set.
        accumulator: C expression of what was summed, of the accumulator's type.
        read: C expression of an element of a tensor, bfloat16 as ``float``.
    """
    assert op.epilogue is not None
    kind = str(op.output.tensor.dtype)
    value = op.epilogue.compute(accumulator, kind, _InC(read))
    computed, result = op.epilogue.expression.kind(kind), op.epilogue.result(kind)
    if not dtype(result).is_integer:
        value = f"(float)({value})"
        return f"bfloat16({value})" if result == "bfloat16" else value
    low, high = dtype(result).limits
    if computed == "float32":
        return f"f_integer({value}, {low}.0, {high}.0)"
    return value if result == "int32" else f"i_min(i_max({value}, {low}), {high})"


class _InC:
    def __init__(self, read: Callable[[BufferLoad], str]) -> None:
        self.element = read

    def number(self, value: float, kind: str) -> str:
        return f"{np.float32(value)!s}f" if kind == "float32" else f"INT32_C({int(value)})"

    def read(self, load: BufferLoad, kind: str) -> str:
        return f"({'float' if kind == 'float32' else 'int32_t'}){self.element(load)}"

    def convert(self, value: str) -> str:
        return f"(float)({value})"

    def apply(self, name: str, kind: str, values: list[str]) -> str:
        return f"{'f' if kind == 'float32' else 'i'}_{name}({', '.join(values)})"
