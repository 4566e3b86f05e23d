"""The machine we run on, measured and remembered.

Caches and cores are read from the system; rates and bandwidths are measured once
and kept in the user's cache directory, keyed by CPU model, core count and
compiler version. Deleting that file measures again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from amos.errors import MachineError
from amos.intrinsics import Intrinsic
from amos.measure.runner import Runner
from amos.perfmodel.host import Cache, Cpu, cpu
from amos.perfmodel.machine import Level, Machine, Peak

__all__ = ["cache_file", "host_machine"]

#: Raised when a probe measures something else under the same name.
_VERSION = 1
#: Assumed when the system does not describe its caches (bytes; level 1, 2, 3).
_USUAL = (32 << 10, 1 << 20, 8 << 20)


def cache_file() -> Path:
    """Where the measurements of this CPU are kept."""
    from platformdirs import user_cache_path

    here = cpu()
    try:
        compiler = metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        compiler = "none"
    key = json.dumps([_VERSION, here.model, here.cores, sorted(here.features), compiler])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return user_cache_path("amos", appauthor=False) / f"host-{digest}.json"


def host_machine(
    intrinsics: Sequence[Intrinsic] = (),
    *,
    runner: Runner | None = None,
    fresh: bool = False,
    again: bool = False,
) -> Machine:
    """Describe this machine, measuring what is not known yet.

    Args:
        intrinsics: intrinsics whose rate must be known.
        runner: a worker to measure in; one is started for the purpose if needed.
        fresh: forget what was measured before.
        again: measure the rates of ``intrinsics`` once more and keep the better
            ones: a peak is the best that was ever seen, whatever else was running.

    Raises:
        MeasureError: a measurement failed.
    """
    known = {} if fresh else _load(cache_file())
    missing = [x for x in intrinsics if again or x.name not in known.get("peaks", {})]
    levels = {} if known.get("read") else _probe_sizes(cpu())
    if missing or levels:
        with contextlib.ExitStack() as stack:
            worker = runner or stack.enter_context(Runner())
            found = worker.probe(missing, levels, cpu().cores)
        peaks = known.setdefault("peaks", {})
        for name, figures in found["peaks"].items():
            before = peaks.get(name, figures)
            peaks[name] = {key: min(value, before[key]) for key, value in figures.items()}
        if levels:
            known |= {key: found[key] for key in ("read", "write", "launch")}
        _save(cache_file(), known)
    return _machine(cpu(), known)


def _data_caches(here: Cpu) -> tuple[Cache, ...]:
    if here.caches:
        return here.caches
    return tuple(Cache(n + 1, size, 1 if n == 2 else here.cores) for n, size in enumerate(_USUAL))


def _probe_sizes(here: Cpu) -> dict[str, tuple[int, int]]:
    """Bytes to stream for each level: half a cache, and well past the last one.

    A level that all cores share is measured with all of them at once.
    """
    caches = _data_caches(here)
    sizes = {
        f"L{c.level}": (
            c.capacity // 2 // (here.cores if c.units == 1 else 1),
            here.cores if c.units == 1 else 1,
        )
        for c in caches
    }
    sizes["DRAM"] = (max(64 << 20, 4 * caches[-1].capacity) // here.cores, here.cores)
    return sizes


def _machine(here: Cpu, known: dict[str, Any]) -> Machine:
    capacity = {f"L{c.level}": c.capacity for c in _data_caches(here)} | {"DRAM": 0}
    units = {f"L{c.level}": c.units for c in _data_caches(here)} | {"DRAM": 1}
    levels = []
    for name, size in capacity.items():
        # Shared levels were measured with every core streaming: add them up.
        together = here.cores if units[name] == 1 else 1
        levels.append(
            Level(
                name,
                size,
                known["read"][name] * together,
                known["write"][name] * together,
                units[name],
            )
        )
    peaks = {
        name: Peak(figures["latency"], figures["interval"], "measured")
        for name, figures in known["peaks"].items()
    }
    return Machine(
        name="host",
        cores=here.cores,
        clock=_clock(),
        levels=tuple(levels),
        peaks=peaks,
        launch=known["launch"],
        features=tuple(sorted(here.features)),
        source=f"measured on {here.model}",
    )


def _clock() -> float:
    """Nominal clock in cycles per second; only for display."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.split(":")[1]) * 1e6
    return 1e9


def _load(path: Path) -> dict[str, Any]:
    """What was measured before; nothing if the file is absent or unreadable."""
    try:
        known = json.loads(path.read_text())
        _machine(cpu(), {"peaks": {}} | known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MachineError):
        return {}
    return dict(known)


def _save(path: Path, known: dict[str, Any]) -> None:
    """Replace the file in one step, so that no reader sees half of it.

    Where the directory cannot be written, the next process measures again.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump(known, file, indent=1)
        os.replace(name, path)
