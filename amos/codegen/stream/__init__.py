"""Streams of load, compute and store instructions, ordered by tokens: what units share."""

from amos.codegen.stream.instructions import Buffer, Instruction, Region, Stream
from amos.codegen.stream.transfers import Load, Store

__all__ = ["Buffer", "Instruction", "Load", "Region", "Store", "Stream"]
