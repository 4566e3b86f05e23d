"""Kernels whose accumulators live in tile registers."""

__all__ = ()
