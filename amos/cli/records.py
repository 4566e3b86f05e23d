"""``amos records``: measurements of earlier explorations."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.chains import replay_chain
from amos.cli.options import AsJson, IntrinsicFiles, Limit, load_intrinsics
from amos.cli.output import print_json, print_line, print_replay, print_table
from amos.errors import RecordError, UnknownNameError

if TYPE_CHECKING:
    from amos.records import Record
    from amos.records.exchange import Added

app = typer.Typer(
    help="Show, replay, exchange and mend what explorations have recorded.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Why a record does not count here, by its standing.
_WHY = {
    "other machine": "of other machines",
    "other version of the intrinsic": "of other versions of an intrinsic",
    "unknown version": "of an unknown version of an intrinsic",
    "unknown intrinsic": "of an intrinsic that is not registered here",
}

File = Annotated[Path, typer.Argument(metavar="FILE", help="Written by explore --records.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="Number of the record.")]


@app.command("list")
def list_command(file: File, limit: Limit = None, as_json: AsJson = False) -> None:
    """List records; the newest stands last.

    With --limit N only the newest N are listed.
    """
    records = _all(file)
    _print(records if limit is None else records[max(0, len(records) - limit) :], as_json)


@app.command("show")
def show_command(file: File, number: Number, as_json: AsJson = False) -> None:
    """Show everything that one record holds."""
    from amos.records import Records

    with Records(file, readonly=True) as records:
        shown = _row_values(records.get(number))
    if as_json:
        print_json(shown)
    else:
        for name, value in shown.items():
            print_line(f"{name:18} {value}")


@app.command("best")
def best_command(
    file: File,
    operator: Annotated[
        str | None, typer.Argument(metavar="OPERATOR", help="Only this one, as the table names it.")
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", help="Also of other machines and versions of an intrinsic.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the fastest right candidate of each operator and intrinsic on this machine.

    With OPERATOR those of its intrinsics, and which of them is the fastest.
    """
    from amos.records.exchange import best_records

    best = best_records(_all(file))
    if operator is not None:
        best = _of_operator(best, operator)
    shown = [record for record in best if everywhere or record.counts_here]
    _print(shown, as_json)
    if not as_json and operator is not None and shown:
        _print_fastest(shown)
    if not as_json and (hidden := len(best) - len(shown)):
        kinds = Counter(record.standing for record in best if not record.counts_here)
        why = ", ".join(f"{count} {_WHY[whose]}" for whose, count in kinds.items())
        print_line(f"{hidden} left out ({why}); --all lists them")


@app.command("replay")
def replay_command(
    file: File,
    number: Number,
    repeat: Annotated[int, typer.Option(min=1, help="How many timings.")] = 20,
    intrinsics: IntrinsicFiles = None,
    as_json: AsJson = False,
) -> None:
    """Build the kernel of a record again, compare it with NumPy, and time it.

    An intrinsic that is not registered is the one that --intrinsic describes, or
    the one that the record keeps.
    """
    from amos.explore.replay import replay
    from amos.records import Records

    load_intrinsics(intrinsics)
    with Records(file, readonly=True) as records:
        record = records.get(number)
    if record.is_chain:
        replay_chain(record, repeat, as_json)
        return
    again = replay(record, repeat=repeat)
    if as_json:
        print_json(again.to_dict())
        return
    print_line(f"operator   {again.candidate.mapping.operator}")
    print_line(f"winner     {again.candidate.mapping}")
    print_line(f"schedule   {again.candidate.schedule}")
    print_replay(again)


@app.command("export")
def export_command(
    file: File,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new file; else standard output."),
    ] = None,
) -> None:
    """Write every record as one line of JSON."""
    from amos.records import Records
    from amos.records.exchange import export_lines

    with Records(file, readonly=True) as records:
        if output is None:
            for line in export_lines(records):
                typer.echo(line)
            return
        try:
            with output.open("x", encoding="utf-8") as target:
                target.writelines(f"{line}\n" for line in export_lines(records))
        except FileExistsError:
            raise RecordError(f"{str(output)!r} exists; name a new file") from None
        except OSError as error:
            raise RecordError(f"{str(output)!r}: {error.strerror}") from error


@app.command("import")
def import_command(
    file: File,
    source: Annotated[Path, typer.Argument(metavar="LINES", help="JSON lines; - for stdin.")],
    as_json: AsJson = False,
) -> None:
    """Add records from JSON lines: all of them, or none if one is damaged."""
    from amos.records import Records
    from amos.records.exchange import import_lines

    lines = _lines(source)
    with Records(file) as records:
        _tell(import_lines(records, lines), as_json)


@app.command("merge")
def merge_command(
    file: File,
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Record files.")],
    as_json: AsJson = False,
) -> None:
    """Add the records of other files; what FILE has already stands."""
    from amos.records import Records
    from amos.records.exchange import merge

    with Records(file) as records:
        _tell(merge(records, *sources), as_json)


@app.command("prune")
def prune_command(
    file: File,
    failed: Annotated[bool, typer.Option("--failed", help="Candidates that failed.")] = False,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Of other machines, or versions of an intrinsic.")
    ] = False,
    older: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Older ones.")
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0, help="All but the best N of an operator and machine."
        ),
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the records that any of the criteria names."""
    from amos.records import Records
    from amos.records.exchange import select_prunable

    if not (failed or foreign or older is not None or keep is not None):
        raise RecordError("nothing to prune: give --failed, --foreign, --older-than or --keep")
    if not os.path.isfile(file):
        raise RecordError(f"record file {str(file)!r}: there is no such file")
    with Records(file, readonly=dry) as records:
        there = records.all()
        gone = select_prunable(there, failed=failed, foreign=foreign, older_days=older, keep=keep)
        if not dry:
            records.remove(gone)
    if as_json:
        print_json({"removed": gone, "left": len(there) - len(gone), "dry_run": dry})
    else:
        verb = "would be removed" if dry else "removed"
        print_line(f"{len(gone)} {verb}, {len(there) - len(gone)} left")


@app.command("salvage")
def salvage_command(
    file: File,
    target: Annotated[Path, typer.Argument(metavar="NEW_FILE", help="A file to write them to.")],
    as_json: AsJson = False,
) -> None:
    """Write what can be read of a damaged file to a new one, and say what is lost."""
    from amos.records.salvage import salvage

    salvaged = salvage(file, target)
    if as_json:
        print_json({"salvaged": sorted(salvaged.records), "missing": salvaged.missing})
    else:
        print_line(str(salvaged))


def _of_operator(records: list[Record], name: str) -> list[Record]:
    """Select records of an operator by its name, or by its title in tables."""
    titles = _titles(records)
    # Operators that only expressions or dtypes distinguish share the beginning of their titles.
    chosen = [
        record
        for record in records
        if f"{titles[_identity(record)]}  ".startswith(f"{name}  ")
        or name == record.canonical.get("name")
    ]
    if not chosen:
        raise UnknownNameError("operator", name, set(titles.values()))
    return chosen


def _print_fastest(records: list[Record]) -> None:
    titles = _titles(records)
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault(_identity(record), []).append(record)
    for group in groups.values():
        first, *slower = sorted(group, key=lambda record: record.seconds)
        line = f"fastest    {titles[_identity(first)]}: {first.intrinsic}, record {first.id}, "
        line += f"{first.seconds * 1e6:.4g} us"
        if slower:
            ahead = slower[0].seconds / first.seconds
            line += f", {ahead:.2f} times as fast as {slower[0].intrinsic}"
        print_line(line)


def _all(file: Path) -> list[Record]:
    from amos.records import Records

    with Records(file, readonly=True) as records:
        return records.all()


def _lines(source: Path) -> list[str]:
    if str(source) == "-":
        return sys.stdin.read().splitlines()
    try:
        return source.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise RecordError(f"{str(source)!r}: not a text file") from None
    except OSError as error:
        raise RecordError(f"{str(source)!r}: {error.strerror}") from error


def _tell(added: Added, as_json: bool) -> None:
    if as_json:
        print_json(added)
    else:
        print_line(str(added))


def _row_values(record: Record) -> dict[str, Any]:
    """Return a record's values with its median time and its owner."""
    from amos.records.rows import row_of

    measured = record.measurement
    right = measured is not None and measured.ok
    return {
        "id": record.id,
        **row_of(record),
        "measured_seconds": record.seconds if right else None,
        "noise": measured.noise if measured is not None and right else None,
        "standing": record.standing,
    }


def _print(records: list[Record], as_json: bool) -> None:
    if as_json:
        print_json([_row_values(record) for record in records])
        return
    titles = _titles(records)
    print_table(
        ["id", "operator", "intrinsic", "mapping", "phase", "predicted us", "measured us", "whose"],
        [
            [record.id, titles[_identity(record)], record.intrinsic, record.mapping_name]
            + [record.phase, _predict_seconds(record), _result_of(record), record.standing]
            for record in records
        ],
    )


def _predict_seconds(record: Record) -> float | None:
    """Return predicted microseconds; ``None`` where loops replace the instruction."""
    return None if record.implementation == "generic" else record.predicted * 1e6


def _identity(record: Record) -> tuple[str, str]:
    """Return a key that records of one operator share."""
    return record.operator, str(record.canonical.get("name"))


def _titles(records: list[Record]) -> dict[tuple[str, str], str]:
    """Name each operator; details follow where several have one name.

    Details are dtypes and expressions, each after two spaces as in an operator's text.
    """
    keys_by_title: dict[str, list[tuple[str, str]]] = {}
    # Records of one operator share its title, which takes a while to make.
    for key, record in {_identity(record): record for record in records}.items():
        keys_by_title.setdefault(_operator(record), []).append(key)
    titles = {}
    for title, keys in keys_by_title.items():
        details = {key: _details(key[0]) for key in keys}
        for key, own in details.items():
            distinctive = [x for x in own if any(x not in tokens for tokens in details.values())]
            titles[key] = "  ".join([title, *distinctive])
    return titles


def _details(operator: str) -> list[str]:
    """List extents, the dtype of each tensor, and the expressions of an operator's text."""
    texts = operator.split("  ")[1:]
    split = [
        re.split(r", (?=\w+: )", text[1:-1]) if text.startswith("(") else [text] for text in texts
    ]
    return [each for several in split for each in several]


def _operator(record: Record) -> str:
    from amos.operators import short_name
    from amos.records.canonical import operator_from

    try:
        return short_name(operator_from(record.canonical))
    except RecordError:  # checked only when a kernel is built of it
        return record.operator.partition("  with ")[0]


def _result_of(record: Record) -> object:
    measured = record.measurement
    if measured is None:
        return None
    return measured.seconds * 1e6 if measured.ok else measured.failure
