"""Streams of load, compute and store instructions, ordered by tokens: what units share."""

from amos.streams.codegen.instructions import Buffer, Instruction, Region, Stream
from amos.streams.codegen.transfers import Load, Store

__all__ = ["Buffer", "Instruction", "Load", "Region", "Store", "Stream"]
