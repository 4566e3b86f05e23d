"""The test program of an export: plain loops of the operator, and NumPy's digest.

Inputs are made from a counter by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014),
so that C and NumPy make the same ones. The program compares every element with the
operator's own loops and its epilogue; exact results, which integers and those of an
epilogue are, must also have the digest that NumPy's had when the kernel was exported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amos.codegen.c.source import CKernel, Parameter
from amos.codegen.c.types import c_type
from amos.codegen.tir.arrays import held
from amos.errors import ExportError
from amos.export.program_text import DIGEST, FUNCTIONS, PROGRAM
from amos.export.request import Request
from amos.ir import Affine, BufferLoad, Iteration, Operator, Tensor, dtype
from amos.validate import evaluate
from amos.validate.epilogue import finish

__all__ = ["Example", "output_digest", "test_program"]

_ODD = 0x9E3779B97F4A7C15
#: Values of floating-point inputs are multiples of 1/8 below 1: exact in every type.
_EIGHTHS = 8
#: Padding of floats that keeps sums as exact, up to this.
_LARGEST = 8
#: Bits of a float among an epilogue's tensors, whose roundings are to be seen.
_LENGTHS = {"float32": 24, "bfloat16": 8}
#: Choices of an epilogue's tensors, of which one is taken.
_TRIALS = 8


@dataclass(frozen=True)
class Example:
    """What the test program computes.

    Attributes:
        trial: which of the choices of an epilogue's tensors this is.
        inputs: an array for each input.
        output: NumPy's result.
    """

    trial: int
    inputs: dict[str, np.ndarray]
    output: np.ndarray

    @staticmethod
    def of(operator: Operator) -> Example:
        """The first choice, or with an epilogue the one of some with the most distinct results.

        A scale may send everything to an end of the result's range, where a wrong
        sum would not be seen.
        """
        inputs = _inputs(operator, 0)
        plain = replace(operator, epilogue=None)
        sums = evaluate(plain, {tensor.name: inputs[tensor.name] for tensor in plain.inputs})
        if operator.epilogue is None:
            return Example(0, inputs, sums)
        examples = []
        for trial in range(_TRIALS if operator.epilogue.loads else 1):
            inputs = _inputs(operator, trial)
            examples.append(Example(trial, inputs, finish(operator, sums, inputs)))
        return max(examples, key=lambda each: (len(np.unique(each.output)), -each.trial))


def _of_epilogue(operator: Operator, tensor: Tensor) -> bool:
    return tensor.name not in {load.tensor.name for load in operator.sources}


def _is_scale(operator: Operator, tensor: Tensor) -> bool:
    return _of_epilogue(operator, tensor) and not dtype(str(tensor.dtype)).is_integer


def _stream(operator: Operator, number: int, trial: int) -> int:
    """Where the random numbers of an input start, in units of 2^40."""
    fresh = _of_epilogue(operator, operator.inputs[number])
    return number + (trial << 16 if fresh else 0)


def _scaled(bits: np.ndarray, length: int) -> np.ndarray:
    """Floats of many magnitudes; ``scaled`` in C."""
    values = (bits % np.uint64(1 << length)).astype(np.int64) - (1 << length - 2)
    exponents = -length - ((bits >> np.uint64(27)) % np.uint64(20)).astype(np.int64)
    return np.asarray(np.ldexp(values.astype(np.float64), exponents))


def _inputs(operator: Operator, trial: int) -> dict[str, np.ndarray]:
    arrays = {}
    for number, tensor in enumerate(operator.inputs):
        kind = dtype(str(tensor.dtype))
        bits = _random(_stream(operator, number, trial), tensor.elements)
        if _is_scale(operator, tensor):
            values = _scaled(bits, _LENGTHS[kind.name])
        elif kind.is_integer:
            low, high = kind.limits
            values = (bits % np.uint64(min(high - low + 1, 1 << 16))).astype(np.int64)
            values += low if high < 1 << 16 else 0
        else:
            values = (bits % np.uint64(2 * _EIGHTHS + 1)).astype(np.int64) - _EIGHTHS
            values = values / _EIGHTHS
        arrays[tensor.name] = values.astype(kind.numpy).reshape(tensor.shape)
    return arrays


def _random(stream: int, count: int) -> np.ndarray:
    """SplitMix64 of counters ``stream << 40 | 0 …``, its upper 32 bits."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(stream << 40)) * np.uint64(_ODD)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(32))


def output_digest(output: np.ndarray) -> int:
    """Sum of the elements, each times an odd number that tells its place, modulo 2^64.

    Of a float its 32 bits are taken, and none of a zero, whose sign is nobody's concern.
    """
    flat = output.reshape(-1)
    if flat.dtype.kind == "f":
        single = flat.astype(np.float32)
        flat = np.where(single == 0, 0, single.view(np.uint32))
    words = flat.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        weights = (np.arange(words.size, dtype=np.uint64) * np.uint64(_ODD)) | np.uint64(1)
        return int((words * weights).sum(dtype=np.uint64))


def _check_exact(operator: Operator) -> None:
    """Refuse padding with which sums of floats, which an epilogue's bits depend on, are rounded.

    Raises:
        ExportError: the program could not tell a wrong kernel from a right one.
    """
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    if integer or operator.epilogue is None:
        return
    for load in operator.sources:
        if load.padding * _EIGHTHS % 1 or abs(load.padding) > _LARGEST:
            raise ExportError(
                f"{load}: before an epilogue of floats the test program takes padding that is a "
                f"multiple of 1/{_EIGHTHS} up to {_LARGEST}, of which every sum is exact"
            )


def _is_exact(operator: Operator) -> bool:
    """Whether the result does not depend on the order of additions.

    An epilogue's sums of floats do not, for the values that the program takes.
    """
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    return integer or operator.epilogue is not None


def test_program(request: Request, kernel: CKernel) -> str:
    """C source of a program that checks the kernel, and times it when given a number."""
    _check_exact(request.candidate.mapping.operator)
    example = Example.of(request.candidate.mapping.operator)
    operator, name = kernel.names.operator(request.candidate.mapping.operator), request.name
    # Each tensor is called what it is called in C.
    *inputs, output = (replace(p, tensor=kernel.names.tensors[p.tensor]) for p in kernel.parameters)
    kinds = {t.name: c_type(held(str(t.dtype))) for t in operator.inputs}
    drawn = "".join(
        f"  {kinds[t.name]} *{_at(t.name)} = allocate({t.elements}, sizeof *{_at(t.name)});\n"
        f"  for (size_t i = 0; i < {t.elements}; ++i)\n"
        f"    {_at(t.name)}[i] = {_value(operator, number, example.trial)};\n"
        for number, t in enumerate(operator.inputs)
    )
    packed = "".join(
        f"  {p.kind} *of_{p.name} = allocate({p.elements}, sizeof *of_{p.name});\n"
        f"  {name}_pack_{p.tensor}({_at(p.tensor)}, of_{p.name});\n"
        for p in inputs
        if p.packed
    )
    arguments = ", ".join(f"of_{p.name}" for p in (*inputs, output))
    digest = ""
    if _is_exact(operator):
        expected = f"UINT64_C({output_digest(example.output)})"
        digest = DIGEST.format(element=_word(operator), elements=output.elements, digest=expected)
    return PROGRAM.format(
        name=name,
        upper=name.upper(),
        functions=FUNCTIONS if operator.epilogue is not None else "",
        made=drawn + packed,
        call=f"{name}({arguments}, workspace)",
        kind=output.kind,
        out=_at(output.tensor),
        elements=output.elements,
        odd=f"UINT64_C({_ODD})",
        reference=_reference(operator, output),
        digest=digest,
    )


def _word(operator: Operator) -> str:
    """C expression of what element ``i`` of the result adds to the digest."""
    kind, text = dtype(str(operator.result_dtype)), f"{_at(operator.output.tensor.name)}[i]"
    if kind.is_integer:
        return f"(int64_t){text}"
    value = f"from_bfloat16({text})" if kind.name == "bfloat16" else text
    return f"float_bits({value})"


def _value(operator: Operator, number: int, trial: int) -> str:
    """C expression of element ``i`` of an input; what :func:`_inputs` makes."""
    tensor = operator.inputs[number]
    kind = dtype(str(tensor.dtype))
    bits = f"random_bits(UINT64_C({_stream(operator, number, trial)}) << 40, i)"
    if kind.is_integer:
        low, high = kind.limits
        span, start = min(high - low + 1, 1 << 16), low if high < 1 << 16 else 0
        return f"({c_type(held(kind.name))})((int64_t)({bits} % {span}) + ({start}))"
    value = f"(float)((int)({bits} % {2 * _EIGHTHS + 1}) - {_EIGHTHS}) / {_EIGHTHS}"
    if _is_scale(operator, tensor):
        value = f"scaled({bits}, {_LENGTHS[kind.name]})"
    return f"bfloat16({value})" if kind.name == "bfloat16" else value


def _reference(operator: Operator, output: Parameter) -> str:
    """Loops of the operator that count the elements where the kernel says otherwise."""
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    exact = _is_exact(operator)
    pad = "  " * (len(operator.spatial) + 1)
    product = " * ".join(_read(x, integer) for x in operator.sources)
    zeros = [x for x in operator.sources if x.padded and not x.padding]
    guards = " && ".join(g for x in zeros for g in _guards(x))
    inside = f"if ({guards}) " if guards else ""
    summed = f"sum += {product};"
    if not exact:
        summed = f"{{ double term = {product}; sum += term; size += fabs(term); }}"
    lines = [
        *("  " * depth + _loop(it) for depth, it in enumerate(operator.spatial, 1)),
        f"{pad[2:]}{{",
        f"{pad}{'int64_t' if integer else 'double'} sum = 0;",
        *([] if exact else [f"{pad}double size = 0;"]),
        *(pad + _loop(it) for it in operator.reduce),
        f"{pad}  {inside}{summed}",
        f"{pad}wrong += {_is_wrong(operator, output)};",
        f"{pad[2:]}}}",
    ]
    return "\n".join(lines)


def _is_wrong(operator: Operator, output: Parameter) -> str:
    """C expression that compares an element of the kernel's with ``sum``."""
    got = f"{_at(output.tensor)}[{_flat(operator.output)}]"
    if operator.epilogue is not None:
        kind = "int32_t" if str(operator.output.tensor.dtype) == "int32" else "float"
        expected = _finished(operator, f"(({kind})sum)")
        if output.kind == "float":
            return f"float_bits({got}) != float_bits({expected})"
        return f"{got} != ({output.kind}){expected}"
    if _is_exact(operator):
        return f"{got} != ({output.kind})sum"
    terms = max(1, int(np.prod([it.extent for it in operator.reduce])))
    unit = "0x1p-10" if operator.output.tensor.dtype == "float16" else "0x1p-23"
    return f"!(fabs({got} - sum) <= {terms + 2} * {unit} * size)"


def _at(name: str, prefix: str = "of") -> str:
    """A tensor, or with ``"at"`` an iteration, under a name that nothing else has."""
    return f"{prefix}_{name}"


def _loop(it: Iteration) -> str:
    name = _at(it.name, "at")
    return f"for (int64_t {name} = 0; {name} < {it.extent}; ++{name})"


def _read(load: BufferLoad, integer: bool) -> str:
    read = f"({'int64_t' if integer else 'double'}){_element(load)}"
    if not load.padding:
        return read
    value = f"INT64_C({load.padding})" if integer else repr(float(load.padding))
    return f"({' && '.join(_guards(load))} ? {read} : {value})"


def _element(load: BufferLoad) -> str:
    text = f"{_at(load.tensor.name)}[{_flat(load)}]"
    return f"from_bfloat16({text})" if str(load.tensor.dtype) == "bfloat16" else text


def _flat(load: BufferLoad) -> str:
    """Position of an element in its contiguous tensor."""
    text = ""
    for index, size in zip(load.indices, load.tensor.shape, strict=True):
        here = _affine(index)
        text = f"({text}) * {size} + {here}" if text else here
    return text or "0"


def _affine(index: Affine) -> str:
    parts = [_at(n, "at") if c == 1 else f"{c} * {_at(n, 'at')}" for n, c in index.terms]
    if index.constant or not parts:
        parts.append(f"({index.constant})")
    return f"({' + '.join(parts)})"


def _guards(load: BufferLoad) -> list[str]:
    return [
        f"{_affine(i)} >= 0 && {_affine(i)} < {size}"
        for i, size in zip(load.indices, load.tensor.shape, strict=True)
    ]


def _finished(op: Operator, accumulator: str) -> str:
    """C expression of what an epilogue stores for one element of what was summed."""
    assert op.epilogue is not None
    kind = str(op.output.tensor.dtype)
    value = op.epilogue.compute(accumulator, kind, _InC())
    computed, result = op.epilogue.expression.kind(kind), op.epilogue.result(kind)
    if not dtype(result).is_integer:
        value = f"(float)({value})"
        return f"bfloat16({value})" if result == "bfloat16" else value
    low, high = dtype(result).limits
    if computed == "float32":
        return f"f_integer({value}, {low}.0, {high}.0)"
    return value if result == "int32" else f"i_min(i_max({value}, {low}), {high})"


class _InC:
    """What :mod:`amos.ir.epilogue` states, in C: nothing is shared with the kernel it checks."""

    def number(self, value: float, kind: str) -> str:
        return f"{np.float32(value)!s}f" if kind == "float32" else f"INT32_C({int(value)})"

    def read(self, load: BufferLoad, kind: str) -> str:
        return f"({'float' if kind == 'float32' else 'int32_t'}){_element(load)}"

    def convert(self, value: str) -> str:
        return f"(float)({value})"

    def apply(self, name: str, kind: str, values: list[str]) -> str:
        return f"{'f' if kind == 'float32' else 'i'}_{name}({', '.join(values)})"
