"""Described machines: one TOML file each in ``described/``, checked when read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from amos._tables import TableReader
from amos.errors import MachineError, UnknownNameError
from amos.intrinsics import Intrinsic
from amos.machine.gpu_costs import GpuCosts
from amos.machine.machine import Costs, Level, Machine, Peak
from amos.machine.makers import fitted_costs
from amos.machine.opencl_unit import OpenClUnit
from amos.machine.stream_unit import StreamUnit

_DESCRIBED = resources.files("amos.machine") / "described"


def names() -> tuple[str, ...]:
    """List the names of the described machines, sorted."""
    files = (entry.name for entry in _DESCRIBED.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in files if n.endswith(".toml")))


def get(name: str | Machine, intrinsics: Sequence[Intrinsic] = ()) -> Machine:
    """Look up a described machine.

    Args:
        name: the machine, by name or itself, or a TOML file that describes one.
        intrinsics: those whose rate is needed. Where the machine has none, the
            intrinsic's description supplies it, if it has a rate for this machine
            or for any machine.

    Raises:
        UnknownNameError: there is no such machine.
        MachineError: the file cannot be read, or describes none; or this is the host.
    """
    if not isinstance(name, str | Machine):
        raise UnknownNameError("machine", name, (*names(), "host"))
    if isinstance(name, Machine):
        machine = name
    else:
        machine = _read(name) if name.endswith(".toml") else _read_described(name)
    return with_timings(machine, [unit for unit in intrinsics if unit.name not in machine.peaks])


def with_timings(machine: Machine, intrinsics: Sequence[Intrinsic]) -> Machine:
    """Add rates of descriptions of intrinsics, for a machine or for any, to a machine."""
    added = {}
    for unit in intrinsics:
        fitting = [t for t in unit.timing if t.machine in (machine.name, "")]
        if fitting:
            timing = max(fitting, key=lambda t: t.machine)
            # A result is available no sooner than the next call can start.
            latency = max(timing.latency or 0.0, timing.interval)
            added[unit.name] = Peak(
                latency / machine.clock, timing.interval / machine.clock, timing.source
            )
    return replace(machine, peaks={**machine.peaks, **added}) if added else machine


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(f"{file}: expected a readable TOML file, found: {reason}") from None


def _read(file: str) -> Machine:
    machine = from_toml(_text_of(file), file)
    if machine.name in (*names(), "host"):
        raise MachineError(f"{file}: name: expected one of its own, got {machine.name!r}")
    return machine


@cache
def _read_described(name: str) -> Machine:
    if name == "host":
        raise MachineError("machine 'host' is this computer; expected a described one")
    if name not in names():
        raise UnknownNameError("machine", name, (*names(), "host"))
    return from_toml((_DESCRIBED / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


def from_toml(text: str, where: str = "machine") -> Machine:
    """Read a machine from TOML, whose keys are the arguments of :func:`described_machine`.

    Args:
        where: label in messages.

    Raises:
        MachineError: a key is missing, unknown, or has an impossible value.
    """
    reader = TableReader(where, text, MachineError)
    return _read_table(reader, reader.toml())


def problems_of(file: str) -> tuple[str, ...]:
    """Return a message for each problem of a machine file, so that all can be mended at once."""
    reader = TableReader(file, _text_of(file), MachineError)
    table = reader.toml()
    problems = reader.check(lambda: _read_table(reader, table))
    return problems or reader.check(lambda: _read(file))


def _read_table(reader: TableReader, table: Mapping[str, Any]) -> Machine:
    # A machine of one core has one unit of each level.
    needed = () if table.get("cores", 1) == 1 else ("units",)
    reader.special[Level] = partial(_level, reader, needed)
    return reader.call(described_machine, table, "")


def _level(reader: TableReader, needed: Sequence[str], value: Any, key: str) -> Level:
    """Read a level; write bandwidth defaults to read bandwidth."""
    if isinstance(value, dict):
        read = value.get("read_bandwidth")
        written = read if isinstance(read, int | float) else 1.0
        value = {"write_bandwidth": written, **value}
    return reader.call(Level, value, key, needed=needed)


def described_machine(
    *,
    name: str,
    source: str,
    clock: float,
    level: tuple[Level, ...],
    cores: int = 1,
    peak: Mapping[str, Peak] | None = None,
    launch: float = 0.0,
    features: tuple[str, ...] = (),
    maker: str = "",
    costs: Mapping[str, float] | None = None,
    line: int = 64,
    gpu: GpuCosts | None = None,
    stream: StreamUnit | None = None,
    opencl: OpenClUnit | None = None,
    host: str = "",
    operation_pj: float | None = None,
    energy_source: str = "",
) -> Machine:
    """Make a machine of the keys of its file; fields of :class:`Machine`, and tables of them."""
    if unknown := sorted((costs or {}).keys() - vars(Costs()).keys()):
        raise MachineError(f"costs: expected {', '.join(vars(Costs()))}; found {unknown[0]!r}")
    return Machine(
        name=name,
        cores=cores,
        clock=clock,
        levels=level,
        peaks={n: replace(rate, source=rate.source or source) for n, rate in (peak or {}).items()},
        launch=launch,
        features=features,
        maker=maker,
        source=source,
        costs=replace(fitted_costs(maker), **(costs or {})),
        line=line,
        gpu=gpu or GpuCosts(),
        stream=stream,
        opencl=opencl,
        host=host,
        operation_pj=operation_pj,
        energy_source=energy_source,
    )
