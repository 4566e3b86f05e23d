"""Calling CUDA kernels through the driver alone."""

__all__ = ()
