"""Targets of the core, one file each; see :mod:`amos.plan.target`."""

__all__ = ()
