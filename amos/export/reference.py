"""The test program of an export: plain loops of the operator, and NumPy's digest.

Inputs are made from a counter by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014),
so that C and NumPy make the same ones. The program compares every element with the
operator's own loops; integer results must also have the digest that NumPy's result
had when the kernel was exported.
"""

from __future__ import annotations

import numpy as np

from amos.codegen.arrays import held
from amos.codegen.c_source import CKernel, Parameter, identifier
from amos.codegen.c_types import c_type
from amos.export.request import Request
from amos.ir import Affine, BufferLoad, Iteration, Operator, dtype
from amos.ir.floats import integer_limits
from amos.validate import evaluate

__all__ = ["inputs_of", "output_digest", "test_program"]

_ODD = 0x9E3779B97F4A7C15
#: Values of floating-point inputs are multiples of 1/8 below 1: exact in every type.
_EIGHTHS = 8


def inputs_of(operator: Operator) -> dict[str, np.ndarray]:
    """The inputs that the test program makes, in their containers."""
    made = {}
    for number, tensor in enumerate(operator.inputs):
        kind = dtype(str(tensor.dtype))
        bits = _random(number, tensor.elements)
        if kind.is_integer:
            low, high = integer_limits(kind)
            values = (bits % np.uint64(min(high - low + 1, 1 << 16))).astype(np.int64)
            values += low if high < 1 << 16 else 0
        else:
            values = (bits % np.uint64(2 * _EIGHTHS + 1)).astype(np.int64) - _EIGHTHS
        unit = 1 if kind.is_integer else _EIGHTHS
        made[tensor.name] = (values / unit).astype(kind.numpy).reshape(tensor.shape)
    return made


def _random(stream: int, count: int) -> np.ndarray:
    """SplitMix64 of counters ``stream << 40 | 0 …``, its upper 32 bits."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(stream << 40)) * np.uint64(_ODD)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(32))


def output_digest(output: np.ndarray) -> int:
    """Sum of the elements, each times an odd number that tells its place, modulo 2^64."""
    flat = output.reshape(-1).astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        weights = (np.arange(flat.size, dtype=np.uint64) * np.uint64(_ODD)) | np.uint64(1)
        return int((flat * weights).sum(dtype=np.uint64))


def test_program(request: Request, kernel: CKernel) -> str:
    """C source of a program that checks the kernel, and times it when given a number."""
    operator, name = request.candidate.mapping.operator, request.name
    *inputs, output = kernel.parameters
    tensors = {t.name: (number, t) for number, t in enumerate(operator.inputs)}
    kinds = {t.name: c_type(held(str(t.dtype))) for t in operator.inputs}
    made = "".join(
        f"  {kinds[n]} *{_at(n)} = allocate({t.elements}, sizeof *{_at(n)});\n"
        f"  for (size_t i = 0; i < {t.elements}; ++i)\n"
        f"    {_at(n)}[i] = {_value(str(t.dtype), number)};\n"
        for n, (number, t) in tensors.items()
    )
    packed = "".join(
        f"  {p.kind} *of_{p.name} = allocate({p.elements}, sizeof *of_{p.name});\n"
        f"  {name}_pack_{identifier(p.tensor)}({_at(p.tensor)}, of_{p.name});\n"
        for p in inputs
        if p.packed
    )
    out = _at(output.tensor)
    arguments = ", ".join(f"of_{p.name}" for p in (*inputs, output))
    integer = dtype(str(operator.output.tensor.dtype)).is_integer
    digest = (
        f"UINT64_C({output_digest(evaluate(operator, inputs_of(operator)))})" if integer else ""
    )
    return _PROGRAM.format(
        name=name,
        upper=name.upper(),
        made=made + packed,
        call=f"{name}({arguments}, workspace)",
        kind=output.kind,
        out=out,
        elements=output.elements,
        odd=f"UINT64_C({_ODD})",
        reference=_reference(operator, kinds, output, integer),
        digest=_DIGEST.format(out=out, elements=output.elements, digest=digest) if integer else "",
    )


def _value(kind: str, stream: int) -> str:
    """C expression of input ``i``; what :func:`inputs_of` makes."""
    bits = f"random_bits(UINT64_C({stream}) << 40, i)"
    known = dtype(kind)
    if known.is_integer:
        low, high = integer_limits(known)
        span, start = min(high - low + 1, 1 << 16), low if high < 1 << 16 else 0
        return f"({c_type(held(kind))})((int64_t)({bits} % {span}) + ({start}))"
    value = f"(float)((int)({bits} % {2 * _EIGHTHS + 1}) - {_EIGHTHS}) / {_EIGHTHS}"
    return f"bfloat16({value})" if kind == "bfloat16" else value


def _reference(operator: Operator, kinds: dict[str, str], output: Parameter, integer: bool) -> str:
    """Loops of the operator that count the elements where the kernel says otherwise."""
    lines, depth = [], 1
    for it in operator.spatial:
        lines.append("  " * depth + _loop(it))
        depth += 1
    pad = "  " * depth
    lines.append(f"{pad[2:]}{{")
    lines.append(f"{pad}{'int64_t' if integer else 'double'} sum = 0;")
    if not integer:
        lines.append(f"{pad}double size = 0;")
    for it in operator.reduce:
        lines.append(pad + _loop(it))
    product = " * ".join(_read(x, str(x.tensor.dtype), integer) for x in operator.sources)
    guards = " && ".join(g for x in operator.sources if x.padded for g in _guards(x))
    inside = f"if ({guards}) " if guards else ""
    if integer:
        lines.append(f"{pad}  {inside}sum += {product};")
    else:
        lines.append(
            f"{pad}  {inside}{{ double term = {product}; sum += term; size += fabs(term); }}"
        )
    got = f"{_at(output.tensor)}[{_flat(operator.output)}]"
    terms = max(1, int(np.prod([it.extent for it in operator.reduce])))
    unit = "0x1p-10" if operator.output.tensor.dtype == "float16" else "0x1p-23"
    wrong = (
        f"{got} != ({output.kind})sum"
        if integer
        else f"!(fabs({got} - sum) <= {terms + 2} * {unit} * size)"
    )
    lines.append(f"{pad}wrong += {wrong};")
    lines.append(f"{pad[2:]}}}")
    return "\n".join(lines)


def _at(name: str, prefix: str = "of") -> str:
    """A tensor, or with ``"at"`` an iteration, under a name that nothing else has."""
    return f"{prefix}_{identifier(name)}"


def _loop(it: Iteration) -> str:
    name = _at(it.name, "at")
    return f"for (int64_t {name} = 0; {name} < {it.extent}; ++{name})"


def _read(load: BufferLoad, kind: str, integer: bool) -> str:
    text = f"{_at(load.tensor.name)}[{_flat(load)}]"
    if kind == "bfloat16":
        return f"(double)from_bfloat16({text})"
    return f"({'int64_t' if integer else 'double'}){text}"


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


_DIGEST = """  uint64_t digest = 0;
  for (size_t i = 0; i < {elements}; ++i)
    digest += (uint64_t)(int64_t){out}[i] * ((uint64_t)i * UINT64_C(0x9E3779B97F4A7C15) | 1);
  if (digest != {digest}) {{
    printf("the output differs from NumPy's at the time of the export\\n");
    return 1;
  }}
"""

_PROGRAM = """/* Made by amos export: checks {name} against the operator's own loops.
 * With a number of runs as its argument it also prints their median time. */
#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "{name}.h"

static inline uint64_t random_bits(uint64_t stream, uint64_t i) {{
  uint64_t z = (stream + i + 1) * {odd};
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return (z ^ (z >> 31)) >> 32;
}}

static inline uint16_t bfloat16(float value) {{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}}

static inline float from_bfloat16(uint16_t value) {{
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}}

static void *allocate(size_t count, size_t size) {{
  void *memory;
  if (posix_memalign(&memory, 64, count * size + 64)) exit(3);
  memset(memory, 0, count * size + 64);
  return memory;
}}

static double seconds(void) {{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}}

static int order(const void *a, const void *b) {{
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}}

int main(int argc, char **argv) {{
  if (!{name}_supported()) {{
    printf("{name}: this CPU lacks an instruction that the kernel needs\\n");
    return 77;
  }}
{made}  {kind} *{out} = allocate({elements}, sizeof *{out});
  void *workspace = allocate({upper}_WORKSPACE, 1);
  memset({out}, 0x55, {elements} * sizeof *{out});
  {call};
{digest}  size_t wrong = 0;
{reference}
  if (wrong) {{
    printf("{name}: %zu of {elements} elements are wrong\\n", wrong);
    return 1;
  }}
  printf("{name}: {elements} elements are right\\n");
  int runs = argc > 1 ? atoi(argv[1]) : 0;
  if (runs > 0) {{
    double *times = allocate(runs, sizeof *times);
    for (int run = 0; run < runs; ++run) {{
      double start = seconds();
      {call};
      times[run] = seconds() - start;
    }}
    qsort(times, runs, sizeof *times, order);
    printf("{name}: %.4f ms, median of %d runs\\n", times[runs / 2] * 1e3, runs);
  }}
  return 0;
}}
"""
