"""A progress line on a terminal or in a notebook, and nowhere else.

Work of minutes shows one. It is rewritten in place, removed at the end, and cleared
(:meth:`ProgressLine.clear`) before other output.
"""

from __future__ import annotations

import shutil
import sys
import time
from html import escape
from typing import Any

from amos._display import Shown

#: Seconds between two updates of the line, so that quick work is not slowed down.
_PAUSE = 0.1


class ProgressLine:
    """A line on standard error if that is a terminal, or below the cell of a notebook.

    Args:
        shown: False to show nothing anywhere.

    Attributes:
        shown: whether the line is visible.
        rich: whether pictures can be shown with it.
    """

    def __init__(self, shown: bool = True) -> None:
        self._display = _notebook_display() if shown else None
        self.rich = self._display is not None
        self.shown = shown and (self.rich or sys.stderr.isatty())
        self._handle: Any = None
        self._text, self._until = "", 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str, *, at_once: bool = True, picture: Shown | None = None) -> None:
        """Replace the line.

        Args:
            text: the new line; on a terminal what does not fit is left out.
            at_once: False for one of very many, which may be left out.
            picture: what a notebook draws below it.
        """
        now = time.monotonic()
        if not self.shown or text == self._text or (now < self._until and not at_once):
            return
        self._until = now + _PAUSE
        self._write(text, picture)

    def clear(self) -> None:
        """Take the line away; the next text brings it back."""
        if self._text:
            self._write("")

    def _write(self, text: str, picture: Shown | None = None) -> None:
        self._text = text
        data = {"text/plain": text}
        if picture is not None:
            data["text/html"] = f"<div>{escape(text)}</div>{picture._repr_html_()}"
        if self._display is None:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()
        elif self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def clock(seconds: float) -> str:
    """Format a time as ``1:05``, or ``2:01:05`` from an hour on."""
    whole = round(max(0.0, seconds))
    minutes, remainder = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def time_left(elapsed: float, done: int, total: int, limit: float | None = None) -> float:
    """Estimate the seconds until all is done at the pace so far, or until the limit."""
    remaining = elapsed / done * (total - done)
    return remaining if limit is None else min(remaining, limit - elapsed)


def _notebook_display() -> Any:
    """Return a function that shows an object below the running cell of a notebook."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    return display
