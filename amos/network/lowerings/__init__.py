"""Lowerings: how a task can be computed, behind one protocol."""

__all__ = ()
