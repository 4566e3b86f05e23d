"""CUDA kernels for Tensor Cores, as text: mappings on WMMA or ``mma.sync``.

Elements fill whole bytes: there are no kernels for s4, u4 and b1.
"""

from amos.cuda.codegen.emulate import Emulation, draw_inputs, emulate
from amos.cuda.codegen.kernel import KernelText
from amos.cuda.codegen.toolchain import Compiled, compiler_for, compilers
from amos.cuda.plan import GpuPlan

__all__ = [
    "GpuPlan",
    "Compiled",
    "Emulation",
    "KernelText",
    "compiler_for",
    "compilers",
    "draw_inputs",
    "emulate",
]
