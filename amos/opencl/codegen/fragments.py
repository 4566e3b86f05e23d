"""Fragments that work-items hold as vectors: the call of an instruction, a step of a reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amos.codegen.device.text import block, over_fragments
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.ir import dtype
from amos.opencl.codegen.text import vector_type
from amos.opencl.plan import TYPES


@dataclass(frozen=True)
class StepSource:
    """A source of a step: type of its fragments, their loops, and statements that read one."""

    kind: str
    loops: Sequence[str]
    load: Sequence[str]


def multiply_step(
    tile: Mapping[str, int], loops: Sequence[str], whole: StepSource, single: StepSource, call: str
) -> list[str]:
    """Write a step: load the fragments of a work-item, multiply all pairs.

    Args:
        whole: the source whose fragments are held all at once, in ``a``.
        single: the other one, in ``b``.
        call: the statement for one pair.
    """
    count = 1
    for name in whole.loops:
        count *= tile[name]
    inner = [name for name in loops if name not in single.loops]
    pairs = over_fragments(tile, inner, [call])
    return [
        f"{whole.kind} a[{count}];",
        *over_fragments(tile, whole.loops, [*whole.load]),
        *over_fragments(tile, single.loops, [f"{single.kind} b;", *single.load, *pairs]),
    ]


def write_call(name: str, intrinsic: Intrinsic) -> list[str]:
    """Write the instruction as a function of vectors, which returns the new accumulator."""
    implementation: Implementation = implementations(intrinsic.name)["opencl"]
    lines = [implementation.headers.strip()] if implementation.headers.strip() else []
    tensors = [load.tensor for load in intrinsic.operands]
    types = [TYPES[dtype(str(tensor.dtype)).name] for tensor in tensors]
    kinds = [vector_type(str(tensor.dtype), tensor.elements) for tensor in tensors]
    names = [tensor.name for tensor in tensors]
    parameters = ", ".join(f"{kind} {each}_" for kind, each in zip(kinds, names, strict=True))
    if implementation.function:
        arguments = ", ".join(f"{each}_" for each in names)
        body = [f"return {implementation.function}({arguments});"]
    else:
        constant = {each: "const " * (each != names[-1]) for each in names}
        body = [
            f"{constant[each]}{kind} *{each} = ({constant[each]}{kind} *)&{each}_;"
            for kind, each in zip(types, names, strict=True)
        ]
        body += [implementation.source.strip(), f"return {names[-1]}_;"]
    return [*lines, f"static {kinds[-1]} {name}({parameters}) {{", *block(body), "}", ""]
