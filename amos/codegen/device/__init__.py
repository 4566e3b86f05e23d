"""Shared parts of generators for parallel devices: index arithmetic, text, expressions."""

__all__ = ()
