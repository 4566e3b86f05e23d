"""Costs of a nest on CPUs beyond its traffic, of the machine and of its compilers."""

__all__ = ()
