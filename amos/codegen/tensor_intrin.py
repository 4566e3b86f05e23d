"""TVM tensor intrinsics made from descriptions.

The pattern that TVM matches is always generated from the intrinsic's meaning.
The implementation is a native one where somebody wrote it for this intrinsic and
the CPU has the instruction; otherwise the meaning itself is emitted as plain
loops, so that every intrinsic can be compiled for every CPU.
"""

from __future__ import annotations

from amos._toolchain import load_tvm
from amos.errors import BuildError
from amos.intrinsics import Intrinsic
from amos.ir import BufferLoad

__all__ = ["NATIVE", "implementation", "register_tensor_intrin"]

#: Body of the native implementation for LLVM by intrinsic name, in TVMScript.
#: Operand names are the intrinsic's; every buffer is one contiguous fragment.
NATIVE: dict[str, str] = {
    # LLVM 22 takes both byte operands of vpdpbusd as <64 x i8>; the four bytes of
    # Src1 are broadcast to every lane by way of one 32-bit integer.
    "vnni_dpbusd_m16k4_u8_s8_s32": """
four = T.reinterpret("int32", Src1.vload([0], "uint8x4"))
every = T.reinterpret("int8x64", T.broadcast(four, 16))
Dst[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
    "int32x16",
    "llvm.x86.avx512.vpdpbusd.512",
    Dst.vload([0], "int32x16"),
    every,
    Src2.vload([0, 0], "int8x64"),
)
""",
}

#: CPU feature flags that stand for each required feature.
_LLVM_FEATURES = {"avx512_vnni": "avx512vnni"}


def implementation(intrinsic: Intrinsic, features: frozenset[str]) -> str:
    """``"native"`` if the instruction itself will be emitted, else ``"generic"``.

    Args:
        intrinsic: the intrinsic.
        features: what the CPU has, as the intrinsic's ``requires`` spells it.
    """
    if intrinsic.name in NATIVE and set(intrinsic.requires) <= features:
        return "native"
    return "generic"


def register_tensor_intrin(intrinsic: Intrinsic, kind: str) -> str:
    """Register an intrinsic with TVM once and return the name it goes by.

    Args:
        intrinsic: the description.
        kind: ``"native"`` or ``"generic"``; see :func:`implementation`.

    Raises:
        BuildError: a dtype of the intrinsic cannot be held in a TVM buffer.
    """
    load_tvm()
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    name = f"amos.{intrinsic.name}.{kind}"
    if TensorIntrin.get(name, allow_missing=True) is not None:
        return name
    for load in intrinsic.operands:
        if load.tensor.dtype in ("int4", "uint4", "bool", "tfloat32"):
            raise BuildError(
                f"{intrinsic.name}: operand {load.tensor.name!r} has dtype {load.tensor.dtype}, "
                "which no CPU kernel can hold"
            )
    body = NATIVE[intrinsic.name] if kind == "native" else None
    pattern = from_source(_script(intrinsic, None))
    emitted = from_source(_script(intrinsic, body))
    TensorIntrin.register(name, pattern, emitted)
    return name


def _script(intrinsic: Intrinsic, body: str | None) -> str:
    """TVMScript of a function that does what the intrinsic does.

    With ``body`` that text is the block; without it, the loops of the meaning.
    """
    arguments = ", ".join(map(_argument, intrinsic.operands))
    reads = ", ".join(_region(load) for load in (intrinsic.destination, *intrinsic.sources))
    lines = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f"def main({arguments}):",
        '    with T.sblock("root"):',
        f"        T.reads({reads})",
        f"        T.writes({_region(intrinsic.destination)})",
    ]
    if body is not None:
        lines += ["        " + line for line in body.strip().splitlines()]
        return "\n".join(lines)
    extents = ", ".join(str(it.extent) for it in intrinsic.iterations)
    names = ", ".join(it.name for it in intrinsic.iterations)
    bound = ", ".join(f"v_{it.name}" for it in intrinsic.iterations)
    kinds = "".join("R" if it.is_reduce else "S" for it in intrinsic.iterations)
    dst = _element(intrinsic.destination)
    kind = intrinsic.destination.tensor.dtype
    product = " * ".join(f'T.cast({_element(load)}, "{kind}")' for load in intrinsic.sources)
    lines += [
        f"        for {names} in T.grid({extents}):",
        '            with T.sblock("update"):',
        f'                {bound} = T.axis.remap("{kinds}", [{names}])',
        f"                {dst} = {dst} + {product}",
    ]
    return "\n".join(lines)


def _argument(load: BufferLoad) -> str:
    shape = ", ".join(map(str, load.tensor.shape))
    trailing = "," if len(load.tensor.shape) == 1 else ""
    return (
        f'{load.tensor.name}: T.Buffer(({shape}{trailing}), "{load.tensor.dtype}", offset_factor=1)'
    )


def _region(load: BufferLoad) -> str:
    ranges = ", ".join(f"0:{size}" for size in load.tensor.shape)
    return f"{load.tensor.name}[{ranges}]"


def _element(load: BufferLoad) -> str:
    return f"{load.tensor.name}[{', '.join(f'v_{index.names[0]}' for index in load.indices)}]"
