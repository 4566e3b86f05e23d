"""Lines of C for kernels of parallel devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from amos.ir import Store
from amos.ir.index_text import Value, text, upper_bound

#: Largest value of an ``int``; places in larger tensors are computed with 64 bits.
_INT = 2**31 - 1


#: How C++ and OpenCL C compute with 64 bits.
WIDE_CPP, WIDE_OPENCL = "static_cast<long long>({})", "(long)({})"


def element_at(shape: Sequence[int], indices: Sequence[Value], wide: str = WIDE_CPP) -> str:
    """Write the place of an element in a row-major tensor."""
    total: Value = 0
    steps = [prod(shape[d + 1 :]) for d in range(len(shape))]
    for at, step in zip(indices, steps, strict=True):
        total = total + at * step
    if upper_bound(total) <= _INT:
        return text(total)
    terms = [f"{wide.format(text(i))} * {s}" for i, s in zip(indices, steps, strict=True)]
    return " + ".join(terms)


def result_at(store: Store, point: Mapping[str, Value], wide: str = WIDE_CPP) -> str:
    """Write the place of a result at an operator's iterations."""
    return element_at(store.tensor.shape, store.at(point), wide)


def block(lines: Iterable[str]) -> list[str]:
    """Indent lines by two columns; preprocessor lines stay."""
    return [line if line.startswith("#if") else f"  {line}" for line in lines]


def identifier(loop: str) -> str:
    """Spell a loop's name in C: names of tile loops have a dot."""
    return loop.replace(".", "_")


def unroll(name: str, count: int, body: Iterable[str]) -> list[str]:
    """Write an unrolled loop."""
    head = f"for (int {name} = 0; {name} < {count}; ++{name}) {{"
    return ["#pragma unroll", head, *block(body), "}"]


def over_fragments(tile: Mapping[str, int], loops: Sequence[str], body: list[str]) -> list[str]:
    """Write unrolled loops over a warp's fragments; ``tile`` counts those along each loop."""
    for name in reversed(loops):
        body = unroll(f"t_{identifier(name)}", tile[name], body)
    return body


def fragment_at(tile: Mapping[str, int], loops: Sequence[str]) -> str:
    """Return the position of a fragment among those that :func:`over_fragments` visits."""
    code = ""
    for name in loops:
        t = f"t_{identifier(name)}"
        code = f"({code}) * {tile[name]} + {t}" if code else t
    return code or "0"


@dataclass(frozen=True)
class StepSource:
    """A source of a step: its fragments' variable, their loops, and statements that read one."""

    variable: str
    loops: Sequence[str]
    load: Sequence[str]


def multiply_step(
    tile: Mapping[str, int], loops: Sequence[str], whole: StepSource, single: StepSource, call: str
) -> list[str]:
    """Write a step: load a worker's fragments, multiply all pairs.

    Args:
        whole: the source whose fragments are held all at once.
        single: the other one.
        call: the statement for one pair.
    """
    count = prod(tile[name] for name in whole.loops)
    pairs = over_fragments(tile, [name for name in loops if name not in single.loops], [call])
    return [
        f"{whole.variable}[{count}];",
        *over_fragments(tile, whole.loops, [*whole.load]),
        *over_fragments(tile, single.loops, [f"{single.variable};", *single.load, *pairs]),
    ]
