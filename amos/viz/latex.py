"""Abstractions and mappings as LaTeX (AMOS, Definitions 4.1 and 4.2; Figure 3)."""

from __future__ import annotations

import re

from amos.intrinsics import Intrinsic, Memory
from amos.ir import BufferLoad, Compute
from amos.ir.combining import function


def compute_latex(compute: Compute) -> str:
    r"""Format the scalar statement with its index ranges.

    >>> from amos import operators
    >>> print(compute_latex(operators.resolve("gemv").compute))
    \mathrm{out}[m] \mathrel{+}= \mathrm{a}[m,k] \cdot \mathrm{x}[k]\quad \text{s.t. }
    m < 1000,\ k < 2048
    """
    ranges = ",\\ ".join(f"{_name(it.name)} < {it.extent}" for it in compute.iterations)
    sign = f"\\mathrel{{{_symbol(compute.combiner)}}}=" if compute.accumulates else "="
    sources, join = [_load(source) for source in compute.sources], function(compute.join)
    joined = f" {_symbol(compute.join)} ".join(sources)
    if join.ordered:
        joined = f"{_symbol(compute.join)}({', '.join(sources)})"
    return f"{_load(compute.dst)} {sign} {joined}\\quad \\text{{s.t. }} {ranges}"


def _symbol(symbol: str) -> str:
    return {"*": "\\cdot", "max": "\\max", "min": "\\min"}.get(symbol, symbol)


def memory_latex(unit: Intrinsic) -> str:
    """Format the memory abstraction, one line a statement."""
    lines = [_memory(statement) for statement in unit.memory]
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


def _memory(statement: Memory) -> str:
    indices = ", ".join(map(_name, statement.indices))
    fragment = f"{_text(f'{statement.register_scope}.{statement.operand}')}[{indices}]"
    terms = [_name(statement.address)]
    for index, stride in zip(statement.indices, statement.strides, strict=True):
        terms.append(_name(index) + ("" if stride == "1" else f" \\cdot {_name(stride)}"))
    location = f"{_text(f'{statement.scope}.{statement.operand}')}[{' + '.join(terms)}]"
    if statement.direction == "store":
        return f"{location} &= {fragment}"
    return f"{fragment} &= {location}"


def _load(load: BufferLoad) -> str:
    indices = ",".join(_index(str(index)) for index in load.indices)
    text = f"{_text(load.tensor.name)}[{indices}]"
    value = f", {load.padding!r}" if load.padding else ""
    return f"\\mathrm{{pad}}({text}{value})" if load.padded else text


def _index(text: str) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda match: _name(match[0]), text).replace("*", " \\cdot ")


def _text(name: str) -> str:
    escaped = name.replace("_", "\\_")
    return f"\\mathrm{{{escaped}}}"


def _name(name: str) -> str:
    """Format one letter with digits as a subscript, anything longer upright."""
    if match := re.fullmatch(r"([A-Za-z])(\d+)", name):
        return f"{match[1]}_{{{match[2]}}}"
    return name if len(name) == 1 or name.isdigit() else _text(name)
