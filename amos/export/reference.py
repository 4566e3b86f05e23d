"""The test program of an export: plain loops of the operator, and NumPy's digest.

The program compares every element with the operator's own loops, its prologues and its
epilogue; exact results, which integers and those of an
epilogue are, must also have the digest that NumPy's had when the kernel was exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isinf, prod

import numpy as np

from amos.codegen.c.source import CKernel, Parameter
from amos.codegen.c.types import c_type
from amos.codegen.scalar_text import ScalarText
from amos.codegen.tir.arrays import held
from amos.errors import ExportError
from amos.export.inputs import EIGHTHS, ODD, drawn_inputs, drawn_value
from amos.export.program_text import DIGEST, FUNCTIONS, PROGRAM
from amos.export.request import Request
from amos.ir import Affine, BufferLoad, Digit, Iteration, Operator, Store, dtype
from amos.ir.floats import unpack
from amos.validate import evaluate
from amos.validate.buffers import write_output
from amos.validate.epilogue import finish, source_values

__all__ = ["Example", "output_digest", "test_program"]

#: Padding of floats that keeps sums as exact, up to this.
_LARGEST = 8
#: Each byte of the output before the kernel is called.
_FILLED = 0x55
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
        inputs = drawn_inputs(operator, 0)
        plain = replace(operator, epilogue=None, store=None)
        sums = evaluate(plain, {tensor.name: inputs[tensor.name] for tensor in plain.inputs})
        if operator.epilogue is None:
            return Example(0, inputs, finish(operator, sums, inputs))
        examples = []
        for trial in range(_TRIALS if operator.epilogue.loads else 1):
            inputs = drawn_inputs(operator, trial)
            examples.append(Example(trial, inputs, finish(operator, sums, inputs)))
        return max(examples, key=lambda each: (len(np.unique(each.output)), -each.trial))


def output_digest(output: np.ndarray) -> int:
    """Sum of the elements, each times an odd number that tells its place, modulo 2^64.

    Of a float its 32 bits are taken, none of a zero, whose sign is nobody's concern, and
    one of what is no number.
    """
    flat = output.reshape(-1)
    if flat.dtype.kind == "f":
        single = flat.astype(np.float32)
        flat = np.where(single == 0, 0, single.view(np.uint32))
        flat = np.where(np.isnan(single), 1, flat)
    words = flat.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        weights = (np.arange(words.size, dtype=np.uint64) * np.uint64(ODD)) | np.uint64(1)
        return int((words * weights).sum(dtype=np.uint64))


def _check_exact(operator: Operator) -> None:
    """Refuse sums of floats, which an epilogue's bits depend on, that are rounded.

    Raises:
        ExportError: the program could not tell a wrong kernel from a right one.
    """
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    if integer or operator.epilogue is None:
        return
    if operator.compute.combiner == "*":
        raise ExportError(
            f"{operator.compute}: before an epilogue of floats the test program takes no products "
            "over a reduction, which are rounded"
        )
    for load in operator.sources:
        if isinf(load.padding):
            continue
        if load.padding * EIGHTHS % 1 or abs(load.padding) > _LARGEST:
            raise ExportError(
                f"{load}: before an epilogue of floats the test program takes padding that is a "
                f"multiple of 1/{EIGHTHS} up to {_LARGEST}, of which every sum is exact"
            )
    if operator.prologues and not _sums_exactly(operator):
        raise ExportError(
            f"prologue {operator.prologues[0]}: before an epilogue of floats the test program "
            "takes one of whose values every sum is exact, and this one rounds"
        )


def _sums_exactly(operator: Operator) -> bool:
    """Whether sums of what prologues make of the program's inputs fit a float32 as they are."""
    bits = 0.0
    for source in source_values(operator, drawn_inputs(operator, 0)).values():
        values = np.abs(source.astype(np.float64).reshape(-1))
        if not np.isfinite(values).all():
            return False
        unit = next((n for n in range(25) if not (values * 2.0**n % 1).any()), 25)
        bits += unit + np.log2(max(1.0, values.max(), _LARGEST))
    return bool(bits + np.log2(prod(it.extent for it in operator.reduce)) <= 24)


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
        f"    {_at(t.name)}[i] = {drawn_value(operator, number, example.trial)};\n"
        for number, t in enumerate(operator.inputs)
    )
    packed = "".join(
        f"  {p.kind} *of_{p.name} = allocate({p.elements}, sizeof *of_{p.name});\n"
        f"  {name}_pack_{p.tensor}({''.join(f'{_at(given)}, ' for given in _read_by(kernel, p))}"
        f"of_{p.name});\n"
        for p in inputs
        if p.packed
    )
    arguments = ", ".join(f"of_{p.name}" for p in (*inputs, output))
    digest = ""
    if _is_exact(operator):
        output_ = _left_alone(request.candidate.mapping.operator, example.output)
        expected = f"UINT64_C({output_digest(output_)})"
        digest = DIGEST.format(element=_word(operator), elements=output.elements, digest=expected)
    return PROGRAM.format(
        name=name,
        upper=name.upper(),
        functions=_functions(operator),
        made=drawn + packed,
        call=f"{name}({arguments}, workspace)",
        kind=output.kind,
        out=_at(output.tensor),
        filled=hex(_FILLED),
        elements=output.elements,
        odd=f"UINT64_C({ODD})",
        reference=_reference(operator, output),
        digest=digest,
    )


def _read_by(kernel: CKernel, parameter: Parameter) -> list[str]:
    """The tensors that a parameter is packed from, as they are called in C."""
    return [kernel.names.tensors[given.tensor] for given in parameter.packed]


def _left_alone(operator: Operator, output: np.ndarray) -> np.ndarray:
    """The result with what the kernel must not write as the program had filled it."""
    if operator.store is None or operator.whole:
        return output
    kind = str(operator.result_dtype)
    size = output.size * dtype(kind).bits // 8
    filled = unpack(np.full(size, _FILLED, np.uint8), kind, output.shape)
    ones = np.ones((1,) * len(operator.spatial), np.bool_)
    written = write_output(operator, ones, ones.dtype, operator.store)
    return np.asarray(np.where(written, output, filled))


def _word(operator: Operator) -> str:
    """C expression of what element ``i`` of the result adds to the digest."""
    kind, text = dtype(str(operator.result_dtype)), f"{_at(operator.result.name)}[i]"
    return f"(int64_t){text}" if kind.is_integer else _bits_of(operator, text)


def _bits_of(operator: Operator, element: str) -> str:
    """C expression of what identifies a float of the result."""
    wide = f"from_bfloat16({element})" if operator.result_dtype == "bfloat16" else element
    return f"float_bits({wide})"


def _reference(operator: Operator, output: Parameter) -> str:
    """Loops of the operator that count the elements where the kernel says otherwise."""
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    exact = _is_exact(operator)
    pad = "  " * (len(operator.spatial) + 1)
    combined = _summed if operator.compute.sums_products else _combined
    lines = [
        *("  " * depth + _loop(it) for depth, it in enumerate(operator.spatial, 1)),
        f"{pad[2:]}{{",
        f"{pad}{'int64_t' if integer else 'double'} sum = {_start(operator, integer)};",
        *([] if exact else [f"{pad}double size = 0;"]),
        *(pad + _loop(it) for it in operator.reduce),
        f"{pad}  {combined(operator, integer, exact)}",
        f"{pad}wrong += {_is_wrong(operator, output)};",
        f"{pad[2:]}}}",
    ]
    return "\n".join(lines)


def _summed(operator: Operator, integer: bool, exact: bool) -> str:
    """C statement that adds a product to ``sum``, unless one of its sources reads zero outside."""
    product = " * ".join(_read(operator, x, integer) for x in operator.sources)
    zeros = [x for x in operator.sources if x.padded and not x.padding]
    guards = " && ".join(g for x in zeros for g in _guards(x))
    inside = f"if ({guards}) " if guards else ""
    if exact:
        return f"{inside}sum += {product};"
    return f"{inside}{{ double term = {product}; sum += term; size += fabs(term); }}"


def _combined(operator: Operator, integer: bool, exact: bool) -> str:
    """C statement of any other combination of joined sources with ``sum``."""
    compute, kind = operator.compute, "int64_t" if integer else "double"
    first, *others = (_read(operator, x, integer, guarded=True) for x in operator.sources)
    steps = [f"{kind} term = {first};"]
    joined = _update("term", compute.join, "next", integer)
    steps += [f"{{ {kind} next = {x}; {joined} }}" for x in others]
    if integer and compute.combiner in ("max", "min"):
        steps.append(f"term = ({c_type(held(str(operator.output.tensor.dtype)))})term;")
    steps.append(
        _update("sum", compute.combiner, "term", integer) if compute.accumulates else "sum = term;"
    )
    if not exact:
        grown = "size = fabs(sum);" if compute.combiner != "+" else "size += fabs(term);"
        steps.append(grown)
    return f"{{ {' '.join(steps)} }}"


def _update(target: str, symbol: str, value: str, integer: bool) -> str:
    """C statement that combines a value with what is in a variable."""
    if symbol in ("max", "min"):
        return f"if ({value} {'>' if symbol == 'max' else '<'} {target}) {target} = {value};"
    if integer:
        return f"{target} = (int64_t)((uint64_t){target} {symbol} (uint64_t){value});"
    return f"{target} {symbol}= {value};"


def _start(operator: Operator, integer: bool) -> str:
    """C expression of what an accumulator starts from."""
    start = operator.compute.neutral(str(operator.output.tensor.dtype))
    if isinf(start):
        return "HUGE_VAL" if start > 0 else "-HUGE_VAL"
    return str(start)


def _is_wrong(operator: Operator, output: Parameter) -> str:
    """C expression that compares an element of the kernel's with ``sum``."""
    got = f"{_at(output.tensor)}[{_flat(operator.stored)}]"
    if operator.epilogue is not None:
        kind = "int32_t" if str(operator.output.tensor.dtype) == "int32" else "float"
        expected = _finished(operator, f"(({kind})sum)")
        if dtype(str(operator.result_dtype)).is_integer:
            return f"{got} != ({output.kind}){expected}"
        return f"{_bits_of(operator, got)} != {_bits_of(operator, expected)}"
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


def _read(operator: Operator, load: BufferLoad, integer: bool, guarded: bool = False) -> str:
    prologue = operator.prologue(load.tensor.name)
    if prologue is None:
        read = f"({'int64_t' if integer else 'double'}){_element(load)}"
    else:
        value = _stored(prologue.at(load).compute({}, _InC()).value, prologue.kind, prologue.dtype)
        if prologue.dtype == "bfloat16":
            value = f"from_bfloat16({value})"
        read = f"({'int64_t' if integer else 'double'})({value})"
    if not load.padding and not (guarded and load.padded):
        return read
    value = f"INT64_C({load.padding})" if integer else repr(float(load.padding))
    if isinf(load.padding):
        value = "HUGE_VAL" if load.padding > 0 else "-HUGE_VAL"
    return f"({' && '.join(_guards(load))} ? {read} : {value})"


def _element(load: BufferLoad) -> str:
    text = f"{_at(load.tensor.name)}[{_flat(load)}]"
    return f"from_bfloat16({text})" if str(load.tensor.dtype) == "bfloat16" else text


def _flat(load: BufferLoad) -> str:
    """Position of an element in its contiguous tensor."""
    text = ""
    digits = {str(each): each for each in load.digits} if isinstance(load, Store) else {}
    for index, size in zip(load.indices, load.tensor.shape, strict=True):
        here = _affine(index, digits)
        text = f"({text}) * {size} + {here}" if text else here
    return text or "0"


def _affine(index: Affine, digits: Mapping[str, Digit] | None = None) -> str:
    digits = digits or {}
    names = {n: _digit(digits[n]) if n in digits else _at(n, "at") for n in index.names}
    parts = [names[n] if c == 1 else f"{c} * {names[n]}" for n, c in index.terms]
    if index.constant or not parts:
        parts.append(f"({index.constant})")
    return f"({' + '.join(parts)})"


def _digit(digit: Digit) -> str:
    above = f"{_at(digit.iteration, 'at')} / {digit.divide}"
    return f"({above} % {digit.modulo})" if digit.modulo else f"({above})"


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
    return _stored(value, op.epilogue.kind(kind), op.epilogue.result(kind))


def _stored(value: str, computed: str, result: str) -> str:
    """A value of kind ``computed`` as an element of dtype ``result``."""
    if dtype(result).is_integer:
        return _InC().rounded(value, computed, result)
    return _narrowed(f"(float)({value})", result)


def _functions(operator: Operator) -> str:
    """C of what prologues and the epilogue call."""
    if operator.epilogue is None and not operator.prologues:
        return ""
    by = _InC()
    for prologue in operator.prologues:
        prologue.compute(by)
    if operator.epilogue is not None:
        operator.epilogue.compute("sum", str(operator.output.tensor.dtype), by)
    return FUNCTIONS + "".join(f"{text}\n" for text in by.functions.values())


def _narrowed(value: str, kind: str) -> str:
    """A float of C as an element of a floating-point type."""
    if kind == "float16":
        return f"(_Float16){value}"
    return f"bfloat16({value})" if kind == "bfloat16" else value


class _InC(ScalarText):
    """What :mod:`amos.ir.epilogue` states, in C: nothing is shared with the kernel it checks."""

    def __init__(self) -> None:
        super().__init__({"int32": "int32_t", "float32": "float"}, "static inline")

    def number(self, value: float, kind: str) -> str:
        return super().number(value, kind) if kind == "float32" else f"INT32_C({int(value)})"

    def read(self, load: BufferLoad, kind: str) -> str:
        return f"({'float' if kind == 'float32' else 'int32_t'}){_element(load)}"

    def convert(self, value: str) -> str:
        return f"(float)({value})"

    def rounded(self, value: str, kind: str, final: str) -> str:
        if not dtype(final).is_integer:
            text = _narrowed(value, final)
            return f"from_bfloat16({text})" if final == "bfloat16" else f"(float){text}"
        low, high = dtype(final).limits
        if kind == "float32":
            return f"f_integer({value}, {low}.0, {high}.0)"
        return value if final == "int32" else f"i_min(i_max({value}, {low}), {high})"
