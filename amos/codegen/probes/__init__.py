"""Small kernels that measure what a machine can do."""

__all__ = ()
