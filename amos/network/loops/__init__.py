"""Loops of operators, for nodes that no kernel computes."""

__all__ = ()
