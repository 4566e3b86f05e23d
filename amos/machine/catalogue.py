"""Described machines: one TOML file each in ``described/``, checked when read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from amos.errors import MachineError, UnknownNameError
from amos.machine.gpu_costs import GpuCosts
from amos.machine.machine import Costs, Level, Machine, Peak
from amos.machine.makers import fitted

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic

__all__ = ["from_toml", "get", "names", "with_timings"]

_NUMBER: tuple[type, ...] = (int, float)
#: Kind of the value of each key, by table.
_MACHINE: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "source": (str,),
    "cores": (int,),
    "clock": _NUMBER,
    "level": (list,),
    "peak": (dict,),
    "launch": _NUMBER,
    "features": (list,),
    "costs": (dict,),
    "line": (int,),
    "maker": (str,),
    "gpu": (dict,),
}
_LEVEL: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "capacity": (int,),
    "units": (int,),
    "read_bandwidth": _NUMBER,
    "write_bandwidth": _NUMBER,
    "core_read": _NUMBER,
    "core_write": _NUMBER,
    "scratchpad": (bool,),
}
_PEAK = {"latency": _NUMBER, "interval": _NUMBER}
_COSTS = {field.name: _NUMBER for field in fields(Costs)}
_GPU = {field.name: _NUMBER for field in fields(GpuCosts)}
_OPTIONAL = {
    "launch",
    "features",
    "costs",
    "core_read",
    "core_write",
    "scratchpad",
    "line",
    "maker",
    "gpu",
    *_COSTS,
    *_GPU,
}
_WORDS = {
    bool: "true or false",
    str: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def names() -> tuple[str, ...]:
    """Names of the described machines, sorted."""
    folder = resources.files("amos.machine") / "described"
    found = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in found if n.endswith(".toml")))


def get(name: str | Machine, intrinsics: Sequence[Intrinsic] = ()) -> Machine:
    """Look up a described machine.

    Args:
        name: the machine; one that is given itself is returned as it is.
        intrinsics: those whose rate is needed. Where the machine has none, it is
            the one of the intrinsic's description, if that has one of this machine
            or of no certain machine.

    Raises:
        UnknownNameError: there is no such machine.
    """
    if isinstance(name, Machine):
        return name
    if not isinstance(name, str):
        raise UnknownNameError("machine", name, (*names(), "host"))
    machine = _described(name)
    return with_timings(machine, [unit for unit in intrinsics if unit.name not in machine.peaks])


def with_timings(machine: Machine, intrinsics: Sequence[Intrinsic]) -> Machine:
    """A machine with the rates that descriptions of intrinsics give.

    Args:
        machine: any machine.
        intrinsics: those whose description counts, if it has a rate of this machine or
            of no certain machine.
    """
    added = {}
    for unit in intrinsics:
        fitting = [t for t in unit.timing if t.machine in (machine.name, "")]
        if fitting:
            timing = max(fitting, key=lambda t: t.machine)
            # A result is there no sooner than the next call can start.
            latency = max(timing.latency or 0.0, timing.interval)
            added[unit.name] = Peak(
                latency / machine.clock, timing.interval / machine.clock, timing.source
            )
    return replace(machine, peaks={**machine.peaks, **added}) if added else machine


@cache
def _described(name: str) -> Machine:
    if name not in names():
        raise UnknownNameError("machine", name, (*names(), "host"))
    file = resources.files("amos.machine") / "described" / f"{name}.toml"
    return from_toml(file.read_text(encoding="utf-8"), f"{name}.toml")


def from_toml(text: str, where: str = "machine") -> Machine:
    """Read a machine from TOML.

    Args:
        text: the document.
        where: what to call it in messages.

    Raises:
        MachineError: a key is missing, unknown, or has an impossible value.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(f"{where}: {error}") from error
    _check(data, _MACHINE, where)
    for number, entry in enumerate(data["level"]):
        _check(entry, _LEVEL, f"{where}: level {number}")
    for name, entry in data["peak"].items():
        _check(entry, _PEAK, f"{where}: peak.{name}")
    costs = data.get("costs", {})
    _check(costs, _COSTS, f"{where}: costs")
    maker, gpu = data.get("maker", ""), data.get("gpu", {})
    _check(gpu, _GPU, f"{where}: gpu")
    try:
        return Machine(
            name=data["name"],
            cores=data["cores"],
            clock=data["clock"],
            levels=tuple(Level(**entry) for entry in data["level"]),
            peaks={n: Peak(**entry, source=data["source"]) for n, entry in data["peak"].items()},
            launch=data.get("launch", 0.0),
            features=tuple(data.get("features", ())),
            source=data["source"],
            maker=maker,
            costs=replace(fitted(maker), **costs),
            line=data.get("line", 64),
            gpu=GpuCosts(**gpu),
        )
    except MachineError as error:
        raise MachineError(f"{where}: {error}") from error


def _check(data: Any, kinds: Mapping[str, tuple[type, ...]], where: str) -> None:
    """A table has every key, no other, and values of the right kind."""
    if not isinstance(data, dict):
        raise MachineError(f"{where}: expected a table, got {data!r}")
    if missing := sorted(kinds.keys() - _OPTIONAL - data.keys()):
        raise MachineError(f"{where}: missing key {', '.join(missing)}")
    if unknown := sorted(data.keys() - kinds.keys()):
        raise MachineError(
            f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(kinds))}"
        )
    for key, value in data.items():
        # In Python a truth value is a whole number.
        wrong = isinstance(value, bool) and bool not in kinds[key]
        if wrong or not isinstance(value, kinds[key]):
            raise MachineError(f"{where}: {key} must be {_WORDS[kinds[key][-1]]}, got {value!r}")
