"""Lowerings: the ways to compute a task, behind one protocol."""

__all__ = ()
