"""TVM tensor intrinsics made from descriptions.

The pattern that TVM matches is always generated from the intrinsic's meaning.
The implementation is native where one is registered for this intrinsic and the CPU has the
instruction; otherwise the meaning itself is emitted as plain loops, so that every intrinsic can be
compiled for every CPU.
"""

from __future__ import annotations

import hashlib
import itertools
import keyword
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from amos._toolchain import load_tvm, s_tir
from amos.codegen.c.calls import function_name
from amos.codegen.naming import Names
from amos.codegen.tir.arrays import container_dtype, decode_text
from amos.codegen.tir.combining import join_text, statement_text
from amos.errors import BuildError
from amos.intrinsics import Intrinsic, implementations, is_native
from amos.ir import BufferLoad, Compute, Operator, dtype
from amos.plan.cpu_blocks import partial_sums

#: Identifiers of TVMScript and of the text that is generated here.
_OWN = re.compile(rf"{'|'.join(keyword.kwlist)}|T|range|main|call|part|v_\w+")
#: The iterations over calls, and over the parts of each sum that an implementation keeps.
_CALL, _PART = "call", "part"

#: Held while a tensor intrinsic is looked up in TVM and registered.
_REGISTERING = Lock()
#: Types that no buffer of a CPU kernel can hold.
_UNHELD = ("int4", "uint4", "bool", "float8_e4m3", "float8_e5m2", "float8_e8m0")
#: A saturating sum is written out; beyond this many products it is refused.
_WRITTEN_OUT = 256


def implementation(intrinsic: Intrinsic, features: frozenset[str]) -> str:
    """Return ``"native"`` if a CPU with these features has the instruction, else ``"generic"``."""
    return "native" if is_native(intrinsic, features) else "generic"


def check_operands(intrinsic: Intrinsic) -> None:
    """Raise unless a CPU kernel can hold every operand as its memory statement requires.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer, fragments have
            gaps, or tile registers are not loaded row by row.
    """
    for name, placement in intrinsic.placements.items():
        if not placement.dense:
            raise BuildError(
                f"{intrinsic.name}: CPU kernels hold fragments without gaps; those of {name!r} "
                f"have strides {placement.strides} and begin every {placement.step} elements"
            )
    if intrinsic.tile_registers and intrinsic.ordered is not intrinsic:
        raise BuildError(
            f"{intrinsic.name}: tile registers are loaded row by row; a statement has columns"
        )
    for load in intrinsic.operands:
        if intrinsic.staged_dtype(load.tensor.name) in _UNHELD:
            raise BuildError(
                f"{intrinsic.name}: operand {load.tensor.name!r} has dtype {load.tensor.dtype}, "
                "which no CPU kernel can hold"
            )
    if container_dtype(intrinsic.dtypes[-1]) != intrinsic.dtypes[-1]:
        raise BuildError(
            f"{intrinsic.name}: destination has dtype {intrinsic.dtypes[-1]}, "
            "which no CPU kernel can accumulate in"
        )


def register_tensor_intrin(intrinsic: Intrinsic, kind: str) -> str:
    """Register an intrinsic with TVM once; return its name there.

    Args:
        kind: ``"native"`` or ``"generic"``, see :func:`implementation`; or ``"c"`` for
            calls of its C implementation, which only C can be printed of.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer, or an operand
            has a name that its implementation cannot use.
    """
    pattern, emitted, name = _texts(intrinsic, kind)
    with _REGISTERING:
        if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
            s_tir.TensorIntrin.register(name, parse_function(pattern), parse_function(emitted))
    return name


def version(intrinsic: Intrinsic, kind: str) -> str:
    """Return name, kind and digest of an implementation, which differ where anything does."""
    return _texts(intrinsic, kind)[-1]


def call_function(intrinsic: Intrinsic, kind: str, calls: int) -> Any:
    """Build a TensorIR function that does ``calls`` calls, one on each row of its arguments.

    Returns:
        a prim func of the operands, sources first; the destination is read and written in place. If
        the implementation keeps parts of each sum, they are its last dimension.
    """
    name = register_tensor_intrin(intrinsic, kind)
    script = _Script(_spell_operands(intrinsic.ordered), partial_sums(intrinsic, kind), calls)
    sch = s_tir.Schedule(parse_function(script.function(script.statement())))
    sch.tensorize(sch.get_loops(sch.get_sblock("update"))[1], name)
    return sch.mod["main"]


def parse_function(text: str) -> Any:
    """Parse the TVMScript of one function, below its decorator.

    TVM's parser evaluates the last decorator. Called with arguments, ``T.prim_func``
    inspects all frames of the Python stack, which takes longer than to parse the function.
    So the last one has none. Given its names, the parser does not import TVM's networks.
    """
    tvm = load_tvm()
    from tvm.script import from_source
    from tvm.script.parser import ir, tirx

    names = {"tvm": tvm, "I": ir, "T": tirx}
    return from_source(text.replace("\ndef ", "\n@T.prim_func\ndef ", 1), names)


def _texts(intrinsic: Intrinsic, kind: str) -> tuple[str, str, str]:
    """Write pattern and implementation in TVMScript; return both, and a name for them."""
    check_operands(intrinsic)
    intrinsic = intrinsic.ordered
    compute, parts = _spell_operands(intrinsic), partial_sums(intrinsic, kind)
    script = _Script(compute, parts)
    pattern = script.fragment_function(script.statement())
    if kind == "native":
        body = _native_body(intrinsic, compute)
    elif kind == "c":
        body = [_c_call(intrinsic, compute)]
    else:
        saturate = intrinsic.arithmetic.saturate
        body = _saturating_sum(intrinsic.name, script) if saturate else script.statement()
    emitted = script.fragment_function(body)
    # Two descriptions may have had the same name in one process.
    digest = hashlib.sha256((pattern + emitted).encode()).hexdigest()[:12]
    return pattern, emitted, f"amos.{intrinsic.name}.{kind}.{digest}"


def _spell_operands(intrinsic: Intrinsic) -> Compute:
    """Write the meaning of an intrinsic on staged operands, by names that TVMScript leaves free."""

    def stage(load: BufferLoad) -> BufferLoad:
        kind = intrinsic.staged_dtype(load.tensor.name)
        return replace(load, tensor=replace(load.tensor, dtype=kind))

    operator = Operator(intrinsic.compute, intrinsic.name).with_loads(stage)
    return Names.of(operator, _OWN).operator(operator).compute


def _native_body(intrinsic: Intrinsic, compute: Compute) -> list[str]:
    """Return a registered implementation, with operands by its author's names."""
    for load, named in zip(intrinsic.operands, compute.operands, strict=True):
        if load.tensor.name != named.tensor.name:
            raise BuildError(
                f"{intrinsic.name}: operand {load.tensor.name!r}: its llvm implementation, which "
                "is TVMScript, cannot use this name; give the operand another one"
            )
    source = implementations(intrinsic.name)["llvm"].source
    return textwrap.dedent(source).strip().splitlines()


def _c_call(intrinsic: Intrinsic, compute: Compute) -> str:
    operands = [
        f"T.address_of({load.tensor.name}[{', '.join('0' * len(load.tensor.shape)) or '()'}])"
        for load in compute.operands
    ]
    arguments = ", ".join([f'"{function_name(intrinsic)}"', *operands])
    return f'T.evaluate(T.call_extern("int32", {arguments}))'


def _saturating_sum(name: str, script: _Script) -> list[str]:
    """Write the sum of a call in 64 bits, clamped once, with its reductions written out."""
    compute = script.compute
    points = list(itertools.product(*(range(it.extent) for it in compute.reduce)))
    if len(points) > _WRITTEN_OUT:
        raise BuildError(
            f"{name}: a saturating sum of {len(points)} products has no generic form; "
            f"at most {_WRITTEN_OUT} are written out"
        )
    kind = str(compute.dst.tensor.dtype)
    steps = [_Step(it.name, it.extent, "S") for it in compute.spatial]
    at = {step.name: step.position for step in steps}
    names = [it.name for it in compute.reduce]
    terms = [
        script.product(at | dict(zip(names, map(str, point), strict=True)), "int64")
        for point in points
    ]
    dst = script.element(compute.dst, at)
    low, high = dtype(kind).limits
    total = " + ".join([f'T.cast({dst}, "int64")', *terms])
    value = f"T.max(T.min({total}, T.int64({high})), T.int64({low}))"
    return _nest(steps, f'{dst} = T.cast({value}, "{kind}")')


@dataclass(frozen=True)
class _Step:
    """A loop of a text; ``kind`` is that of its axis, ``S`` or ``R``."""

    name: str
    extent: int
    kind: str

    @property
    def position(self) -> str:
        """TVM binds no variable to a loop of one step before it matches a pattern."""
        return f"v_{self.name}" if self.extent > 1 else "0"


def _nest(steps: list[_Step], statement: str) -> list[str]:
    """Write a statement in a block of its own, inside loops."""
    lines, indent = [], ""
    if steps:
        names = ", ".join(step.name for step in steps)
        lines.append(f"for {names} in T.grid({', '.join(str(step.extent) for step in steps)}):")
        indent = "    "
    lines.append(f'{indent}with T.sblock("update"):')
    if bound := [step for step in steps if step.extent > 1]:
        variables = ", ".join(step.position for step in bound)
        names = ", ".join(step.name for step in bound)
        kinds = "".join(step.kind for step in bound)
        lines.append(f'{indent}    {variables} = T.axis.remap("{kinds}", [{names}])')
    return [*lines, f"{indent}    {statement}"]


@dataclass(frozen=True)
class _Script:
    """The meaning of an intrinsic in TVMScript.

    Attributes:
        parts: of each sum, along the last dimension of the destination; 1 for whole ones.
        calls: along the first dimension of every operand; 0 for one call without it.
    """

    compute: Compute
    parts: int = 1
    calls: int = 0

    def function(self, lines: list[str], *, buffer: str = "") -> str:
        """Write a function of the operands; ``buffer`` is appended to the type of each."""
        kinds = [container_dtype(str(x.tensor.dtype)) for x in self.compute.operands]
        arguments = ", ".join(
            f'{x.tensor.name}: T.Buffer({self.shape(x)}, "{kind}"{buffer})'
            for x, kind in zip(self.compute.operands, kinds, strict=True)
        )
        head = ["# from tvm.script import tirx as T", "@T.prim_func(s_tir=True)"]
        return "\n".join([*head, f"def main({arguments}):", *("    " + line for line in lines)])

    def fragment_function(self, lines: list[str]) -> str:
        """Write a function of fragments, as TVM matches one and puts another in its place."""
        written, *read = (
            f"{x.tensor.name}[{', '.join(f'0:{size}' for size in self.shape(x)) or '()'}]"
            for x in (self.compute.dst, *self.compute.sources)
        )
        read = [written, *read] if self.compute.accumulates else read
        regions = [f"    T.reads({', '.join(read)})", f"    T.writes({written})"]
        root = ['with T.sblock("root"):', *regions, *("    " + line for line in lines)]
        return self.function(root, buffer=", offset_factor=1")

    def statement(self) -> list[str]:
        """Write the scalar statement in a nest over the intrinsic iterations."""
        steps = [
            _Step(it.name, it.extent, "R" if it.is_reduce else "S")
            for it in self.compute.iterations
        ]
        at = {step.name: step.position for step in steps}
        if self.parts > 1:
            (summed,) = (step for step in steps if step.kind == "R")
            deep = _Step(summed.name, summed.extent // self.parts, "R")
            at |= {_PART: f"v_{_PART}"}
            at[summed.name] = f"v_{_PART} * {deep.extent} + {deep.position}"
            steps[steps.index(summed)] = deep
            steps.insert(len(steps) - 1, _Step(_PART, self.parts, "S"))
        if self.calls:
            steps.insert(0, _Step(_CALL, self.calls, "S"))
            at[_CALL] = steps[0].position
        dst = self.element(self.compute.dst, at)
        values = self.values(at, str(self.compute.dst.tensor.dtype))
        return _nest(steps, f"{dst} = {statement_text(self.compute, dst, values)}")

    def product(self, at: Mapping[str, str], kind: str) -> str:
        """Join the sources' elements, each as a value of a dtype."""
        return join_text(self.compute.join, self.values(at, kind))

    def values(self, at: Mapping[str, str], kind: str) -> list[str]:
        """List the sources' elements, each as a value of a dtype."""
        return [
            decode_text(self.element(x, at), str(x.tensor.dtype), kind)
            for x in self.compute.sources
        ]

    def element(self, load: BufferLoad, at: Mapping[str, str]) -> str:
        """Write an operand's element at these positions of the iterations."""
        names = [index.names[0] for index in load.indices]
        names = [_CALL, *names] if self.calls else names
        names = [*names, _PART] if self.parts > 1 and load is self.compute.dst else names
        return f"{load.tensor.name}[{', '.join(at[name] for name in names) or '()'}]"

    def shape(self, load: BufferLoad) -> tuple[int, ...]:
        calls = (self.calls,) if self.calls else ()
        parts = (self.parts,) if self.parts > 1 and load is self.compute.dst else ()
        return (*calls, *load.tensor.shape, *parts)
