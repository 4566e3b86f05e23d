"""Compiled networks as a library of onnxruntime's custom operators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import Any

from amos.codegen.c.compiler import complaint
from amos.codegen.tir.target import LLVM_FEATURES
from amos.errors import NetworkError
from amos.machine.cpu import cpu
from amos.measure.helpers import HelperLost, map_in_processes
from amos.measure.result_cache import key_of
from amos.network.external.source import Constants, library_source
from amos.network.external.straight_line import (
    COPY,
    Call,
    Step,
    StraightLine,
    straight_line,
)
from amos.network.graph import Node, Operand
from amos.network.kernels import CompiledRegion, require_compiler
from amos.network.loops import scheduling
from amos.network.loops.functions import LoopFunctions
from amos.network.loops.fusion import fuse
from amos.network.shapes import count_bytes

#: Name of the library in its folder.
LIBRARY = "libamos.so"
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-pthread")
_DIGITS = 16
#: Functions that are compiled together, and parts that all of them are divided into at most.
_FUNCTIONS, _MOST_MODULES = 8, 16


@dataclass(frozen=True)
class Library:
    """A library that onnxruntime loads.

    Attributes:
        constants: file that has to lie beside it.
        domain: of its operators, which has a digest of code and constants in its name.
        steps: calls of each operator, in order.
    """

    path: Path
    constants: Path
    domain: str
    steps: Mapping[str, tuple[Step, ...]]


def write_library(models: Sequence[CompiledRegion], folder: Path) -> Library:
    """Compile and link a library of networks.

    Args:
        folder: that the library and its constants are written to.

    Raises:
        NetworkError: a network does something that no library can, there is no C compiler, or it
            fails, or TVM cannot compile a function.
    """
    compiler = require_compiler()
    functions, programs = _write_programs(models)
    constants = Constants()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        objects = _write_objects(functions, models, Path(temporary))
        uses_tiles = any(kernel.tiled for model in models for kernel in model.kernels.values())

        def source(domain: str) -> str:
            return library_source(
                programs,
                constants,
                domain=domain,
                cores=cpu().cores,
                features=sorted(cpu().features & LLVM_FEATURES.keys()),
                uses_tiles=uses_tiles,
            )

        digest = sha256(source("").encode())
        for path in objects:
            digest.update(path.read_bytes())
        domain = f"amos.{digest.hexdigest()[:_DIGITS]}"
        text = Path(temporary, "libamos.c")
        text.write_text(source(domain), encoding="utf-8")
        exported = Path(temporary, "exported")
        exported.write_text(
            "{ global: RegisterCustomOps; amos_profile; local: *; };\n", encoding="utf-8"
        )
        linking = [f"-Wl,--version-script={exported}", "-Wl,-z,defs", "-lm"]
        files = [str(text), *map(str, objects), "-o", str(folder / LIBRARY)]
        if why := complaint([*compiler, *_FLAGS, *files, *linking]):
            raise NetworkError(f"{models[0].network.name}: the C compiler failed: {why}")
    steps = {each.name: each.steps for each in programs}
    return Library(folder / LIBRARY, constants.write(folder), domain, steps)


def _write_programs(
    models: Sequence[CompiledRegion],
) -> tuple[Mapping[str, Any], list[StraightLine]]:
    """Return the functions of loops by name, and the program of each network."""
    loops, programs = LoopFunctions(), list[StraightLine]()
    for model in models:
        calls = calls_of(model, loops)
        programs.append(straight_line(model.function, model.network.graph, calls))
    return loops.functions, programs


def calls_of(model: CompiledRegion, loops: LoopFunctions) -> list[Call]:
    """Return the calls that compute a network: of kernels, and of loops for all that they leave."""
    graph, calls, called = model.network.graph, list[Call](), set[int]()
    for task, kernel in model.kernels.items():
        for group in task.groups:
            called |= {node.number for node in group.nodes}
            calls.append(kernel.call(group))
    operands = (operand for call in calls for operand, _ in call.arguments)
    read = {operand.number for operand in operands if isinstance(operand, Node)}
    for fused in fuse(graph, called, read):
        if parts := fused.copied_parts:
            calls += _copy_parts(parts, fused.result)
            continue
        arguments = tuple((operand, operand.shape) for operand in fused.operands)
        name = loops.name_of(fused)
        shape = fused.result.shape or (1,)
        calls.append(Call(name, arguments, fused.result, shape, begin=fused.begin_bytes))
    return calls


def _copy_parts(parts: Sequence[Operand], result: Node) -> Iterator[Call]:
    """Yield the calls that copy parts of a concatenation one behind the other."""
    begin = 0
    for source in parts:
        yield Call(COPY, ((source, source.shape),), result, source.shape, result_begin=begin)
        begin += count_bytes(source)


def _write_objects(
    functions: Mapping[str, Any], models: Sequence[CompiledRegion], folder: Path
) -> list[Path]:
    """Write object files of the engine's loops, and one of each kernel."""
    kernels = [each for model in models for each in model.kernels.values()]
    codes = {each.symbol: each.object_code for each in kernels}
    named = [*functions.items()]
    count = min(_MOST_MODULES, -(-len(named) // _FUNCTIONS))
    parts = [scheduling.to_text(dict(named[number::count])) for number in range(count)]
    exact = scheduling.needs_exact_rounding(functions.values())
    try:
        keys = [key_of("loops", text, exact) for text in parts]
        written = map_in_processes(scheduling.object_code, parts, repeat(exact), keys=keys)
        for number, code in enumerate(written):
            codes[f"loops{number}"] = code
    except HelperLost as error:
        raise NetworkError(f"{models[0].network.name}: {error}") from error
    objects = []
    for name, code in codes.items():
        objects.append(folder / f"{name}.o")
        objects[-1].write_bytes(code)
    return objects
