"""The test program of an export: the inputs that it draws, and NumPy's results for them.

Inputs are chosen so that sums are hardly ever rounded. Results are then the same in any order,
and must have the digest of NumPy's at export time. Of other results some elements are compared,
within the tolerance of measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf, prod

import numpy as np

from amos.chains.measuring import chain_tolerance
from amos.codegen.c.source import CKernel, Parameter
from amos.codegen.c.types import c_type
from amos.codegen.tir.arrays import container_dtype
from amos.export.inputs import LENGTHS, ODD, draw_in_c, draw_inputs
from amos.export.program_text import DIGEST, PROGRAM, SAMPLES
from amos.export.request import Request
from amos.ir import Chain, Operator, dtype
from amos.ir.floats import unpack
from amos.measure.reference import as_tuple, tolerance
from amos.validate import evaluate
from amos.validate.buffers import write_output
from amos.validate.epilogue import finish, source_value

#: Fill value of each output byte before the kernel is called.
_FILLED = 0x55
#: Number of choices of an epilogue's tensors to select from.
_TRIALS = 8
#: Number of elements that are compared of a rounded result.
_SAMPLES = 4096


@dataclass(frozen=True)
class Example:
    """Inputs and NumPy's results for the test program, by a choice of an epilogue's tensors."""

    trial: int
    inputs: dict[str, np.ndarray]
    outputs: tuple[np.ndarray, ...]

    @staticmethod
    def of(operator: Operator | Chain) -> Example:
        """Draw the first choice, or with an epilogue the one with the most distinct results.

        A scale may clamp every element to a limit of the result's range, which would hide
        a wrong sum.
        """
        inputs = draw_inputs(operator, 0)
        if isinstance(operator, Chain):
            return Example(0, inputs, as_tuple(evaluate(operator, inputs)))
        plain = replace(operator, epilogue=None, store=None, further=())
        sums = evaluate(plain, {tensor.name: inputs[tensor.name] for tensor in plain.inputs})
        examples = []
        loads = any(epilogue.loads for epilogue in operator.epilogues)
        for trial in range(_TRIALS if loads else 1):
            inputs = draw_inputs(operator, trial)
            examples.append(Example(trial, inputs, as_tuple(finish(operator, sums, inputs))))
        return max(examples, key=lambda example: (_distinct_count(example.outputs), -example.trial))


def _distinct_count(outputs: tuple[np.ndarray, ...]) -> int:
    return sum(len(np.unique(output)) for output in outputs)


def output_digest(output: np.ndarray) -> int:
    """Sum the elements, each times an odd number of its position, modulo 2^64.

    A float counts as its 32 bits, a zero of either sign as 0, and any NaN as 1.
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


def _are_exact(operator: Operator | Chain) -> list[bool]:
    """Return for each result whether it is the same in any order of summation.

    Floats of several elements that a further result adds up are rounded in any case.
    """
    if isinstance(operator, Chain):
        tensors = (*operator.inputs, *operator.temporaries, operator.result)
        return [all(dtype(str(tensor.dtype)).is_integer for tensor in tensors)]
    kind, sums = str(operator.output.tensor.dtype), _sums_exactly(operator)
    rounded = (
        x.combination == "+=" and x.combination_dtype(kind) == "float32" for x in operator.further
    )
    return [sums, *(sums and not each for each in rounded)]


def _sums_exactly(operator: Operator) -> bool:
    """Return whether no sum of products is rounded."""
    kind, combiner = dtype(str(operator.output.tensor.dtype)), operator.compute.combiner
    if kind.is_integer:
        return True
    bits, inputs = float(len(operator.sources)), draw_inputs(operator, 0)
    for load in operator.sources:
        read = source_value(operator, load.tensor, inputs).reshape(-1)
        if operator.prologue(load.tensor.name) is None:
            read = read[:_SAMPLES]  # the others are drawn in the same way
        padding = 0.0 if isinf(load.padding) else load.padding
        values = np.abs(np.append(read.astype(np.float64), padding))
        if not np.isfinite(values).all():
            return False
        unit = next((n for n in range(25) if not (values * 2.0**n % 1).any()), 25)
        bits += unit + np.log2(max(1.0, values.max()))
    terms = prod(it.extent for it in operator.reduce) if combiner == "+" else 1
    return combiner != "*" and bool(bits + np.log2(terms) <= LENGTHS[kind.name])


def test_program(request: Request, kernel: CKernel) -> str:
    """Write a C program that checks the kernel, and times it when given a number."""
    operator, name = request.operator, request.name
    example = Example.of(operator)
    # Each tensor has its name in C.
    spelling = kernel.names.tensors
    inputs, outputs = (
        [replace(p, tensor=spelling[p.tensor]) for p in parameters]
        for parameters in (kernel.inputs, kernel.results)
    )
    kinds = {t.name: c_type(container_dtype(str(t.dtype))) for t in operator.inputs}
    drawn = "".join(
        f"  {kinds[t.name]} *of_{own} = allocate({t.elements}, sizeof *of_{own});\n"
        f"  for (size_t i = 0; i < {t.elements}; ++i)\n"
        f"    of_{own}[i] = {draw_in_c(operator, number, example.trial)};\n"
        for number, t in enumerate(operator.inputs)
        for own in [spelling[t.name]]
    )
    packed = "".join(
        f"  {p.kind} *of_{p.name} = allocate({p.elements}, sizeof *of_{p.name});\n"
        f"  {name}_pack_{p.tensor}({''.join(f'of_{x}, ' for x in _read_by(kernel, p))}"
        f"of_{p.name});\n"
        for p in inputs
        if p.packed
    )
    results = [(p.kind, f"of_{p.tensor}", p.elements) for p in outputs]
    exact, elements = _are_exact(operator), sum(p.elements for p in outputs)
    pairs = zip(outputs, exact, strict=True)
    compared = sum(p.elements if each else min(p.elements, _SAMPLES) for p, each in pairs)
    some = f"{compared} of " * (compared < elements)
    return PROGRAM.format(
        name=name,
        upper=name.upper(),
        made=drawn + packed,
        call=f"{name}({', '.join(f'of_{p.name}' for p in (*inputs, *outputs))}, workspace)",
        results="".join(f"  {k} *{x} = allocate({n}, sizeof *{x});\n" for k, x, n in results),
        filled="".join(
            f"  memset({x}, {hex(_FILLED)}, {n} * sizeof *{x});\n" for _, x, n in results
        ),
        compared=f"{some}{elements} elements {'were compared and ' * bool(some)}are right",
        odd=f"UINT64_C({ODD})",
        checks="".join(
            _compare(operator, number, *each)
            for number, each in enumerate(zip(outputs, example.outputs, exact, strict=True))
        ),
    )


def _read_by(kernel: CKernel, parameter: Parameter) -> list[str]:
    """Return the tensors that a parameter is packed from, by their names in C."""
    return [kernel.names.tensors[each.tensor] for each in parameter.packed]


def _compare(
    operator: Operator | Chain, number: int, output: Parameter, reference: np.ndarray, exact: bool
) -> str:
    """Write C that compares a result with NumPy's, bit for bit if it is exact."""
    kind, element = str(operator.results[number].dtype), f"of_{output.tensor}[i]"
    wide = f"from_bfloat16({element})" if kind == "bfloat16" else element
    expected = _with_fill_values(operator, number, reference)
    if not exact:
        allowed = (
            chain_tolerance(operator, reference)
            if isinstance(operator, Chain)
            else tolerance(operator, reference, number)
        )
        return _compare_samples(output, expected, wide, allowed)
    word = f"(int64_t){element}" if dtype(kind).is_integer else f"float_bits({wide})"
    return DIGEST.format(
        tensor=output.tensor,
        element=word,
        elements=output.elements,
        digest=f"UINT64_C({output_digest(expected)})",
    )


def _compare_samples(output: Parameter, reference: np.ndarray, element: str, allowed: float) -> str:
    """Write C that compares some elements, the last one among them, within their tolerance."""
    flat = reference.reshape(-1)
    where = np.arange(min(flat.size, _SAMPLES))
    if flat.size > _SAMPLES:
        some = np.random.default_rng(0).choice(flat.size - 1, _SAMPLES - 1, replace=False)
        where = np.append(np.sort(some), flat.size - 1)
    rows = (f"{{{at}, {_number(float(flat[at]))}}}" for at in where)
    return SAMPLES.format(
        tensor=output.tensor,
        element=element,
        count=len(where),
        rows=",\n    ".join(rows),
        allowed=repr(allowed),
    )


def _number(value: float) -> str:
    if np.isnan(value):
        return "NAN"
    return repr(value) if np.isfinite(value) else f"{'-' * (value < 0)}INFINITY"


def _with_fill_values(operator: Operator | Chain, number: int, reference: np.ndarray) -> np.ndarray:
    """Put the program's fill value into elements that the kernel must not write."""
    if isinstance(operator, Chain):
        return reference
    store = operator.further[number - 1].store if number else operator.store
    if store is None or operator.fills(store):
        return reference
    kind = str(operator.results[number].dtype)
    size = reference.size * dtype(kind).bits // 8
    filled = unpack(np.full(size, _FILLED, np.uint8), kind, reference.shape)
    ones = np.ones((1,) * len(operator.spatial), np.bool_)
    return np.asarray(np.where(write_output(operator, ones, ones.dtype, store), reference, filled))
