"""How far a long command is: a line on a terminal, one every few seconds in a pipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from amos._progress import ProgressLine, clock, time_left
from amos.cli.output import print_warning

__all__ = ["counting"]

#: Seconds between two lines where the output is no terminal.
_PAUSE = 10.0


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
    start = last = time.monotonic()
    with ProgressLine() as line:

        def tell(done: int, total: int, name: str) -> None:
            nonlocal last
            passed = time.monotonic()
            rest = clock(time_left(passed - start, done, total)) if 0 < done < total else ""
            text = f"{done} of {total} {what}" + (f", {rest} left" if rest else "")
            if line.shown:
                line.show(f"{text}  {name}")
            elif passed - last > _PAUSE:
                last = passed
                print_warning(text)

        yield tell
