"""Inputs to check a kernel with, and its expected results, in NumPy alone.

This file is copied beside every exported kernel. Everything here is computed from the operator in
``launch.json``, element by element, and shares no code with the kernel: even an epilogue's
arithmetic is implemented again, from the definitions in :mod:`amos.ir.epilogue`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Output elements that are compared.
_SAMPLES = 4096
#: Terms of a sum in half precision that are not zero.
_FEW = 400
#: Tolerance of a result relative to the sum of absolute terms, by its type.
_TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 1e-3, "int32": 0.0}
#: The same for sources of eight bits: their sums keep about 14 bits (see the intrinsic).
_EIGHT_BITS = 2e-3
#: Dtype that holds the bit pattern of an element.
_BITS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "float8_e4m3": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
}
#: Bits after the point and exponent's bias of an eight-bit float.
_EIGHT = {"float8_e4m3": (3, 7), "float8_e5m2": (2, 15)}


def size_of(argument: dict[str, Any]) -> int:
    """Return the size in bytes of a tensor that ``launch.json`` describes."""
    return int(np.prod(argument["shape"], dtype=np.int64)) * _BITS[argument["dtype"]].itemsize


def inputs_of(launch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments that a kernel reads, in order; results follow them."""
    return [argument for argument in launch["arguments"] if argument["role"] != "output"]


def draw_values(launch: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw values of each input, by name, that its type holds exactly.

    Integers over their full range; floats of few bits, so that sums are exact in any
    order. For sums in half precision they are small integers, most of them zero if a sum
    is long. Inputs of an epilogue have many magnitudes, and those of a prologue are large
    enough to fill integers that it makes.
    """
    inputs = inputs_of(launch)
    out, share = launch["arguments"][len(inputs)], 0.0
    if launch["operator"].get("accumulator", out["dtype"]) == "float16":
        share = min(1.0, _FEW / max(1, _length(launch["operator"])))
    return {a["name"]: _draw(a, share, rng) for a in inputs}


def _draw(argument: dict[str, Any], share: float, rng: np.random.Generator) -> np.ndarray:
    kind, shape = argument["dtype"], argument["shape"]
    values: np.ndarray
    if share:
        values = rng.integers(-2, 3, shape) * (rng.random(shape) < share) * 1.0
    elif argument["role"] == "epilogue" and kind in ("float32", "bfloat16", "float16"):
        least = -12 if kind == "float16" else -18
        sizes = rng.integers(128, 256, shape) / 128 * 2.0 ** rng.integers(least, 2, shape)
        values = np.where(rng.random(shape) < 0.25, -sizes, sizes)
    elif argument["role"] == "epilogue" and kind != "int8" and kind != "uint8":
        values = rng.integers(0 if kind[0] == "u" else -(1 << 12), 1 << 12, shape) * 1.0
    elif argument["role"] == "prologue" and kind not in ("int8", "uint8"):
        most = argument["largest"]
        low = 0 if kind[0] == "u" else -256
        whole = rng.integers(low, 257, shape) * 1.0
        values = whole if "int" in kind else rng.integers(-8 * most, 8 * most + 1, shape) / 8
    elif kind in ("int8", "uint8"):
        low = -128 if kind == "int8" else 0
        values = rng.integers(low, low + 256, shape).astype(np.float64)
    elif kind in _EIGHT:
        values = rng.integers(-4, 5, shape) / 4.0
    else:
        values = rng.integers(-128, 129, shape) / 64.0
    return values


def _length(operator: dict[str, Any]) -> int:
    output_names = {
        name for index in operator["operands"][-1]["indices"] for name in index["terms"]
    }
    extents = operator["iterations"]
    return int(np.prod([extents[n] for n in extents if n not in output_names], dtype=np.int64))


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the bit patterns of values that the type holds exactly."""
    if kind == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind in _EIGHT:
        bits, bias = _EIGHT[kind]
        size = np.abs(values)
        exponent = np.maximum(np.frexp(size)[1] - 1, 1 - bias)
        steps = np.rint(size / np.ldexp(1.0, exponent - bits)).astype(np.int64)
        # A normal number's leading one and a subnormal's zero fall out of one formula.
        code = ((exponent + bias - 1) << bits) + steps
        code = np.where(size > 0, code, 0)
        return np.asarray(code + (np.signbit(values).astype(np.int64) << 7)).astype(np.uint8)
    patterns: np.ndarray = values.astype(_BITS[kind])
    return patterns


def decode(data: np.ndarray, kind: str) -> np.ndarray:
    """Return the values of bit patterns."""
    if kind == "bfloat16":
        return np.asarray((data.view(np.uint16).astype(np.uint32) << 16).view(np.float32))
    return np.asarray(data.view(_BITS[kind]))


def compare_results(
    launch: dict[str, Any],
    values: dict[str, np.ndarray],
    results: list[np.ndarray],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Compare some elements of each result with the operator's definition.

    Args:
        launch: contents of ``launch.json``.
        values: of each input, by name.
        results: bytes of each result.

    Returns:
        ``correct``, ``largest_difference`` and the number of ``elements`` compared.
    """
    inputs, operator = inputs_of(launch), launch["operator"]
    operators = [operator, *(operator | each for each in operator.get("further", []))]
    correct, largest, elements = True, 0.0, 0
    for how, out, data in zip(operators, launch["arguments"][len(inputs) :], results, strict=True):
        tolerance = _tolerance(inputs, how.get("accumulator", out["dtype"]))
        where, total, allowed = _sample_expected(how, values, tolerance, rng)
        got = decode(data, out["dtype"]).astype(np.float64)[where]
        difference = measure_differences(got, total)
        correct &= bool((difference <= allowed).all())
        largest, elements = max(largest, float(difference.max())), elements + len(where)
    return {"correct": correct, "largest_difference": largest, "elements": elements}


def measure_differences(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return each value's error: infinite if it alone is not finite, 0 if both are NaN."""
    with np.errstate(invalid="ignore"):
        difference: np.ndarray = np.abs(values - expected)
    difference[~np.isfinite(values)] = np.inf
    difference[(values == expected) | (np.isnan(values) & np.isnan(expected))] = 0
    return difference


def _sample_expected(
    operator: dict[str, Any],
    values: dict[str, np.ndarray],
    tolerance: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample a result: flat positions, expected values, and by how much each may be off."""
    extents, combination = operator["iterations"], operator.get("combination", "=")
    names = _names(operator["operands"][-1])
    stored = names if combination == "=" else _names(operator["store"])
    gone = [name for name in names if name not in stored]
    count, size = (int(np.prod([extents[n] for n in x], dtype=np.int64)) for x in (gone, stored))
    most = max(1, _SAMPLES // count)
    flat = np.unique(rng.integers(0, size, most)) if size > most else np.arange(size)
    at = _digits_of(np.repeat(flat, count), extents, stored)
    at |= _digits_of(np.tile(np.arange(count), len(flat)), extents, gone)
    where, total, scale = reference(operator, values, at)
    allowed = scale * tolerance
    if operator.get("epilogue"):
        total, allowed = _finish(operator, values, at, total, allowed)
    if combination == "=":
        return where, total, allowed
    where, total, allowed = (x.reshape(-1, count) for x in (where, total, allowed))
    where, at = where[:, 0], {name: each[::count] for name, each in at.items()}
    floats = operator["result"] in ("float32", "bfloat16", "float16")
    if combination != "+=":
        best = np.max if combination == "max=" else np.min
        total, allowed = best(total, axis=1), allowed.max(axis=1)
    elif floats:
        allowed = allowed.sum(axis=1) + 1e-6 * np.abs(total).sum(axis=1)
        total = total.sum(axis=1)
    else:
        total = _convert(total.sum(axis=1), "int32").astype(np.float64)
        allowed = allowed.sum(axis=1)
    if "last" in operator:
        total, allowed = _finish(operator["last"], values, at, total, allowed)
    return where, total, allowed


def _tolerance(inputs: list[dict[str, Any]], accumulator: str) -> float:
    if any(argument["dtype"] in _EIGHT for argument in inputs):
        return _EIGHT_BITS
    return _TOLERANCE[accumulator]


def _names(access: dict[str, Any]) -> list[str]:
    """List the iterations that index an access, also by their digits."""
    digits = access.get("digits", {})
    names = {name for index in access["indices"] for name in index["terms"]}
    return sorted({digits[name]["iteration"] if name in digits else name for name in names})


def _digits_of(
    flat: np.ndarray, extents: dict[str, int], names: list[str]
) -> dict[str, np.ndarray]:
    """Return the values of iterations at the numbers of points."""
    at: dict[str, np.ndarray] = {}
    for name in names:
        at[name] = flat % extents[name]
        flat = flat // extents[name]
    return at


def reference(
    operator: dict[str, Any], values: dict[str, np.ndarray], at: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute some sums of an operator: flat positions, values, sums of absolute terms."""
    extents = operator["iterations"]
    store = operator.get("store", operator["operands"][-1])
    where = np.broadcast_to(_flat(store, at)[0], max(map(len, at.values()), default=1))
    inner = [n for n in extents if n not in at]
    total, scale = np.zeros(len(where)), np.zeros(len(where))
    for first in np.ndindex(*(extents[n] for n in inner[:-1])):
        point = at | dict(zip(inner[:-1], first, strict=True))
        point = {n: v[:, None] if isinstance(v, np.ndarray) else v for n, v in point.items()}
        if inner:
            point[inner[-1]] = np.arange(extents[inner[-1]])[None, :]
        product: Any = 1.0
        for operand in operator["operands"][:-1]:
            place, live = _flat(operand, point)
            read: Any
            if "prologue" in operand:
                value = _value(operand["prologue"], {}, values, point)
                read = _cast_result(value, operand["dtype"])
            else:
                read = values[operand["tensor"]].reshape(-1)[np.where(live, place, 0)]
            product = product * np.where(live, read, float(operand.get("padding", 0)))
        product = np.broadcast_to(product, (len(where), extents[inner[-1]] if inner else 1))
        total += product.sum(axis=1)
        scale += np.abs(product).sum(axis=1)
    return where, total, scale


def _flat(operand: dict[str, Any], at: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat position of an element, and whether it lies inside the tensor."""
    place: Any = 0
    live: Any = True
    for name, digit in operand.get("digits", {}).items():
        above = at[digit["iteration"]] // digit["divide"]
        at = at | {name: above % digit["modulo"] if digit["modulo"] else above}
    for index, size in zip(operand["indices"], operand["shape"], strict=True):
        value: Any = index["constant"]
        for name, factor in index["terms"].items():
            value = value + at[name] * factor
        live = live & (value >= 0) & (value < size)
        place = place * size + value
    return np.asarray(place), np.asarray(live)


def _finish(
    operator: dict[str, Any],
    values: dict[str, np.ndarray],
    at: dict[str, np.ndarray],
    total: np.ndarray,
    allowed: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Apply an epilogue to sums; return the values and their tolerances."""
    kind = operator["accumulator"]

    def finish(sums: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            value = _value(operator["epilogue"], {"acc": _widen(sums, kind)}, values, at)
            return _cast_result(value, operator["result"])

    right = finish(total)
    if kind == "int32" and not allowed.any():
        return right, np.zeros(len(right))
    off = np.maximum(*(np.abs(finish(total + sign * allowed) - right) for sign in (-1, 1)))
    small = {"float32": 1e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}.get(operator["result"])
    return right, off + (1.0 if small is None else small * np.abs(right))


def _widen(sums: np.ndarray, kind: str) -> np.ndarray:
    """Convert sums of a type to the input of an epilogue."""
    if kind == "int32":
        return _convert(sums, kind)
    with np.errstate(over="ignore"):
        return _convert(sums.astype(_BITS[kind]), "float32")


def _convert(value: np.ndarray, kind: str) -> np.ndarray:
    """Convert to ``int32``, which wraps around, or to ``float32``."""
    if kind == "float32":
        return np.asarray(value, np.float32)
    wide = np.asarray(value).astype(np.int64)
    return ((wide + 2**31) % 2**32 - 2**31).astype(np.int32)


def _value(
    node: dict[str, Any],
    variables: dict[str, np.ndarray],
    values: dict[str, np.ndarray],
    at: dict[str, np.ndarray],
) -> np.ndarray:
    """Evaluate a node of an epilogue, whose arguments are converted to its kind."""
    name, kind = node["name"], node["kind"]
    if name == "number":
        return _convert(np.asarray(node["value"]), kind)
    if name == "read":
        place, live = _flat(node["load"], at)
        return _convert(values[node["load"]["tensor"]].reshape(-1)[np.where(live, place, 0)], kind)
    if "arguments" not in node:
        return variables[name]
    below = [_convert(_value(each, variables, values, at), kind) for each in node["arguments"]]
    if "body" in node:
        return _value(node["body"], dict(zip(node["parameters"], below, strict=True)), values, at)
    if name in _CASTS:
        rounded = _cast_result(below[0], _CASTS[name])
        return _convert(rounded, "float32" if "float" in _CASTS[name] else "int32")
    if kind == "int32" and name in ("add", "subtract", "multiply"):
        return _convert(_OPERATIONS[name](*(each.astype(np.int64) for each in below)), kind)
    if name == "round" and kind == "int32":
        return below[0]
    return _convert(_OPERATIONS[name](*below), kind)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Compute ``a * b + c`` of floats, rounded once.

    In doubles the product is exact, and so is the sum except for a cut-off remainder. It matters
    where the double lies half-way between two floats: its sign decides between them.
    """
    product = np.asarray(a, np.float64) * b
    total = np.asarray(product + c)
    back = total - product
    cut = (product - (total - back)) + (c - back)
    nearest = total.astype(np.float32)
    beyond = np.nextafter(nearest, np.where(total > nearest, np.inf, -np.inf).astype(np.float32))
    tie = (total - nearest == beyond - total) & (total != nearest)
    return np.where(tie & (np.abs(cut) > 0) & ((cut > 0) == (beyond > nearest)), beyond, nearest)


def _power(exponent: np.ndarray) -> np.ndarray:
    """Compute two to the power of an integer, by the bits of a float."""
    shifted = (exponent + np.float32(12583039)).view(np.uint32)
    return (shifted << np.uint32(23)).view(np.float32)


_CASTS = {
    "u8": "uint8",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
}
_OPERATIONS: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "shift": np.right_shift,
    "max": np.maximum,
    "min": np.minimum,
    "_greater": lambda a, b: np.where(a > b, a, b),
    "_less": lambda a, b: np.where(a < b, a, b),
    "round": np.rint,
    "sqrt": np.sqrt,
    "fma": _fma,
    "_pow2": _power,
    "_exponent": lambda x: ((x.view(np.uint32) >> 23).astype(np.int32) - 127).astype(np.float32),
    "_choose": lambda a, b, c, d: np.where(a > b, c, d),
}


def _cast_result(value: np.ndarray, kind: str) -> np.ndarray:
    """Convert to the result's type: integers to the nearest, ties to even, and clamped."""
    if kind == "bfloat16":
        bits = np.asarray(value, np.float32).view(np.uint32)
        near = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(value), np.nan, near.view(np.float32)).astype(np.float64)
    if kind in ("float32", "float16"):
        return np.asarray(value).astype(kind).astype(np.float64)
    limits = np.iinfo(_BITS[kind])
    return np.clip(np.rint(np.asarray(value, np.float64)), limits.min, limits.max)
