"""Kernels of described machines that a simulator runs on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """One run of a kernel.

    Attributes:
        result: the output tensor; ``None`` where values were not computed.
        cycles: of the machine's clock, from the first instruction to the end of the last one.
        busy_cycles: in which each queue works, by its name.
    """

    result: np.ndarray | None
    cycles: int
    busy_cycles: Mapping[str, int]
    moved_bytes: int


class SimulatedKernel(Protocol):
    """A kernel that a target has written for one of its machines."""

    def simulate(self, inputs: Mapping[str, np.ndarray] | None) -> SimulatedRun:
        """Run the kernel on the sources by tensor name; ``None`` computes no values."""

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the sources as they are stored in DRAM, by region."""

    @property
    def micro_operations(self) -> Mapping[str, np.ndarray]:
        """What else lies in DRAM before a run, by region."""

    def files(self, name: str) -> Mapping[str, str | bytes]:
        """Return the files of a simulated kernel, by their names.

        Args:
            name: what to call it.
        """
