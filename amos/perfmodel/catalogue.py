"""Described machines: one TOML file each in ``machines/``, checked when read."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any

from amos.errors import MachineError, UnknownNameError
from amos.perfmodel.machine import Costs, Level, Machine, Peak

__all__ = ["from_toml", "get", "names"]

_REQUIRED = {"name", "source", "cores", "clock", "level", "peak"}
_KEYS = _REQUIRED | {"launch", "features", "costs"}
_LEVEL = {"name", "capacity", "units", "read_bandwidth", "write_bandwidth"}
_LEVEL_KEYS = _LEVEL | {"core_read", "core_write"}
_PEAK = {"latency", "interval"}


def names() -> tuple[str, ...]:
    """Names of the described machines, sorted."""
    folder = resources.files("amos.perfmodel") / "machines"
    found = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in found if n.endswith(".toml")))


@cache
def get(name: str) -> Machine:
    """Look up a described machine.

    Raises:
        UnknownNameError: there is no such machine.
    """
    if name not in names():
        raise UnknownNameError("machine", name, (*names(), "host"))
    file = resources.files("amos.perfmodel") / "machines" / f"{name}.toml"
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
    _check_keys(data, _KEYS, _REQUIRED, where)
    levels = []
    for number, entry in enumerate(data["level"]):
        _check_keys(entry, _LEVEL_KEYS, _LEVEL, f"{where}: level {number}")
        levels.append(Level(**entry))
    peaks = {}
    for name, entry in data["peak"].items():
        _check_keys(entry, _PEAK, _PEAK, f"{where}: peak.{name}")
        peaks[name] = Peak(**entry, source=data["source"])
    costs = data.get("costs", {})
    _check_keys(costs, {field.name for field in fields(Costs)}, set(), f"{where}: costs")
    try:
        return Machine(
            name=data["name"],
            cores=data["cores"],
            clock=data["clock"],
            levels=tuple(levels),
            peaks=peaks,
            launch=data.get("launch", 0.0),
            features=tuple(data.get("features", ())),
            source=data["source"],
            costs=Costs(**costs),
        )
    except TypeError as error:
        raise MachineError(f"{where}: {error}") from error


def _check_keys(data: dict[str, Any], known: set[str], required: set[str], where: str) -> None:
    if missing := sorted(required - data.keys()):
        raise MachineError(f"{where}: missing key {', '.join(missing)}")
    if unknown := sorted(data.keys() - known):
        raise MachineError(
            f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
