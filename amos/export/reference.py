"""The test program of an export: plain loops of the operator, and NumPy's digest.

The program compares every element with the operator's own loops, its prologues and its
epilogue; exact results, which integers and those of an
epilogue are, must also have the digest that NumPy's had when the kernel was exported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf, prod

import numpy as np

from amos.codegen.c.source import CKernel, Parameter
from amos.codegen.c.types import c_type
from amos.codegen.tir.arrays import held
from amos.errors import ExportError
from amos.export.inputs import EIGHTHS, ODD, drawn_inputs, drawn_value
from amos.export.loops import InC, flat, loop, named, start, statement, stored
from amos.export.program_text import DIGEST, FUNCTIONS, PROGRAM
from amos.export.reductions import NEAR, Reduction
from amos.export.request import Request
from amos.ir import Operator, dtype
from amos.ir.floats import unpack
from amos.validate import evaluate
from amos.validate.buffers import write_output
from amos.validate.epilogue import finish, source_values

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
        outputs: NumPy's results.
    """

    trial: int
    inputs: dict[str, np.ndarray]
    outputs: tuple[np.ndarray, ...]

    @staticmethod
    def of(operator: Operator) -> Example:
        """The first choice, or with an epilogue the one of some with the most distinct results.

        A scale may send everything to an end of the result's range, where a wrong
        sum would not be seen.
        """
        inputs = drawn_inputs(operator, 0)
        plain = replace(operator, epilogue=None, store=None, further=())
        sums = evaluate(plain, {tensor.name: inputs[tensor.name] for tensor in plain.inputs})
        examples = []
        loads = any(epilogue.loads for epilogue in operator.epilogues)
        for trial in range(_TRIALS if loads else 1):
            inputs = drawn_inputs(operator, trial)
            outputs = finish(operator, sums, inputs)
            every = outputs if operator.further else (outputs,)
            examples.append(Example(trial, inputs, every))
        return max(examples, key=lambda each: (_distinct(each.outputs), -each.trial))


def _distinct(outputs: tuple[np.ndarray, ...]) -> int:
    return sum(len(np.unique(output)) for output in outputs)


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
    """Refuse sums of floats, which an epilogue's bits depend on, that are rounded."""
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    if integer or not operator.epilogues:
        return
    if (kind := operator.output.tensor.dtype) in ("float16", "bfloat16"):
        raise ExportError(
            f"{operator.compute}: before an epilogue the test program takes no sums of {kind}, "
            "which are rounded"
        )
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
    return integer or bool(operator.epilogues)


def test_program(request: Request, kernel: CKernel) -> str:
    """C source of a program that checks the kernel, and times it when given a number."""
    _check_exact(request.candidate.mapping.operator)
    example = Example.of(request.candidate.mapping.operator)
    operator, name = kernel.names.operator(request.candidate.mapping.operator), request.name
    # Each tensor is called what it is called in C.
    inputs, outputs = (
        [replace(p, tensor=kernel.names.tensors[p.tensor]) for p in several]
        for several in (kernel.inputs, kernel.results)
    )
    kinds = {t.name: c_type(held(str(t.dtype))) for t in operator.inputs}
    drawn = "".join(
        f"  {kinds[t.name]} *{named(t.name)} = allocate({t.elements}, sizeof *{named(t.name)});\n"
        f"  for (size_t i = 0; i < {t.elements}; ++i)\n"
        f"    {named(t.name)}[i] = {drawn_value(operator, number, example.trial)};\n"
        for number, t in enumerate(operator.inputs)
    )
    packed = "".join(
        f"  {p.kind} *of_{p.name} = allocate({p.elements}, sizeof *of_{p.name});\n"
        f"  {name}_pack_{p.tensor}({''.join(f'{named(given)}, ' for given in _read_by(kernel, p))}"
        f"of_{p.name});\n"
        for p in inputs
        if p.packed
    )
    arguments = ", ".join(f"of_{p.name}" for p in (*inputs, *outputs))
    results = [(p.kind, named(p.tensor), p.elements) for p in outputs]
    return PROGRAM.format(
        name=name,
        upper=name.upper(),
        functions=_functions(operator),
        made=drawn + packed,
        call=f"{name}({arguments}, workspace)",
        results="".join(f"  {k} *{x} = allocate({n}, sizeof *{x});\n" for k, x, n in results),
        filled="".join(
            f"  memset({x}, {hex(_FILLED)}, {n} * sizeof *{x});\n" for _, x, n in results
        ),
        elements=sum(p.elements for p in outputs),
        odd=f"UINT64_C({ODD})",
        reference=_reference(operator, outputs),
        digest=_digests(operator, outputs, example) if _is_exact(operator) else "",
    )


def _digests(operator: Operator, outputs: list[Parameter], example: Example) -> str:
    """C that compares each result with NumPy's, but for reductions."""
    texts = []
    for number, (alone, output) in enumerate(zip(_each(operator), outputs, strict=True)):
        if number and operator.further[number - 1].reduces:
            continue
        digest = output_digest(_left_alone(alone, example.outputs[number]))
        text = DIGEST.format(
            element=_word(alone), elements=output.elements, digest=f"UINT64_C({digest})"
        )
        texts.append(text)
    return texts[0] if len(texts) == 1 else "".join(f"  {{\n{text}  }}\n" for text in texts)


def _each(operator: Operator) -> list[Operator]:
    """The operator with each of its results for its only one."""
    return [replace(operator, further=()), *map(operator.alone, operator.further)]


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
    kind, text = dtype(str(operator.result_dtype)), f"{named(operator.result.name)}[i]"
    return f"(int64_t){text}" if kind.is_integer else _bits_of(operator, text)


def _bits_of(operator: Operator, element: str) -> str:
    """C expression of what identifies a float of the result."""
    wide = f"from_bfloat16({element})" if operator.result_dtype == "bfloat16" else element
    return f"float_bits({wide})"


def _reference(operator: Operator, outputs: list[Parameter]) -> str:
    """Loops of the operator that count the elements where the kernel says otherwise."""
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    exact = _is_exact(operator)
    pad = "  " * (len(operator.spatial) + 1)
    each, reductions = list(zip(_each(operator), outputs, strict=True)), []
    for number, result in reversed([*enumerate(operator.further, 1)]):
        if result.reduces:
            reductions.append(Reduction(operator, result, *each.pop(number)))
    lines = [
        *(line for reduction in reductions for line in reduction.before()),
        *("  " * depth + loop(it) for depth, it in enumerate(operator.spatial, 1)),
        f"{pad[2:]}{{",
        f"{pad}{'int64_t' if integer else 'double'} sum = {start(operator, integer)};",
        *([] if exact else [f"{pad}double size = 0;"]),
        *(pad + loop(it) for it in operator.reduce),
        f"{pad}  {statement(operator, integer, exact)}",
        *(f"{pad}wrong += {_is_wrong(alone, output, exact)};" for alone, output in each),
        *(
            pad + reduction.added(_finished(reduction.alone, _sum(operator)))
            for reduction in reductions
        ),
        f"{pad[2:]}}}",
        *(line for reduction in reductions for line in reduction.after()),
    ]
    return "\n".join(lines)


def _sum(operator: Operator) -> str:
    """C expression of the accumulator as epilogues take it."""
    kind = str(operator.output.tensor.dtype)
    return {"int32": "((int32_t)sum)", "float32": "((float)sum)"}.get(kind, "sum")


def _is_wrong(operator: Operator, output: Parameter, exact: bool) -> str:
    """C expression that compares an element of the kernel's with ``sum``."""
    got = f"{named(output.tensor)}[{flat(operator.stored)}]"
    if operator.epilogue is not None:
        expected = _finished(operator, _sum(operator))
        if dtype(str(operator.result_dtype)).is_integer:
            return f"{got} != ({output.kind}){expected}"
        return f"{_bits_of(operator, got)} != {_bits_of(operator, expected)}"
    if exact:
        return f"{got} != ({output.kind})sum"
    terms = max(1, int(np.prod([it.extent for it in operator.reduce])))
    unit = "0x1p-10" if operator.output.tensor.dtype == "float16" else "0x1p-23"
    return f"!(fabs({got} - sum) <= {terms + 2} * {unit} * size)"


def _finished(op: Operator, accumulator: str) -> str:
    """C expression of what an epilogue stores for one element of what was summed."""
    assert op.epilogue is not None
    kind = str(op.output.tensor.dtype)
    value = op.epilogue.compute(accumulator, kind, InC())
    return stored(value, op.epilogue.kind(kind), op.epilogue.result(kind))


def _functions(operator: Operator) -> str:
    """C of what prologues and the epilogue call."""
    if not operator.epilogues and not operator.prologues:
        return ""
    by = InC()
    for prologue in operator.prologues:
        prologue.compute(by)
    kind = str(operator.output.tensor.dtype)
    if operator.epilogue is not None:
        operator.epilogue.compute("sum", kind, by)
    for result in operator.further:
        result.epilogue.compute("sum", kind, by)
        if result.last is not None:
            result.last.compute("sum", result.together(kind), by)
    near = NEAR if any(result.last is not None for result in operator.further) else ""
    return FUNCTIONS + near + "".join(f"{text}\n" for text in by.functions.values())
