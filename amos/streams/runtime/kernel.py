"""A candidate as a stream, with the calls that measuring makes of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amos.machine import Machine
from amos.plan import Candidate
from amos.runtime.simulated import SimulatedRun
from amos.streams.codegen.instructions import Stream
from amos.streams.plan import MICRO_OPS, StreamPlan
from amos.streams.runtime.encodings import encoder_of
from amos.streams.runtime.listing import list_files
from amos.streams.runtime.simulator import Run, simulate
from amos.streams.vta import Encoding


class StreamKernel:
    """One candidate on a simulated unit.

    Raises:
        BuildError: it cannot be written as a stream, or not encoded.
    """

    implementation = "simulated"

    def __init__(self, candidate: Candidate, machine: Machine) -> None:
        self.plan = StreamPlan.of(candidate.mapping, candidate.schedule, machine)
        encoder = encoder_of(self.plan.unit)
        self.stream: Stream = encoder.program(self.plan)
        self.encoding: Encoding | None = None
        self.binary = b""
        if encoder.binary is not None:
            self.encoding = encoder.binary(self.stream)
            self.binary = self.encoding.binary(self.stream)
        self.last: Run | None = None

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Pack the inputs for DRAM, by region; absent sources are left out."""
        names = {op.name: op.staged.load.tensor.name for op in self.plan.sources}
        return {
            self.plan.regions[op.name]: op.pack(inputs[names[op.name]])
            for op in self.plan.sources
            if names[op.name] in inputs
        }

    @property
    def micro_operations(self) -> dict[str, np.ndarray]:
        """Micro-operations as stored in DRAM, by region; empty for an encoding without any."""
        if self.encoding is None:
            return {}
        return {MICRO_OPS: self.encoding.micro_operations(self.stream.constants[MICRO_OPS])}

    def files(self, name: str) -> dict[str, str | bytes]:
        """Write the stream, which was simulated before, as files by name."""
        return list_files(self, name)

    def run(self, arguments: Mapping[str, np.ndarray] | None = None) -> None:
        """Simulate one run; without arguments what it computes is left out."""
        clock, dram = self.plan.machine.clock, self.plan.machine.levels[-1]
        port = dram.read_bandwidth / clock
        self.last = simulate(self.stream, arguments, self.plan.unit, port)

    def simulate(self, inputs: Mapping[str, np.ndarray] | None) -> SimulatedRun:
        """Simulate one run on the sources by tensor name; ``None`` leaves out what it computes.

        Raises:
            StreamError: the stream is not sound.
        """
        before = None if inputs is None else self.prepare(inputs)
        self.run(before)
        assert self.last is not None
        result = None if before is None else self.result(before)
        return SimulatedRun(result, self.last.cycles, self.last.busy, self.last.moved)

    def result(self, arguments: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the output of :meth:`run`."""
        assert self.last is not None
        operand = self.plan.destination
        fragments = self.last.dram[self.plan.regions[operand.name]]
        return operand.unpack(fragments.reshape(operand.shape))

    def times(
        self, inputs: Mapping[str, np.ndarray], *, repeat: int = 1, flush: int = 0
    ) -> tuple[float, ...]:
        """Return the seconds of a run by the unit's clock; one value, as all runs are equal."""
        if self.last is None:
            self.run(self.prepare(inputs))
        assert self.last is not None
        return (self.last.cycles / self.plan.machine.clock,)
