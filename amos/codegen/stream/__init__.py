"""Streams of load, compute and store instructions, ordered by tokens: what units share."""

from amos.codegen.stream.instructions import Buffer, Instruction, Load, Region, Store, Stream

__all__ = ["Buffer", "Instruction", "Load", "Region", "Store", "Stream"]
