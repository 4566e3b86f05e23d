"""Probes of a CPU's rates."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.measure.messages import LOADER, Context, Failure

#: Rounds of a probe; the best of each figure counts, since whatever else runs on
#: the machine can only make a round worse.
_ROUNDS = 2
#: Seconds after which no other round begins.
_LONG = 20.0
#: Number of times that contradictory figures are measured again.
_AGAIN = 5
#: Figures of which less is better; of the others more is.
_LESS = ("latency", "interval", "launch")


class Stream(NamedTuple):
    """The bytes that each of some cores streams to measure a level."""

    size: int
    cores: int


@dataclass
class Figures:
    """Results of a probe.

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

    def take_better(self, figures: Figures) -> Figures:
        """Take the better value of each figure, which disturbances can only worsen."""
        return Figures(**_better(asdict(self), asdict(figures)))


def _better(a: Any, b: Any, name: str = "") -> Any:
    if isinstance(a, dict):
        both = {key: _better(a[key], b[key], key) for key in a.keys() & b.keys()}
        return a | b | both
    return min(a, b) if name in _LESS else max(a, b)


@dataclass(frozen=True)
class Probe:
    """Intrinsic rates, bandwidth of each level, launch, and clock of this CPU.

    Attributes:
        intrinsics: those whose rate is wanted.
        levels: by level, the streams of ``"one"`` core and of ``"all"``.
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
        return frozenset({LOADER})

    def run(self, context: Context) -> Figures | Failure:
        """Measure, in rounds."""
        from amos.codegen.probes.memory import probe_clock

        context.wait()
        start, clock, best = time.perf_counter(), probe_clock(), Figures()
        for turn in range(_ROUNDS):
            if turn and time.perf_counter() - start > _LONG:
                break
            try:
                best = best.take_better(self._round(clock))
            except AmosError as error:
                return Failure("probe", str(error))
        return best

    def _round(self, clock: float) -> Figures:
        from amos.codegen.probes import memory as probe
        from amos.codegen.tir.tensor_intrin import implementation
        from amos.machine.cpu import cpu

        best = Figures()
        for unit in self.intrinsics:
            kind = self.implementation or implementation(unit, cpu().features)
            rates = best.peaks[unit.name] = probe.probe_rates(unit, kind, self.cores)
            for _ in range(_AGAIN):
                if probe.is_reachable(unit, kind, rates, clock):
                    break
                # Neighbours can make a clock look slow, and never fast.
                clock = max(clock, probe.probe_clock())
            probe.check_rates(unit, kind, rates, clock)
        for level, streams in self.levels.items():
            for figures, write in ((best.read, False), (best.write, True)):
                figures[level] = _measure_streams(streams, write=write)
        if self.levels:
            best.launch = probe.probe_launch(self.cores)
            best.clock = max(clock, probe.probe_clock())
        return best


def _measure_streams(streams: dict[str, Stream], *, write: bool) -> dict[str, float]:
    """Measure bytes a second of each core, for one streaming core and for all.

    All cores together cannot be slower than one alone unless neighbours disturbed them; a model
    that believed such figures would use a single core.
    """
    from amos.codegen.probes.memory import probe_bandwidth

    best: dict[str, float] = {}
    for _ in range(_AGAIN):
        fresh = {
            group: probe_bandwidth(size, cores, write=write)
            for group, (size, cores) in streams.items()
        }
        best = _better(best, fresh)
        if all(best[group] * cores >= best["one"] for group, (_, cores) in streams.items()):
            break
    return best
