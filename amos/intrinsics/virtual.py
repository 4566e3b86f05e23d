"""The virtual accelerators of AMOS, section 7.5: AXPY, GEMV and pointwise convolution.

The paper names the three units and prints no definition. They represent the
three levels of BLAS. No hardware has them: they serve to map onto, simulate
and count.

Operands are in the order of a convolution's, image before weight; ``commute=True`` gives the
other order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from amos.intrinsics.description import Intrinsic
from amos.intrinsics.memory import Memory

_SOURCE = "Zheng et al., AMOS, ISCA 2022, section 7.5, New Accelerators"


def intrinsics() -> Iterator[Intrinsic]:
    """Yield the virtual family: one unit for each level of BLAS."""
    types = {"Src1": "float16", "Src2": "float16", "Dst": "float32"}
    yield unit(
        "Dst[i1] += Src1[i1] * Src2[]",
        {"i1": 16},
        types,
        name="virtual_axpy_m16_f16_f32",
        description="a vector times a scalar, added to a vector",
    )
    yield unit(
        "Dst[i1] += Src1[i1, r1] * Src2[r1]",
        {"i1": 16, "r1": 16},
        types,
        name="virtual_gemv_m16k16_f16_f32",
        description="a matrix times a vector, added to a vector",
    )
    yield unit(
        "Dst[i1, i2, i3] += Src1[r1, i2, i3] * Src2[i1, r1]",
        {"i1": 16, "i2": 4, "i3": 4, "r1": 16},
        types,
        name="virtual_conv_k16p4q4c16_f16_f32",
        description="a pointwise convolution: a 4×4 image of 16 channels into 16 channels",
    )


def unit(
    statement: str,
    extents: Mapping[str, int],
    dtypes: Mapping[str, str] | str = "float32",
    *,
    name: str = "virtual_unit",
    description: str = "a unit that no hardware has",
) -> Intrinsic:
    """Describe a unit by its statement alone.

    Each source is loaded from shared memory and the destination stored to global
    memory, by statements with a base address and a stride for each index but the
    last.

    Args:
        statement: for example ``"Dst[i1] += Src1[i1, r1] * Src2[r1]"``.
        extents: extent of each intrinsic iteration.
        dtypes: dtype of each operand, or one for all.

    Raises:
        IntrinsicError: the parts do not fit together.

    >>> print(unit("D[i] += A[i,r] * B[r]", {"i": 4, "r": 2}).memory[1])
    reg.A[i, r] = shared.A[addr_a + i * stride_a_i + r]
    """
    operands = {
        operand: tuple(i.strip() for i in indices_text.split(",") if i.strip())
        for operand, indices_text in re.findall(r"(\w+)\s*\[(.*?)\]", statement)
    }
    memory = []
    for n, (operand, indices) in enumerate(operands.items()):
        low = operand.lower()
        strides = tuple(f"stride_{low}_{i}" for i in indices[:-1]) + ("1",) * bool(indices)
        if n:
            memory.append(Memory(operand, "load", "shared", indices, f"addr_{low}", strides))
        else:
            memory.append(Memory(operand, "store", "global", indices, f"addr_{low}", strides))
    kinds = dict.fromkeys(operands, dtypes) if isinstance(dtypes, str) else dtypes
    return Intrinsic.define(
        name,
        statement,
        extents,
        kinds,
        memory,
        family="virtual",
        source=_SOURCE,
        description=description,
    )
