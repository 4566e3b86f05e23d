"""The CPU that this process runs on, as the operating system describes it."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SYS = Path("/sys/devices/system/cpu")
#: Prefixes of features to ignore, in this process and in those it starts.
_OVERLOOKED = "AMOS_CPU_LACKS"
#: Features with which products of bytes are added in 32 bits.
_INT8_DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """One data cache: level, bytes of one unit, number of units we can use."""

    level: int
    capacity: int
    units: int


@dataclass(frozen=True)
class Cpu:
    """The CPU as far as the system describes it.

    Attributes:
        model: model name.
        cores: processors that this process may run on.
        features: flags such as ``avx512_vnni``; empty if they cannot be read.
        caches: data caches from inside outward; empty if they cannot be read.
        maker: vendor string of the CPU: ``"AuthenticAMD"``, ``"GenuineIntel"``.
    """

    model: str
    cores: int
    features: frozenset[str]
    caches: tuple[Cache, ...]
    maker: str = "unknown"

    @property
    def has_int8_dot_products(self) -> bool:
        """Whether an instruction adds products of bytes in 32 bits.

        Without one, libraries add pairs of them in 16 bits, which saturate.
        """
        return not _INT8_DOT_PRODUCTS.isdisjoint(self.features)


@cache
def cpu() -> Cpu:
    """Describe the CPU of this process.

    Features that begin with a word of the environment variable ``AMOS_CPU_LACKS`` are left
    out, so that tests see an older CPU: ``AMOS_CPU_LACKS="avx512 avx_vnni amx"``.
    """
    model, maker, features = _cpuinfo(Path("/proc/cpuinfo"))
    if lacks := tuple(os.environ.get(_OVERLOOKED, "").split()):
        features = frozenset(name for name in features if not name.startswith(lacks))
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = list(range(os.cpu_count() or 1))
    return Cpu(model, len(allowed), features, _caches(_SYS, allowed), maker)


def _cpuinfo(path: Path) -> tuple[str, str, frozenset[str]]:
    try:
        text = path.read_text()
    except OSError:
        return platform.processor() or platform.machine() or "unknown CPU", "unknown", frozenset()
    values: dict[str, str] = {}
    for key, value in re.findall(r"^([^:\n]+?)[ \t]*:[ \t]*(.+)$", text, re.MULTILINE):
        values.setdefault(key, value.strip())
    # "model" and "stepping" distinguish CPUs of one marketing name apart.
    details = (
        f"{key} {values[key]}" for key in ("cpu family", "model", "stepping") if key in values
    )
    return (
        ", ".join((values.get("model name", platform.machine()), *details)),
        values.get("vendor_id", "unknown"),
        frozenset(values.get("flags", values.get("Features", "")).split()),
    )


def _caches(root: Path, allowed: list[int]) -> tuple[Cache, ...]:
    """Read the data and unified caches of the allowed processors."""
    levels: dict[int, dict[str, int]] = {}
    for number in allowed:
        for index in sorted((root / f"cpu{number}" / "cache").glob("index*")):
            try:
                if (index / "type").read_text().strip() == "Instruction":
                    continue
                level = int((index / "level").read_text())
                size = _bytes((index / "size").read_text().strip())
                shared = (index / "shared_cpu_list").read_text().strip()
            except (OSError, ValueError):
                continue
            levels.setdefault(level, {})[shared] = size
    return tuple(
        Cache(level, min(units.values()), len(units)) for level, units in sorted(levels.items())
    )


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-1:])
    return int(text[:-1]) * unit if unit else int(text)
