"""The call of an instruction on fragments that work-items hold as vectors."""

from __future__ import annotations

from amos.codegen.device.text import block
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.ir import dtype
from amos.opencl.codegen.text import vector_type
from amos.opencl.plan import TYPES


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
