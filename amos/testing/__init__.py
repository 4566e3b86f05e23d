"""Contract suites that a new part of AMOS joins with one line, drills, and fakes."""

from amos.testing.methods import MethodContract

__all__ = ["MethodContract"]
