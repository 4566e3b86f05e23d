"""Hardware intrinsics: their meaning, their memory traffic, and their registry."""

from amos.intrinsics.arithmetic import Arithmetic, ShapeFamily, Timing
from amos.intrinsics.description import AffineSystem, Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.meaning import execute
from amos.intrinsics.memory import FragmentLayout, Memory
from amos.intrinsics.registry import (
    adopt,
    get,
    implementations,
    is_native,
    list_added,
    list_broken,
    load,
    names,
    provide,
    register,
)
from amos.intrinsics.toml_file import from_toml, read, read_values, values_of

__all__ = [
    "AffineSystem",
    "Arithmetic",
    "FragmentLayout",
    "Implementation",
    "Intrinsic",
    "Memory",
    "ShapeFamily",
    "Timing",
    "list_added",
    "adopt",
    "list_broken",
    "execute",
    "from_toml",
    "get",
    "implementations",
    "is_native",
    "load",
    "names",
    "provide",
    "read",
    "read_values",
    "register",
    "values_of",
]
