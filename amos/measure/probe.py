"""Measuring what a CPU can do."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.measure.messages import Context, Failure

__all__ = ["Figures", "Probe", "Stream"]

#: Rounds of a probe; the best of each figure counts, since whatever else runs on
#: the machine can only make a round worse.
_ROUNDS = 2
#: Seconds after which no other round begins.
_LONG = 20.0


class Stream(NamedTuple):
    """What is streamed to measure a level.

    Attributes:
        size: bytes of each core.
        cores: that stream at once.
    """

    size: int
    cores: int


@dataclass
class Figures:
    """What a probe finds.

    Attributes:
        peaks: by intrinsic, ``latency`` and ``interval`` of a call in seconds.
        read: by level, bytes a second that ``"one"`` core reads, and each of ``"all"``.
        write: the same for writing.
        launch: seconds to start a parallel kernel.
        clock: cycles a second.
    """

    peaks: dict[str, dict[str, float]] = field(default_factory=dict)
    read: dict[str, dict[str, float]] = field(default_factory=dict)
    write: dict[str, dict[str, float]] = field(default_factory=dict)
    launch: float = math.inf
    clock: float = 0.0


@dataclass(frozen=True)
class Probe:
    """Intrinsic rates, bandwidth of each level, launch, and clock of this CPU.

    Attributes:
        intrinsics: those whose rate is wanted.
        levels: by level, what ``"one"`` core streams and what ``"all"`` do.
        cores: that run at once.
        implementation: of the intrinsics, ``"native"`` or ``"generic"``; by default what
            there is.
    """

    intrinsics: tuple[Intrinsic, ...]
    levels: dict[str, dict[str, Stream]]
    cores: int
    implementation: str | None = None

    @property
    def needs(self) -> frozenset[Operator | str]:
        """Code for CPUs."""
        return frozenset({"cpu"})

    def run(self, context: Context) -> Figures | Failure:
        """Measure, in rounds."""
        from amos.codegen.probes.memory import probe_clock

        context.wait()
        start, clock, best = time.perf_counter(), probe_clock(), Figures()
        for turn in range(_ROUNDS):
            if turn and time.perf_counter() - start > _LONG:
                break
            try:
                self._rates(best, clock)
            except AmosError as error:
                return Failure("probe", str(error))
            self._bandwidths(best, clock)
        return best

    def _rates(self, best: Figures, clock: float) -> None:
        from amos.codegen.probes import memory as probe
        from amos.codegen.tir.tensor_intrin import implementation
        from amos.machine.cpu import cpu

        for unit in self.intrinsics:
            kind = self.implementation or implementation(unit, cpu().features)
            rates = probe.probe_rates(unit, kind, self.cores)
            probe.check_rates(unit, kind, rates, clock)
            peak = best.peaks.setdefault(unit.name, {})
            for name, seconds in rates.items():
                peak[name] = min(seconds, peak.get(name, seconds))

    def _bandwidths(self, best: Figures, clock: float) -> None:
        from amos.codegen.probes import memory as probe

        for level, streams in self.levels.items():
            for who, (size, cores) in streams.items():
                for figures, write in ((best.read, False), (best.write, True)):
                    rate = probe.probe_bandwidth(size, cores, write=write)
                    there = figures.setdefault(level, {})
                    there[who] = max(rate, there.get(who, rate))
        if self.levels:
            best.launch = min(best.launch, probe.probe_launch(self.cores))
            best.clock = max(best.clock, clock, probe.probe_clock())
