"""``amos intrinsics``: list registered intrinsics, show their meanings, check them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli import options
from amos.cli.keys import intrinsic_keys, print_keys
from amos.cli.output import print_json, print_line, print_table, print_warning
from amos.errors import IntrinsicError

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.intrinsics.memory import Memory

#: Units of the values of a memory statement.
_UNITS = {"capacity": " bytes", "alignment": " bytes", "write_interval": " cycles"}

app = typer.Typer(
    help="List, show and check intrinsics.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_command(files: options.IntrinsicFiles = None, as_json: options.AsJson = False) -> None:
    """List every registered intrinsic."""
    options.load_intrinsics(files)
    units = _all()
    for plug_in, why in amos.intrinsics.list_broken().items():
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
                tuple(kind.spelled for kind in unit.kinds),
                tuple(amos.intrinsics.implementations(unit.name)) or None,
                unit.requires or None,
            ]
            for unit in units
        ],
    )


@app.command("keys")
def keys_command(as_json: options.AsJson = False) -> None:
    """List the keys of intrinsic files, and what they mean."""
    print_keys(intrinsic_keys(), as_json)


@app.command("show")
def show_command(
    intrinsic: options.IntrinsicName = None,
    files: options.IntrinsicFiles = None,
    as_json: options.AsJson = False,
) -> None:
    """Show an intrinsic as compute and memory abstraction."""
    from amos.intrinsics import implementations

    unit = options.read_intrinsic(intrinsic, files)
    if as_json:
        print_json(_describe(unit))
        return
    print_line(str(unit))
    holds = f"{unit.registers} fragments of {unit.destination.tensor.name}"
    facts: list[tuple[str, object]] = [
        ("about", unit.description),
        ("source", unit.source),
        ("requires", ", ".join(unit.requires)),
        ("code", ", ".join(implementations(unit.name))),
        ("shapes", unit.shapes),
        ("holds", holds if unit.registers else ""),
        *(("timing", timing) for timing in unit.timing),
    ]
    for statement in unit.memory:
        _, *fields = _buffer(statement).items()
        texts = (f"{key} {value}{_UNITS.get(key, '')}" for key, value in fields)
        facts.append((statement.operand, "; ".join(texts)))
    for label, value in facts:
        if value:
            print_line(f"  {label:8} {value}")


@app.command("check")
def check_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INTRINSIC|FILE]...", help="Names or TOML files; all if none is given."
        ),
    ] = None,
    files: options.IntrinsicFiles = None,
    as_json: options.AsJson = False,
) -> None:
    """Execute each meaning and compare it with every implementation that can run here.

    One line for each intrinsic: described, what it compiles for, what it ran on,
    equal or not, and what was skipped and why.
    """
    from amos.selfcheck import Report, check

    options.load_intrinsics(files)
    units = [_find_intrinsic(name) for name in names] if names else _all()
    reports = check(units, progress=None if as_json else lambda report: print_line(str(report)))
    plug_ins = {} if names else amos.intrinsics.list_broken()
    broken = [Report(f"plug-in {name}", problems=[why]) for name, why in plug_ins.items()]
    if as_json:
        rows = [report.to_dict() for report in (*reports, *broken)]
        # One name, one object; a list for several.
        print_json(rows[0] if names and len(rows) == 1 else rows)
    else:
        for report in broken:
            print_line(f"{report.name}: BROKEN: {report.problems[0]}")
        ran = [report.equal for report in reports if report.equal is not None]
        print_line(
            f"{len(reports)} checked, {sum(report.ok for report in reports)} without a problem; "
            f"{len(ran)} ran and {sum(ran)} are equal"
        )
    if bad := [report.name for report in (*reports, *broken) if not report.ok]:
        raise IntrinsicError(f"{len(bad)} of {len(reports) + len(broken)} failed: {', '.join(bad)}")


def _all() -> list[Intrinsic]:
    return [amos.intrinsics.get(name) for name in amos.intrinsics.names()]


def _find_intrinsic(name: str) -> Intrinsic:
    path = Path(name)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return amos.intrinsics.load(path)
    return amos.intrinsics.get(name)


def _describe(unit: Intrinsic) -> dict[str, Any]:
    m, n, k = unit.shape
    return {
        "name": unit.name,
        "family": unit.family,
        "m": m,
        "n": n,
        "k": k,
        "compute": str(unit.compute),
        "memory": [str(statement) for statement in unit.memory],
        "buffers": [_buffer(statement) for statement in unit.memory],
        "extents": unit.extents,
        "dtypes": [kind.declared for kind in unit.kinds],
        "arithmetic": str(unit.arithmetic),
        "registers": unit.registers,
        "shapes": unit.shapes,
        "timing": unit.timing,
        "requires": unit.requires,
        "implementations": list(amos.intrinsics.implementations(unit.name)),
        "description": unit.description,
        "source": unit.source,
    }


def _buffer(statement: Memory) -> dict[str, Any]:
    """Return the values of a memory statement beyond its text; the operand first."""
    layout = statement.layout
    facts = {
        "capacity": statement.capacity or None,
        "banks": statement.banks if statement.banks > 1 else None,
        "double": False if not statement.double else None,
        "alignment": statement.alignment if statement.alignment > 1 else None,
        "explicit": False if not statement.explicit else None,
        "write_interval": statement.write_interval or None,
        "transposes": statement.transposes or None,
        "vectors": " or ".join(map(str, statement.vectors)) or None,
        "layout": layout and ", ".join(f"{i} = {text}" for i, text in layout.where),
    }
    return {"operand": statement.operand} | {k: v for k, v in facts.items() if v is not None}
