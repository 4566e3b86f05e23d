"""TVM tensor intrinsics made from descriptions.

The pattern that TVM matches is always generated from the intrinsic's meaning.
The implementation is a native one where somebody wrote it for this intrinsic and
the CPU has the instruction; otherwise the meaning itself is emitted as plain
loops, so that every intrinsic can be compiled for every CPU.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import textwrap
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.c.calls import call_text
from amos.codegen.tir.arrays import decoded_text, held
from amos.errors import BuildError
from amos.intrinsics import Intrinsic, implementations
from amos.ir import BufferLoad
from amos.ir.floats import integer_limits
from amos.plan.cpu_plan import partial_sums

__all__ = [
    "call_function",
    "holdable",
    "implementation",
    "register_tensor_intrin",
    "version",
]

#: The iteration over the parts that an implementation keeps of each sum.
_PART = "part"

#: Types that no buffer of a CPU kernel can hold.
_UNHELD = ("int4", "uint4", "bool", "float8_e4m3", "float8_e5m2")
#: A saturating sum is written out; beyond this many products it is refused.
_WRITTEN_OUT = 256


def implementation(intrinsic: Intrinsic, features: frozenset[str]) -> str:
    """``"native"`` if the instruction itself will be emitted, else ``"generic"``.

    Args:
        intrinsic: the intrinsic.
        features: what the CPU has, as the intrinsic's ``requires`` spells it.
    """
    source = implementations(intrinsic.name).get("llvm")
    if source is None or source.machine not in ("", platform.machine()):
        return "generic"
    needed = {*intrinsic.requires, *source.requires}
    return "native" if needed <= features else "generic"


def holdable(intrinsic: Intrinsic) -> None:
    """Raise unless a CPU kernel can hold every operand.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer.
    """
    for load in intrinsic.operands:
        if intrinsic.staged_dtype(load.tensor.name) in _UNHELD:
            raise BuildError(
                f"{intrinsic.name}: operand {load.tensor.name!r} has dtype {load.tensor.dtype}, "
                "which no CPU kernel can hold"
            )
    if held(intrinsic.dtypes[-1]) != intrinsic.dtypes[-1]:
        raise BuildError(
            f"{intrinsic.name}: destination has dtype {intrinsic.dtypes[-1]}, "
            "which no CPU kernel can accumulate in"
        )


def register_tensor_intrin(intrinsic: Intrinsic, kind: str) -> str:
    """Register an intrinsic with TVM once and return the name it goes by.

    Args:
        intrinsic: the description.
        kind: ``"native"`` or ``"generic"``, see :func:`implementation`; or ``"c"`` for
            calls of its C implementation, which only C can be printed of.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer.
    """
    load_tvm()
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    pattern, emitted, name = _texts(intrinsic, kind)
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, from_source(pattern), from_source(emitted))
    return name


def version(intrinsic: Intrinsic, kind: str) -> str:
    """Name, kind and digest of an implementation: another one where anything differs.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer.
    """
    return _texts(intrinsic, kind)[-1]


def _texts(intrinsic: Intrinsic, kind: str) -> tuple[str, str, str]:
    """TVMScript of the pattern and of what is emitted, and the name of the two."""
    holdable(intrinsic)
    body = _body(intrinsic, kind)
    parts = partial_sums(intrinsic, kind)
    pattern = _script(intrinsic, None, pattern=True, parts=parts)
    emitted = _script(intrinsic, body, parts=parts)
    # Two descriptions may have had the same name in one process.
    digest = hashlib.sha256((pattern + emitted).encode()).hexdigest()[:12]
    return pattern, emitted, f"amos.{intrinsic.name}.{kind}.{digest}"


def _body(intrinsic: Intrinsic, kind: str) -> str | None:
    """TVMScript of an implementation; none if the meaning stands for it."""
    if kind == "c":
        return call_text(intrinsic)
    return implementations(intrinsic.name)["llvm"].source if kind == "native" else None


def call_function(intrinsic: Intrinsic, kind: str, calls: int) -> Any:
    """TensorIR function that does ``calls`` calls, one on each row of its arguments.

    Args:
        intrinsic: the intrinsic.
        kind: ``"native"`` or ``"generic"``.
        calls: leading extent of every argument.

    Returns:
        a prim func of the operands, sources first; the destination is read and
        written in place.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer.
    """
    load_tvm()
    from tvm.script import from_source

    holdable(intrinsic)
    body = _body(intrinsic, kind)
    arguments = ", ".join(
        f"all_{load.tensor.name}: T.Buffer({(calls, *load.tensor.shape)}, "
        f'"{_held(intrinsic, load)}")'
        for load in intrinsic.operands
    )
    rows = [f"all_{x.tensor.name}[{_ranges(x, 'v_call')}]" for x in intrinsic.operands]
    lines = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f"def main({arguments}):",
        f"    for call in range({calls}):",
        '        with T.sblock("call"):',
        f"            v_call = T.axis.spatial({calls}, call)",
        f"            T.reads({', '.join(rows)})",
        f"            T.writes({rows[-1]})",
    ]
    for load, row in zip(intrinsic.operands, rows, strict=True):
        lines.append(
            f"            {load.tensor.name} = T.match_buffer({row}, {load.tensor.shape}, "
            f'"{_held(intrinsic, load)}", offset_factor=1)'
        )
    parts = partial_sums(intrinsic, kind)
    made = _statements(intrinsic, body)
    if parts > 1:
        made = _added_up(intrinsic, made, parts)
    lines += ["            " + line for line in made]
    return from_source("\n".join(lines))


def _added_up(intrinsic: Intrinsic, body: list[str], parts: int) -> list[str]:
    """A call that keeps parts of its sum, and their addition to the destination."""
    dst = intrinsic.destination
    name, kept = dst.tensor.name, f"{dst.tensor.name}_parts"
    read = ", ".join([f"{kept}[0:{parts}]", *map(_region, intrinsic.sources)])
    inside = [line.replace(f"{name}[", f"{kept}[").replace(f"{name}.", f"{kept}.") for line in body]
    return [
        f'{kept} = T.sblock_alloc_buffer(({parts},), "{_held(intrinsic, dst)}")',
        f"for {_PART} in range({parts}):",
        '    with T.sblock("clear"):',
        f"        v_part = T.axis.spatial({parts}, {_PART})",
        f"        {kept}[v_part] = 0",
        'with T.sblock("parts"):',
        f"    T.reads({read})",
        f"    T.writes({kept}[0:{parts}])",
        *("    " + line for line in inside),
        f"for {_PART} in range({parts}):",
        '    with T.sblock("add"):',
        f"        v_part = T.axis.reduce({parts}, {_PART})",
        f"        {_element(dst)} = {_element(dst)} + {kept}[v_part]",
    ]


def _script(
    intrinsic: Intrinsic, body: str | None, *, pattern: bool = False, parts: int = 1
) -> str:
    """TVMScript of a function that does what the intrinsic does.

    With ``body`` that text is the block; without it, the meaning. As a pattern,
    the meaning is the plain multiply-add that a schedule has before
    tensorization, whatever the rounding. With ``parts`` the destination holds so
    many parts of each sum.
    """
    arguments = ", ".join(
        _argument(intrinsic, x, *([parts] if parts > 1 and x is intrinsic.destination else []))
        for x in intrinsic.operands
    )
    written = _region(intrinsic.destination, *([parts] if parts > 1 else []))
    reads = ", ".join([written, *map(_region, intrinsic.sources)])
    lines = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f"def main({arguments}):",
        '    with T.sblock("root"):',
        f"        T.reads({reads})",
        f"        T.writes({written})",
    ]
    made = _loops(intrinsic, parts) if pattern else _statements(intrinsic, body)
    return "\n".join(lines + ["        " + line for line in made])


def _statements(intrinsic: Intrinsic, body: str | None) -> list[str]:
    if body is not None:
        return textwrap.dedent(body).strip().splitlines()
    return _saturating(intrinsic) if intrinsic.arithmetic.saturate else _loops(intrinsic)


def _loops(intrinsic: Intrinsic, parts: int = 1) -> list[str]:
    """One multiply-add in a nest over the intrinsic iterations.

    TVM binds no variable to a loop of extent 1 before it matches a pattern, so
    none is bound here.
    """
    steps = [(it.name, it.extent, "R" if it.is_reduce else "S") for it in intrinsic.iterations]
    if parts == 1:
        return _nest(intrinsic, steps, _product(intrinsic, _single(intrinsic)))
    (summed,) = intrinsic.compute.reduce
    depth = summed.extent // parts
    steps = [(n, depth if n == summed.name else x, k) for n, x, k in steps]
    steps.insert(len(steps) - 1, (_PART, parts, "S"))
    at: dict[str, int | str] = {summed.name: f"v_{_PART} * {depth} + v_{summed.name}"}
    return _nest(intrinsic, steps, _product(intrinsic, _single(intrinsic) | at), part=_PART)


def _single(intrinsic: Intrinsic) -> dict[str, int | str]:
    """The only value of each iteration of extent 1."""
    return {it.name: 0 for it in intrinsic.iterations if it.extent == 1}


def _saturating(intrinsic: Intrinsic) -> list[str]:
    """The sum of a call in 64 bits, clamped once: reductions are written out."""
    reduce = intrinsic.compute.reduce
    points = list(itertools.product(*(range(it.extent) for it in reduce)))
    if len(points) > _WRITTEN_OUT:
        raise BuildError(
            f"{intrinsic.name}: a saturating sum of {len(points)} products has no generic form; "
            f"at most {_WRITTEN_OUT} are written out"
        )
    names = [it.name for it in reduce]
    single = _single(intrinsic)
    terms = [
        _product(intrinsic, single | dict(zip(names, p, strict=True)), "int64") for p in points
    ]
    low, high = integer_limits(intrinsic.dtypes[-1])
    start = _element(intrinsic.destination, single)
    total = " + ".join([f'T.cast({start}, "int64")', *terms])
    value = f"T.max(T.min({total}, T.int64({high})), T.int64({low}))"
    steps = [(it.name, it.extent, "S") for it in intrinsic.compute.spatial]
    return _nest(intrinsic, steps, f'T.cast({value}, "{intrinsic.dtypes[-1]}")', add=False)


def _nest(
    intrinsic: Intrinsic,
    steps: list[tuple[str, int, str]],
    value: str,
    *,
    add: bool = True,
    part: str = "",
) -> list[str]:
    dst = _element(intrinsic.destination, _single(intrinsic), *([part] if part else []))
    add = add and intrinsic.compute.accumulate
    lines, inside = [], ""
    if steps:
        names = ", ".join(name for name, _, _ in steps)
        lines.append(f"for {names} in T.grid({', '.join(str(n) for _, n, _ in steps)}):")
        inside = "    "
    lines.append(f'{inside}with T.sblock("update"):')
    if bound := [step for step in steps if step[1] > 1]:
        names = ", ".join(name for name, _, _ in bound)
        variables = ", ".join(f"v_{name}" for name, _, _ in bound)
        kinds = "".join(kind for _, _, kind in bound)
        lines.append(f'        {variables} = T.axis.remap("{kinds}", [{names}])')
    lines.append(f"{inside}    {dst} = {f'{dst} + ' if add else ''}{value}")
    return lines


def _product(intrinsic: Intrinsic, at: dict[str, int | str], kind: str = "") -> str:
    kind = kind or intrinsic.dtypes[-1]
    return " * ".join(
        decoded_text(_element(x, at), intrinsic.staged_dtype(x.tensor.name), kind)
        for x in intrinsic.sources
    )


def _held(intrinsic: Intrinsic, load: BufferLoad) -> str:
    return held(intrinsic.staged_dtype(load.tensor.name))


def _argument(intrinsic: Intrinsic, load: BufferLoad, *last: int) -> str:
    shape = (*load.tensor.shape, *last)
    return f'{load.tensor.name}: T.Buffer({shape}, "{_held(intrinsic, load)}", offset_factor=1)'


def _ranges(load: BufferLoad, *first: str) -> str:
    return ", ".join([*first, *(f"0:{size}" for size in load.tensor.shape)]) or "()"


def _region(load: BufferLoad, *last: int) -> str:
    sizes = ", ".join(f"0:{size}" for size in (*load.tensor.shape, *last))
    return f"{load.tensor.name}[{sizes or '()'}]"


def _element(load: BufferLoad, at: dict[str, int | str] | None = None, *last: str) -> str:
    names = [*(index.names[0] for index in load.indices), *last]
    inner = ", ".join(str(at[n]) if at and n in at else f"v_{n}" for n in names)
    return f"{load.tensor.name}[{inner or '()'}]"
