"""Loops of operators, and functions of them: what is computed where no kernel computes it."""

__all__ = ()
