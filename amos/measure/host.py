"""The machine we run on, measured and cached.

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
from dataclasses import asdict, replace
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path

from amos.errors import MachineError
from amos.intrinsics import Intrinsic
from amos.machine.cpu import Cache, Cpu, cpu
from amos.machine.machine import Level, Machine, Peak
from amos.machine.makers import fitted_costs
from amos.measure.probe import Figures, Probe, Stream
from amos.measure.runner import Runner, default_memory

#: Increased when a probe measures something else under the same name.
_VERSION = 6
#: Assumed when the system does not describe its caches (bytes; level 1, 2, 3).
_USUAL = (32 << 10, 1 << 20, 8 << 20)
#: Bytes that one pass streams to be in memory: at the least, at the most (half a second
#: of a slow core), and at the most by each of very many cores.
_LEAST, _MOST, _MOST_EACH = 64 << 20, 1 << 30, 32 << 20
#: Times the cache before it that a core streams, to measure a cache.
_TIMES_BEFORE = 16


def cache_file() -> Path:
    """Return the path of the cached measurements of this CPU."""
    from platformdirs import user_cache_path

    here = cpu()
    key = json.dumps([_VERSION, here.model, here.cores, sorted(here.features), _compiler()])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return user_cache_path("amos", appauthor=False) / f"host-{digest}.json"


@cache
def _compiler() -> str:
    """Return the version of TVM; reading it takes milliseconds."""
    try:
        return metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        return "none"


def read_rates() -> dict[str, float]:
    """Return everything that was measured of this CPU so far, by name; nothing is measured now."""
    with contextlib.suppress(OSError):
        return _rates(cache_file(), cache_file().stat().st_mtime_ns)
    return {}


@lru_cache(maxsize=1)
def _rates(path: Path, _: int) -> dict[str, float]:
    rates: dict[str, float] = {}

    def add(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, own in value.items():
                add(f"{name} {key}", own)
        elif isinstance(value, int | float):
            rates[name] = float(value)

    add("host", asdict(_load(path)))
    return rates


def host_machine(
    intrinsics: Sequence[Intrinsic] = (),
    *,
    runner: Runner | None = None,
    fresh: bool = False,
    again: bool = False,
    levels_again: bool = False,
    implementation: str | None = None,
) -> Machine:
    """Describe this machine, measuring missing figures.

    Args:
        intrinsics: intrinsics whose rate must be known.
        runner: a worker to measure in; one is started for the purpose if needed.
        fresh: forget earlier measurements.
        again: measure the rates of ``intrinsics`` once more and keep the better
            ones: a peak is the best that was ever seen, whatever else was running.
        levels_again: the same for bandwidths, launch and clock.
        implementation: whose rates are requested, ``"native"`` or ``"generic"``; by
            default those of the one that kernels use here.

    Raises:
        MeasureError: a measurement failed.
    """
    figures = Figures() if fresh else _load(cache_file())
    versions = {x.name: _version(x, implementation) for x in intrinsics}
    missing = [x for x in intrinsics if again or versions[x.name] not in figures.peaks]
    levels = {} if figures.read and not levels_again else _probe_sizes(cpu(), runner)
    if missing or levels:
        with contextlib.ExitStack() as stack:
            worker = runner or stack.enter_context(Runner())
            measured = worker.probe(Probe(tuple(missing), levels, cpu().cores, implementation))
        rates = {versions[name]: rate for name, rate in measured.peaks.items()}
        figures = figures.take_better(replace(measured, peaks=rates))
        _save(cache_file(), figures)
    # Of several with one name the last one counts: a native rate, or the requested one.
    figures.peaks = dict(
        sorted(figures.peaks.items(), key=lambda item: _read_version(item[0])[1] == "native")
    )
    for version in versions.values():
        figures.peaks[version] = figures.peaks.pop(version)
    return _machine(cpu(), figures)


def _version(intrinsic: Intrinsic, kind: str | None) -> str:
    """Return the key of a rate, which changes with the implementation."""
    from amos.codegen.tir.tensor_intrin import implementation, version

    return version(intrinsic, kind or implementation(intrinsic, cpu().features))


def _data_caches(here: Cpu) -> tuple[Cache, ...]:
    if here.caches:
        return here.caches
    return tuple(Cache(n + 1, size, 1 if n == 2 else here.cores) for n, size in enumerate(_USUAL))


def _probe_sizes(here: Cpu, runner: Runner | None = None) -> dict[str, dict[str, Stream]]:
    """Choose the bytes that each core streams: half its share of a cache, and more than the last.

    A stream is at most a few times the previous cache: that is enough to leave it, and a virtual
    machine may own only a share of a large shared cache. Every level is measured with one core and
    with all of them. The size of a stream is limited, so that a probe takes seconds with any cache:
    a larger level is measured at the limit. Where the caches hold more than the limit, the
    bandwidth of memory is therefore theirs, as for any kernel that moves no more than that.
    """
    caches, cores = _data_caches(here), here.cores
    # Arrays are allocated, then copied, in addition to memory that compilation has used.
    limit = runner.memory if runner is not None and runner.memory else default_memory()
    memory = limit // 5 or _MOST
    most, most_shared = min(_MOST, memory), min(max(_MOST, _MOST_EACH * cores), memory)
    sizes, before = {}, most
    for c in caches:
        sharing = -(-cores // c.units)
        half = min(c.capacity // 2, most // 4, _TIMES_BEFORE * before * sharing)
        before = c.capacity
        per_core = min(half // sharing, most_shared // cores)
        sizes[f"L{c.level}"] = {"one": Stream(half, 1), "all": Stream(per_core, cores)}
    last = caches[-1]
    alone = min(max(_LEAST, 4 * last.capacity), most)
    # Together the cores have every unit of the last cache.
    shared = min(max(_LEAST, 4 * last.capacity * last.units), most_shared)
    sizes["DRAM"] = {"one": Stream(alone, 1), "all": Stream(shared // cores, cores)}
    return sizes


def _read_version(version: str) -> tuple[str, str]:
    """Return the intrinsic and the implementation of a measured rate."""
    _, name, kind, *_ = version.split(".")
    return name, kind


def _machine(here: Cpu, figures: Figures) -> Machine:
    caches = {f"L{c.level}": (c.capacity, c.units) for c in _data_caches(here)}
    peaks = {}
    for version, rates in figures.peaks.items():
        name, kind = _read_version(version)
        source = "measured" if kind == "native" else "measured, generic implementation"
        peaks[name] = Peak(**rates, source=source, generic=kind == "generic")
    return Machine(
        name="host",
        cores=here.cores,
        clock=figures.clock,
        levels=tuple(
            _level(name, size, units, here.cores, figures)
            for name, (size, units) in (caches | {"DRAM": (0, 1)}).items()
        ),
        peaks=peaks,
        launch=figures.launch,
        features=tuple(sorted(here.features)),
        maker=here.maker,
        source=f"measured on {here.model}",
        costs=fitted_costs(here.maker),
    )


def _level(name: str, size: int, units: int, cores: int, figures: Figures) -> Level:
    alone, per_core = figures.read[name]["one"], figures.read[name]["all"]
    alone_out, per_core_out = figures.write[name]["one"], figures.write[name]["all"]
    if units >= cores:
        # Nothing is shared, so the two figures are one, measured twice.
        return Level(name, size, max(alone, per_core), max(alone_out, per_core_out), units)
    sharing = cores / units
    return Level(name, size, per_core * sharing, per_core_out * sharing, units, alone, alone_out)


def _load(path: Path) -> Figures:
    """Load earlier measurements; none if the file is absent or unreadable."""
    try:
        values = json.loads(path.read_text())
        figures = Figures(**{name: values[name] for name in asdict(Figures())})
        _machine(cpu(), figures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MachineError):
        return Figures()
    return figures


def _save(path: Path, figures: Figures) -> None:
    """Replace the file in one step, so that no reader sees half of it.

    Where the directory cannot be written, the next process measures again.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(figures), file, indent=1)
        os.replace(name, path)
