"""A plan to code: TensorIR for CPUs, tile registers, CUDA, C."""

__all__ = ()
