"""Kernels that are called: arguments, memory, threads, drivers."""

from amos.runtime.kernel import Kernel, build

__all__ = ["Kernel", "build"]
