"""Streams of instructions, run by a simulator."""

from amos.runtime.stream.kernel import StreamKernel
from amos.runtime.stream.simulator import Run, simulate

__all__ = ["Run", "StreamKernel", "simulate"]
