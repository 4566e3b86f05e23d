"""Lowered TensorIR, printed as C."""

__all__ = ()
