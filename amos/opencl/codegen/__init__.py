"""OpenCL C of kernels, and how they are launched."""

from amos.opencl.codegen.kernel import KernelText, kernel_name

__all__ = ["KernelText", "kernel_name"]
