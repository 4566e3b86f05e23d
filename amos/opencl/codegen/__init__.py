"""OpenCL C of kernels, and how they are launched."""

from amos.opencl.codegen.kernel import KernelText

__all__ = ["KernelText"]
