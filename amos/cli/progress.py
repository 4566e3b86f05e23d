"""What an exploration shows while it runs: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from amos.cli.output import print_warning

if TYPE_CHECKING:
    from amos.explore import Trial

__all__ = ["clock", "counting", "failures_text", "progress"]

#: Seconds between two lines where the output is no terminal.
_PAUSE = 10.0

Tell = Callable[["Trial", int], None]


@contextlib.contextmanager
def progress(total: int, *, quiet: bool, time_limit: float | None = None) -> Iterator[Tell | None]:
    """A bar with trials, the best so far, failures by kind and the time left.

    Args:
        total: trials asked for.
        quiet: show nothing, as when the output is JSON.
        time_limit: seconds after which the search stops.
    """
    from rich.console import Console

    screen = Console(stderr=True, highlight=False)
    if quiet or not screen.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[best]}"),
        console=screen,
        transient=True,
    )
    start, best, failed = time.monotonic(), float("inf"), Counter[str]()
    with bar:
        task = bar.add_task("", total=total, best="probing the machine", left="")

        def tell(trial: Trial, _: int) -> None:
            nonlocal best
            best = min(best, trial.seconds)
            if trial.measurement is not None and not trial.measurement.ok:
                failed[trial.measurement.failure] += 1
            text = f"best {best * 1e3:.4f} ms"
            text += f", {failures_text(failed)}" if failed else ""
            left = _left(time.monotonic() - start, trial.number + 1, total, time_limit)
            bar.update(task, advance=1, best=text, left=f"{clock(left)} left")

        yield tell


@contextlib.contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """How many of the pieces of a long work are done, and which one comes next.

    A line that is written over on a terminal, a line every few seconds in a pipe.

    Args:
        what: what has become of them: ``"kernels written"``.
        quiet: show nothing, as when the output is JSON.
    """
    if quiet:
        yield None
        return
    from rich.console import Console

    screen = Console(stderr=True, highlight=False)
    start = last = time.monotonic()
    with screen.status("") if screen.is_terminal else contextlib.nullcontext() as line:

        def tell(done: int, total: int, name: str) -> None:
            nonlocal last
            passed = time.monotonic()
            left = f", {clock(_left(passed - start, done, total, None))} left" if done else ""
            text = f"{done} of {total} {what}{left if done < total else ''}"
            if line is not None:
                line.update(f"{text}  {name}")
            elif passed - last > _PAUSE:
                last = passed
                print_warning(text)

        yield tell


def failures_text(failed: dict[str, int]) -> str:
    """``3 failed (2 timeout, 1 crash)``."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(failed.items(), key=lambda x: -x[1]))
    return f"{sum(failed.values())} failed ({kinds})"


def clock(seconds: float) -> str:
    """``1:05``, or ``2:01:05`` from an hour on."""
    whole = round(max(0.0, seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _left(elapsed: float, done: int, total: int, time_limit: float | None) -> float:
    """Seconds until every trial is made at the pace so far, or until the limit."""
    left = elapsed / done * (total - done)
    return left if time_limit is None else min(left, time_limit - elapsed)
