"""Mapping and schedule to TensorIR for CPUs, and the passes over it."""

__all__ = ()
