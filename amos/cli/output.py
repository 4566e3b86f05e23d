"""Output of commands: JSON, plain lines, tables, and progress."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from amos._progress import ProgressLine, clock, time_left
from amos.cli.tables import output_width, table_lines, wrap_text
from amos.errors import AmosError

if TYPE_CHECKING:
    from amos.chains import ChainReplay
    from amos.explore.replay import Replay
    from amos.records import Measurement

#: Seconds between two progress lines where the output is no terminal.
_PAUSE = 10.0


def milliseconds(seconds: float | None) -> float | None:
    """Convert seconds for a table; ``None`` if there are none, or infinitely many."""
    return None if seconds is None or math.isinf(seconds) else seconds * 1e3


def percent(share: float | None) -> str | None:
    """Format a share for a table; ``None`` stays."""
    return None if share is None else f"{share:.1%}"


def print_json(value: object) -> None:
    """Print one JSON document; dataclasses become objects, NumPy scalars numbers."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def write_rows(rows: Iterable[object], path: Path | None) -> None:
    """Write dataclasses or dictionaries as a CSV file, if there is one to write.

    A dictionary has a column for each entry, ``counts.paper``; a list is one text.

    Raises:
        AmosError: the file cannot be written.
    """
    if path is None:
        return
    import pandas as pd

    frame = pd.json_normalize(json.loads(json.dumps(list(rows), default=_plain)))
    try:
        frame.to_csv(path, index=False)
    except OSError as error:
        raise AmosError(f"--csv {str(path)!r}: {error.strerror or error}") from error


def write_data(rows: Sequence[object], path: Path | None, as_json: bool) -> bool:
    """Write rows as CSV and JSON if requested; return whether JSON was printed."""
    write_rows(rows, path)
    if as_json:
        print_json(rows)
    return as_json


def print_line(text: str = "") -> None:
    """Print text as it is; on a terminal, lines that are too long are broken at blanks."""
    for line in text.split("\n"):
        width = output_width() if sys.stdout.isatty() else len(line)
        for piece in [line] if len(line) <= width else _wrap_indented(line, width):
            typer.echo(piece)


def print_checked(measurement: Measurement) -> None:
    """Print the reference of a kernel, and its largest difference."""
    print_line(
        f"checked    {measurement.verified_elements:,} elements against NumPy, "
        f"largest difference {measurement.max_difference:g}"
    )


def print_replay(again: Replay | ChainReplay) -> None:
    """Print how a recorded kernel was checked, its times then and now, and why they may differ."""
    print_checked(again.measurement)
    if again.recorded_seconds is not None:
        print_line(f"recorded   {again.recorded_seconds * 1e3:.4f} ms")
    noise = f"± {again.measurement.noise:.1%}"
    print_line(f"measured   {again.measurement.seconds * 1e3:.4f} ms {noise}")
    for note in again.notes:
        print_line(f"note       {note}")


def print_warning(text: str) -> None:
    """Print a message of a line or two on standard error."""
    typer.echo(f"amos: {text}", err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table as wide as the terminal; columns of numbers are set to the right."""
    listed = [list(row) for row in rows]
    right = [
        bool(listed) and all(row[n] is None or isinstance(row[n], Real) for row in listed)
        for n in range(len(columns))
    ]
    texts = [list(map(_cell, row)) for row in listed]
    width = output_width()
    for line in wrap_text(title, width) if title else ():
        typer.echo(line)
    for line in ("", *table_lines(columns, texts, right, width), ""):
        typer.echo(line)


@contextlib.contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """Show a count that overwrites itself on a terminal, or a line every few seconds in a pipe.

    Args:
        what: noun and participle of the pieces: ``"kernels written"``.
        quiet: show nothing, as when the output is JSON.
    """
    if quiet:
        yield None
        return
    start = last = time.monotonic()
    with ProgressLine() as line:

        def tell(done: int, total: int, name: str) -> None:
            nonlocal last
            passed = time.monotonic()
            remaining = clock(time_left(passed - start, done, total)) if 0 < done < total else ""
            text = f"{done} of {total} {what}" + (f", {remaining} left" if remaining else "")
            if line.shown:
                line.show(f"{text}  {name}")
            elif passed - last > _PAUSE:
                last = passed
                print_warning(text)

        yield tell


def _wrap_indented(line: str, width: int) -> list[str]:
    """Wrap a line at words; further lines are indented like the text after its label."""
    label = re.match(r"\s*(- |\S+\s{2,})?", line)
    indent = label.end() if label is not None and label.end() <= width // 3 else 0
    first, body = line[:indent], wrap_text(line[indent:], width - indent)
    return [(first if n == 0 else " " * indent) + piece for n, piece in enumerate(body)]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return str(value)


def _number(value: float) -> str:
    """Format with four digits, and all before the point: ``13364``, not ``1.336e+04``."""
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


@contextlib.contextmanager
def notes_of_an_interrupt() -> Iterator[None]:
    """Tell the result so far on Ctrl-C, and how to resume."""
    try:
        yield
    except KeyboardInterrupt as stop:
        for note in getattr(stop, "__notes__", ()):
            print_warning(note)
        raise
