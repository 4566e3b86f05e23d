"""Mappings of operators onto intrinsics: enumerating, placing and simulating them."""

from amos.mapping.enumerate import MappingSpace, enumerate_mappings
from amos.mapping.mapping import Mapping
from amos.mapping.physical import Layout, PhysicalMapping, VirtualMapping
from amos.mapping.simulate import simulate

__all__ = [
    "Layout",
    "Mapping",
    "MappingSpace",
    "PhysicalMapping",
    "VirtualMapping",
    "enumerate_mappings",
    "simulate",
]
