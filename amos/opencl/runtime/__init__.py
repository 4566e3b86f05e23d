"""Kernels of OpenCL devices that are called, by pyopencl."""

__all__ = ()
