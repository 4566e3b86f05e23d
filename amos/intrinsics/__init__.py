"""Hardware intrinsics: what they compute, what they move, and where to find them."""

from amos.intrinsics.description import Intrinsic, Memory
from amos.intrinsics.registry import broken, get, names, register

__all__ = ["Intrinsic", "Memory", "broken", "get", "names", "register"]
