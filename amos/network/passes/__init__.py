"""Passes over a graph ahead of its division into groups; ``sequence`` has their order."""

__all__ = ()
