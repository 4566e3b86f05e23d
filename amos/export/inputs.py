"""Inputs of an export's test program, drawn identically in C and NumPy.

They are made from a counter by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np

from amos.codegen.c.types import c_type
from amos.codegen.tir.arrays import container_dtype
from amos.ir import Chain, Operator, Prologue, Tensor, dtype

ODD = 0x9E3779B97F4A7C15
#: Values of floating-point inputs are multiples of 1/8 below 1: exact in every type.
_EIGHTHS = 8
#: Largest integer wider than a byte that a prologue reads; floats are up to 16 where it converts
#: them to integers.
_WIDEST = 256
#: Significant bits of a float; scales of an epilogue use all of them, so that rounding shows.
LENGTHS = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11}


def draw_inputs(operator: Operator | Chain, trial: int) -> dict[str, np.ndarray]:
    """Draw an array for each input, for one of the choices of an epilogue's tensors."""
    arrays = {}
    for number, tensor in enumerate(operator.inputs):
        kind = dtype(str(tensor.dtype))
        bits = _hash_counters(_stream(operator, number, trial), tensor.elements)
        if _is_scale(operator, tensor):
            values = _scale(bits, LENGTHS[kind.name])
        elif kind.is_integer:
            span, start = _span(operator, tensor)
            values = (bits % np.uint64(span)).astype(np.int64) + start
        else:
            largest = _EIGHTHS * _largest(operator, tensor)
            values = (bits % np.uint64(2 * largest + 1)).astype(np.int64) - largest
            values = values / _EIGHTHS
        arrays[tensor.name] = values.astype(kind.numpy).reshape(tensor.shape)
    return arrays


def draw_in_c(operator: Operator | Chain, number: int, trial: int) -> str:
    """Write element ``i`` of an input as a C expression, equal to :func:`draw_inputs`."""
    tensor = operator.inputs[number]
    kind = dtype(str(tensor.dtype))
    bits = f"random_bits(UINT64_C({_stream(operator, number, trial)}) << 40, i)"
    if kind.is_integer:
        span, start = _span(operator, tensor)
        return f"({c_type(container_dtype(kind.name))})((int64_t)({bits} % {span}) + ({start}))"
    largest = _EIGHTHS * _largest(operator, tensor)
    value = f"(float)((int)({bits} % {2 * largest + 1}) - {largest}) / {_EIGHTHS}"
    if _is_scale(operator, tensor):
        value = f"scaled({bits}, {LENGTHS[kind.name]})"
    return f"bfloat16({value})" if kind.name == "bfloat16" else value


def _is_of_epilogue(operator: Operator | Chain, tensor: Tensor) -> bool:
    if isinstance(operator, Chain):
        return False
    read = {x.name for load in operator.sources for x in operator.inputs_of(load.tensor.name)}
    return tensor.name not in read


def _prologue(operator: Operator | Chain, tensor: Tensor) -> Prologue | None:
    """Return the first prologue that reads a tensor; its range decides what is drawn."""
    if isinstance(operator, Chain):
        return None
    return next((x for x in operator.prologues if tensor in x.tensors), None)


def _span(operator: Operator | Chain, tensor: Tensor) -> tuple[int, int]:
    """Return the number of values of an integer input, and the smallest."""
    assert tensor.kind is not None
    low, high = tensor.kind.limits
    if tensor.bounds is None and _prologue(operator, tensor) is not None:
        low, high = max(low, -_WIDEST), min(high, _WIDEST)
    return min(high - low + 1, 1 << 16), low if high < 1 << 16 else 0


def _largest(operator: Operator | Chain, tensor: Tensor) -> int:
    """Return the largest value of a float input, a multiple of 1/8."""
    prologue = _prologue(operator, tensor)
    return 16 if prologue is not None and dtype(prologue.dtype).is_integer else 1


def _is_scale(operator: Operator | Chain, tensor: Tensor) -> bool:
    return _is_of_epilogue(operator, tensor) and not dtype(str(tensor.dtype)).is_integer


def _stream(operator: Operator | Chain, number: int, trial: int) -> int:
    """Return the start of an input's random numbers, in units of 2^40."""
    fresh = _is_of_epilogue(operator, operator.inputs[number])
    return number + (trial << 16 if fresh else 0)


def _scale(bits: np.ndarray, length: int) -> np.ndarray:
    """Draw floats of many magnitudes; ``scaled`` in C."""
    values = (bits % np.uint64(1 << length)).astype(np.int64) - (1 << length - 2)
    exponents = -length - ((bits >> np.uint64(27)) % np.uint64(20)).astype(np.int64)
    return np.asarray(np.ldexp(values.astype(np.float64), exponents))


def _hash_counters(stream: int, count: int) -> np.ndarray:
    """Hash counters ``stream << 40 | 0 …`` by SplitMix64; return the upper 32 bits."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(stream << 40)) * np.uint64(ODD)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(32))
