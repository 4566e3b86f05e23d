"""Streams of load, compute and store instructions, ordered by tokens: shared by all units."""

from amos.streams.codegen.instructions import Buffer, Instruction, Region, Stream
from amos.streams.codegen.transfers import Load, Store

__all__ = ["Buffer", "Instruction", "Load", "Region", "Store", "Stream"]
