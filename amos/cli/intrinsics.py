"""``amos intrinsics``: what is registered, what it means, and whether it is so."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.options import (
    AsJson,
    IntrinsicFiles,
    IntrinsicName,
    load_intrinsics,
    read_intrinsic,
)
from amos.cli.output import print_json, print_line, print_table, print_warning
from amos.errors import IntrinsicError

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.selfcheck import Report

__all__ = ["app"]

#: Units of what a memory statement says.
_UNITS = {"capacity": " bytes", "alignment": " bytes", "write_interval": " cycles"}

app = typer.Typer(
    help="List, show and check intrinsics.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_command(files: IntrinsicFiles = None, as_json: AsJson = False) -> None:
    """List every registered intrinsic."""
    from amos import intrinsics
    from amos.ir.dtypes import dtype

    load_intrinsics(files)
    units = [intrinsics.get(name) for name in intrinsics.names()]
    for plug_in, why in intrinsics.broken().items():
        print_warning(f"plug-in {plug_in!r} is broken and could not be loaded: {why}")
    if as_json:
        print_json([_describe(unit) for unit in units])
        return
    print_table(
        ["intrinsic", "size", "dtypes", "code", "requires"],
        [
            [
                unit.name,
                " ".join(f"{name}={size}" for name, size in unit.extents.items()),
                tuple(dtype(name).short for name in unit.dtypes),
                tuple(intrinsics.implementations(unit.name)) or None,
                unit.requires or None,
            ]
            for unit in units
        ],
    )


@app.command("show")
def show_command(
    intrinsic: IntrinsicName = None, files: IntrinsicFiles = None, as_json: AsJson = False
) -> None:
    """Show an intrinsic as compute and memory abstraction."""
    unit = read_intrinsic(intrinsic, files)
    if as_json:
        print_json(_describe(unit))
        return
    print_line(str(unit))
    described = _describe(unit)
    for label, value in (
        ("about", unit.description),
        ("source", unit.source),
        ("requires", ", ".join(unit.requires)),
        ("code", ", ".join(described["implementations"])),
        ("shapes", str(unit.shapes or "")),
        ("holds", f"{unit.registers} fragments of {_target(unit)}" if unit.registers else ""),
    ):
        if value:
            print_line(f"  {label:8} {value}")
    for timing in unit.timing:
        print_line(f"  timing   {timing}")
    for statement in described["buffers"]:
        facts = [
            f"{key} {value}{_UNITS.get(key, '')}"
            for key, value in statement.items()
            if key != "operand"
        ]
        if facts:
            print_line(f"  {statement['operand']:8} {'; '.join(facts)}")


@app.command("check")
def check_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INTRINSIC|FILE]...", help="Names or TOML files; all if none is given."
        ),
    ] = None,
    files: IntrinsicFiles = None,
    as_json: AsJson = False,
) -> None:
    """Execute each meaning and compare it with every implementation that can run here.

    One line for each intrinsic: described, what it compiles for, what it ran on,
    equal or not, and what was skipped and why.
    """
    from amos import intrinsics
    from amos.selfcheck import check

    load_intrinsics(files)
    units = [_named(name) for name in names] if names else _all()
    tell = None if as_json else lambda report: print_line(str(report))
    reports = check(units, progress=tell)
    broken = {} if names else intrinsics.broken()
    if as_json:
        rows = [report.to_dict() for report in reports]
        rows += [_broken(name, why) for name, why in broken.items()]
        # One name, one object; a list for several.
        print_json(rows[0] if names and len(rows) == 1 else rows)
    else:
        for name, why in broken.items():
            print_line(f"plug-in {name}: BROKEN: {why}")
        print_line(_summary(reports))
    bad = [report.name for report in reports if not report.ok]
    bad += [f"plug-in {name}" for name in broken]
    if bad:
        raise IntrinsicError(f"{len(bad)} of {len(reports) + len(broken)} failed: {', '.join(bad)}")


def _all() -> list[Intrinsic]:
    from amos import intrinsics

    return [intrinsics.get(name) for name in intrinsics.names()]


def _named(name: str) -> Intrinsic:
    """An intrinsic by its name, or by the file that describes it."""
    from amos import intrinsics

    path = Path(name)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return intrinsics.load(path)
    return intrinsics.get(name)


def _summary(reports: list[Report]) -> str:
    ran = sum(report.equal is not None for report in reports)
    return (
        f"{len(reports)} checked, {sum(report.ok for report in reports)} without a problem; "
        f"{ran} ran and {sum(report.equal is True for report in reports)} are equal"
    )


def _broken(name: str, why: str) -> dict[str, Any]:
    from amos.selfcheck import Report

    return Report(f"plug-in {name}", problems=[why]).to_dict()


def _describe(unit: Intrinsic) -> dict[str, Any]:
    from amos import intrinsics

    m, n, k = unit.shape
    return {
        "name": unit.name,
        "family": unit.family,
        "m": m,
        "n": n,
        "k": k,
        "compute": str(unit.compute),
        "memory": [str(statement) for statement in unit.memory],
        "buffers": [_buffer(unit, n) for n in range(len(unit.memory))],
        "extents": unit.extents,
        "dtypes": list(unit.dtypes),
        "arithmetic": str(unit.arithmetic),
        "registers": unit.registers,
        "shapes": asdict(unit.shapes) if unit.shapes else None,
        "timing": [asdict(timing) for timing in unit.timing],
        "requires": list(unit.requires),
        "implementations": list(intrinsics.implementations(unit.name)),
        "description": unit.description,
        "source": unit.source,
    }


def _target(unit: Intrinsic) -> str:
    return unit.destination.tensor.name


def _buffer(unit: Intrinsic, number: int) -> dict[str, Any]:
    """What a memory statement says beyond its text."""
    statement = unit.memory[number]
    made: dict[str, Any] = {"operand": statement.operand}
    if statement.capacity:
        made["capacity"] = statement.capacity
    if statement.alignment > 1:
        made["alignment"] = statement.alignment
    if not statement.explicit:
        made["explicit"] = False
    if statement.write_interval:
        made["write_interval"] = statement.write_interval
    if statement.vectors:
        made["vectors"] = " or ".join(map(str, statement.vectors))
    if statement.layout is not None:
        made["layout"] = ", ".join(f"{i} = {text}" for i, text in statement.layout.where)
    return made
