"""Streams of instructions, run by a simulator."""

from amos.streams.runtime.kernel import StreamKernel
from amos.streams.runtime.simulator import Run, simulate

__all__ = ["Run", "StreamKernel", "simulate"]
