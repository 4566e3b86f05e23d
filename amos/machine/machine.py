"""Machines as data: memory levels from the registers outward, and compute rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from amos._display import Shown
from amos.errors import MachineError
from amos.intrinsics.implementation import newest_architecture
from amos.machine.gpu_costs import GpuCosts, Multiprocessor, multiprocessor
from amos.machine.opencl_unit import OpenClUnit
from amos.machine.stream_unit import StreamUnit


@dataclass(frozen=True)
class Costs:
    """Costs of generated code besides the calls, in cycles of one core.

    The defaults leave every term out. Those of a maker's CPUs, fitted to measurements
    (``amos reproduce fig5 --fit``), are in :mod:`amos.machine.makers`.

    Attributes:
        dense: factor on the time of back-to-back calls over that in a probe: the clock falls with
            their power, and loads come between them.
        window: calls that a core can have in flight out of order, across tiles.
        serial: advancing to the next element of a copy whose step is not unrolled; nothing for
            padding, of which compilers write several elements at once.
        find: addressing one element of a copy: for each division, and for each test whether it
            lies in the tensor's padding.
        reload: share by which calls are slower for each store or load, per call, of a fragment of
            overlapping windows that registers do not hold.
        sweep: factor on the time of reading beyond the innermost level where an operand is laid
            out in reading order.
        exchange: fetching back a line that another core prefetched for its own nearby stores.
        ahead: lines that hardware fetches ahead of a sequence of stores.
        overlap: how well calls and the caches near a core overlap: terms are added as
            powers with this exponent; infinite would be the plain maximum.
        far: the same exponent for traffic beyond the caches near a core, which overlaps less.
    """

    dense: float = 1.0
    window: float = 0.0
    serial: float = 0.0
    find: float = 0.0
    reload: float = 0.0
    sweep: float = 1.0
    exchange: float = 0.0
    ahead: float = 4.0
    overlap: float = math.inf
    far: float = math.inf


def check_picojoules(name: str, value: float | None) -> None:
    """Refuse what is no energy; raise MachineError if it is negative or infinite."""
    if value is not None and not 0 <= value < math.inf:
        raise MachineError(f"{name}: expected 0 or more picojoules, got {value}")


@dataclass(frozen=True)
class Level:
    """One memory level.

    Attributes:
        name: ``"L1"``, ``"shared"``, ``"DRAM"``, …
        capacity: bytes of one unit; 0 means unbounded (the outermost level).
        read_bandwidth: bytes per second that one unit delivers inward.
        write_bandwidth: bytes per second that one unit takes from inside.
        units: how many such units the machine has; cores share a level that has
            fewer units than there are cores.
        core_read: bytes per second that one core alone can read; 0 for no limit
            besides the level's.
        core_write: the same for writing.
        scratchpad: true if programs place data there themselves, which has to fit;
            false for a cache.
        read_pj_per_byte: picojoules of reading a byte from it; ``None`` if unknown.
        write_pj_per_byte: picojoules of writing a byte to it.
    """

    name: str
    capacity: int
    read_bandwidth: float
    write_bandwidth: float
    units: int = 1
    core_read: float = 0.0
    core_write: float = 0.0
    scratchpad: bool = False
    read_pj_per_byte: float | None = None
    write_pj_per_byte: float | None = None

    def __post_init__(self) -> None:
        for key in ("read_bandwidth", "write_bandwidth"):
            if not 0 < getattr(self, key) < math.inf:
                raise MachineError(
                    f"level {self.name!r}: {key} must be positive and finite, "
                    f"got {getattr(self, key)}"
                )
        for key in ("read_pj_per_byte", "write_pj_per_byte"):
            check_picojoules(f"level {self.name!r}: {key}", getattr(self, key))
        if self.capacity < 0 or self.units < 1:
            raise MachineError(f"level {self.name!r}: capacity and units must be positive")

    @property
    def energy(self) -> str:
        """Energies of a byte in words; empty if unknown."""
        if self.read_pj_per_byte is None or self.write_pj_per_byte is None:
            return ""
        return f", {self.read_pj_per_byte:g} and {self.write_pj_per_byte:g} pJ a byte"

    def rate(self, groups: np.ndarray, group_cores: np.ndarray, *, write: bool) -> np.ndarray:
        """Return bytes per second for one of several groups of cores that draw at once."""
        bandwidth = self.write_bandwidth if write else self.read_bandwidth
        core_bandwidth = self.core_write if write else self.core_read
        shared: np.ndarray = bandwidth * np.minimum(1.0, self.units / groups)
        return np.minimum(shared, core_bandwidth * group_cores) if core_bandwidth else shared

    def share(self, cores: int) -> Level:
        """Return the share of one core while that many cores use the level."""
        fraction = min(1.0, self.units / cores)
        read, write = self.read_bandwidth * fraction, self.write_bandwidth * fraction
        return replace(
            self,
            capacity=int(self.capacity * fraction),
            read_bandwidth=min(read, self.core_read or read),
            write_bandwidth=min(write, self.core_write or write),
            units=1,
            core_read=0.0,
            core_write=0.0,
        )


@dataclass(frozen=True)
class Peak:
    """Rate of one intrinsic on one core.

    Attributes:
        latency: seconds until a dependent call can start.
        interval: seconds between independent calls (the inverse of throughput).
        source: where the figures come from.
        generic: whether the rate is that of loops in place of the instruction.
    """

    latency: float
    interval: float
    source: str = ""
    generic: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.interval < math.inf and 0 < self.latency < math.inf):
            raise MachineError("latency and interval of an intrinsic must be positive and finite")


@dataclass(frozen=True)
class Machine(Shown):
    """A machine with ``cores`` cores and memory levels from inside outward.

    Attributes:
        name: registry name (``"host"``, ``"a100"``).
        cores: parallel units that each issue intrinsics (CPU cores, SM sub-cores).
        clock: cycles per second.
        levels: memory levels; the last one is unbounded.
        peaks: rate of each intrinsic by name.
        launch: seconds to start and join one parallel region.
        features: instruction sets or architectures the machine has.
        maker: vendor string of its CPU: ``"AuthenticAMD"``; ``""`` for others.
        source: where the figures come from.
        costs: costs of generated code besides the calls.
        line: bytes that memory levels exchange at a time.
        gpu: costs of CUDA kernels; unused on other machines.
        stream: its queues, if streams of instructions drive it.
        opencl: its compute units, if it is a device of OpenCL.
        host: machine, by name or file, that drives it and computes the operators that it cannot.
        operation_pj: picojoules of a product that is added; ``None`` if unknown.
        energy_source: where the energies of operations and levels come from.
    """

    name: str
    cores: int
    clock: float
    levels: tuple[Level, ...]
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    launch: float = 0.0
    features: tuple[str, ...] = ()
    maker: str = ""
    source: str = ""
    costs: Costs = Costs()
    line: int = 64
    gpu: GpuCosts = GpuCosts()
    stream: StreamUnit | None = None
    opencl: OpenClUnit | None = None
    host: str = ""
    operation_pj: float | None = None
    energy_source: str = ""

    def __post_init__(self) -> None:
        check_picojoules(f"machine {self.name!r}: operation_pj", self.operation_pj)
        if self.cores < 1:
            raise MachineError(f"machine {self.name!r}: cores must be positive, got {self.cores}")
        if not 0 < self.clock < math.inf:
            raise MachineError(
                f"machine {self.name!r}: clock must be positive and finite, got {self.clock}"
            )
        if not self.launch >= 0:
            raise MachineError(f"machine {self.name!r}: launch is negative: {self.launch}")
        if not self.levels or self.levels[-1].capacity != 0:
            raise MachineError(f"machine {self.name!r}: the outermost level must be unbounded")
        inner = [level.capacity for level in self.levels[:-1]]
        if 0 in inner or inner != sorted(inner):
            raise MachineError(f"machine {self.name!r}: capacities must grow outward, got {inner}")

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.cores} cores at {self.clock / 1e9:.2f} GHz  ({self.source})"]
        for level in self.levels:
            size = f"{level.capacity / 1024:.0f} KiB" if level.capacity else "unbounded"
            lines.append(
                f"  {level.name:8} {size:>12} x {level.units:<3} "
                f"read {level.read_bandwidth / 1e9:.1f} GB/s, "
                f"write {level.write_bandwidth / 1e9:.1f} GB/s{level.energy}"
            )
        if self.operation_pj is not None:
            lines.append(f"  {self.operation_pj:g} pJ a product  ({self.energy_source})")
        if self.stream is not None:
            lines.append(f"  {self.stream}")
        if self.opencl is not None:
            lines.append(f"  {self.opencl}")
        for name, peak in self.peaks.items():
            generic = " (generic implementation)" if peak.generic else ""
            lines.append(
                f"  {name}: one every {peak.interval * 1e9:.3g} ns on each core, "
                f"latency {peak.latency * 1e9:.3g} ns{generic}"
            )
        return "\n".join(lines)

    @property
    def cached(self) -> bool:
        """True if all of its memories are caches, without scratchpads."""
        return not any(level.scratchpad for level in self.levels)

    @property
    def private_cache(self) -> int:
        """Capacity of the largest private cache of a core; 0 without one."""
        private = (level.capacity for level in self.levels if level.units >= self.cores)
        return max(private, default=0)

    @property
    def core(self) -> Machine:
        """One of its cores while all others do the same, without launch overhead."""
        levels: list[Level] = []
        for level in self.levels:
            share = level.share(self.cores)
            least = levels[-1].capacity if levels and share.capacity else 0
            levels.append(replace(share, capacity=max(share.capacity, least)))
        return replace(self, cores=1, launch=0.0, levels=tuple(levels))

    @property
    def architecture(self) -> int:
        """Newest CUDA architecture that the machine runs, as 80 for ``sm_80``; 0 if none."""
        return newest_architecture(self.features)

    @property
    def multiprocessor(self) -> Multiprocessor:
        """Capacities of a multiprocessor of a CUDA machine; its first level is shared memory."""
        return replace(multiprocessor(self.architecture), shared=self.levels[0].capacity)

    def peak(self, intrinsic: str) -> Peak:
        """Return the rate of an intrinsic; MachineError if the machine has no figure for it."""
        try:
            return self.peaks[intrinsic]
        except KeyError:
            rated = ", ".join(sorted(self.peaks)) or "none"
            raise MachineError(
                f"machine {self.name!r} has no rate for intrinsic {intrinsic!r}; known: {rated}"
            ) from None
