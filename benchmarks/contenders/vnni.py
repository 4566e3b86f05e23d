"""`vpdpbusd` as LLVM takes it today, for contenders that TVM schedules.

TVM's own intrinsic hands LLVM the types of an earlier release and does not compile.
"""

from __future__ import annotations

from tvm.script import tirx as T

__all__ = ["vpdpbusd"]


@T.prim_func(s_tir=True)
def vpdpbusd(
    A: T.Buffer((4,), "uint8", offset_factor=1),
    B: T.Buffer((16, 4), "int8", offset_factor=1),
    C: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(C[0:16], A[0:4], B[0:16, 0:4])
        T.writes(C[0:16])
        C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            "int32x16",
            "llvm.x86.avx512.vpdpbusd.512",
            C.vload([0], "int32x16"),
            T.reinterpret(
                "int8x64", T.broadcast(T.reinterpret("int32", A.vload([0], "uint8x4")), 16)
            ),
            B.vload([0, 0], "int8x64"),
        )
