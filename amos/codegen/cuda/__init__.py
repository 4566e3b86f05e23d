"""CUDA kernels for Tensor Cores, as text: mappings on WMMA or ``mma.sync``.

Elements fill whole bytes: there are no kernels for s4, u4 and b1.

>>> from amos.machine.gpu_costs import capability
>>> capability("sm_80")
80
"""

from amos.codegen.cuda.emulate import Emulation, draw_inputs, emulate
from amos.codegen.cuda.kernel import KernelText, kernel_name
from amos.codegen.cuda.toolchain import Compiled, compile_cuda, compiler_for, compilers
from amos.plan.gpu_plan import GpuPlan

__all__ = [
    "GpuPlan",
    "Compiled",
    "Emulation",
    "KernelText",
    "compile_cuda",
    "compiler_for",
    "compilers",
    "draw_inputs",
    "emulate",
    "kernel_name",
]
