"""Small kernels that measure the rates of a machine."""

__all__ = ()
