"""Every error a user can cause: one subclass of :class:`AmosError` a kind.

A message names the object, what was expected and what was found, in one or two
lines, so that the command line can print it as it is.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

#: Characters of a value that a message repeats, and of a line of a message.
_SHOWN, _LINE = 80, 2000
#: Characters that are shown of a text with a caret.
_WINDOW = 160


def quote(value: object) -> str:
    """Format a value for a message: one line, however large or deep it is.

    >>> quote("a" * 1000)[-30:]
    'aaaaaaaaaa… (1,002 characters)'
    """
    try:
        text = repr(value).replace("\n", " ")
    except (ValueError, RecursionError):  # thousands of digits, thousands of brackets
        size = f" of {value.bit_length():,} bits" if isinstance(value, int) else " nested too deep"
        return f"{type(value).__name__}{size}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def check_path(what: str, value: object, error: type[AmosError]) -> Path:
    """Convert the value of a path argument to a path.

    Raises:
        AmosError: it is not; of the class ``error``.
    """
    if not isinstance(value, str | os.PathLike) or "\0" in str(value):
        raise error(f"{what}: expected a path, got {quote(value)}")
    return Path(value)


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return text that suggests the nearest valid name; empty without one.

    >>> suggestion("strid", ["stride", "padding"])
    "; did you mean 'stride'?"
    """
    near = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


class AmosError(Exception):
    """Base of every error that a user of AMOS can cause.

    Of a line of the message that is thousands of characters long, the beginning is kept:
    what a user wrote is repeated in messages, and may be that long.
    """

    def __init__(self, message: str = "") -> None:
        lines = message.split("\n")
        super().__init__("\n".join(n if len(n) <= _LINE else f"{n[:_LINE]}…" for n in lines))


class ParseError(AmosError):
    """A text could not be read; the message shows the text around the column, with a caret.

    Args:
        message: what was expected and what was found.
        text: the whole text that was being read (one line).
        column: zero-based column of the first offending character.
    """

    def __init__(self, message: str, text: str, column: int) -> None:
        self.text, self.column = text, column
        line = text.replace("\n", " ")
        start = max(0, min(column - _WINDOW // 2, len(line) - _WINDOW))
        if start + _WINDOW < len(line):
            line = f"{line[: start + _WINDOW]}…"
        if start:
            line, column = f"…{line[start:]}", column - start + 1
        super().__init__(f"{message}\n{line}\n{' ' * column}^" if text else message)


class OperatorError(AmosError):
    """An operator is not well formed: extents, bounds, dtypes or indices."""


class IntrinsicError(AmosError):
    """The description of an intrinsic is not well formed."""


class MappingError(AmosError):
    """An operator cannot use an intrinsic, or a matching is not a matching."""


class TaskMappingError(AmosError):
    """A task mapping leaves a task out, does it twice, or is not well formed."""


class MachineError(AmosError):
    """A machine is not well described, or lacks a requested figure."""


class ScheduleError(AmosError):
    """A schedule is outside its space, or does not fit its machine."""


class BuildError(AmosError):
    """A kernel could not be generated or compiled, or was called wrongly."""


class StreamError(AmosError):
    """A stream of instructions is not sound: a hazard, a hang, a bad address."""


class MeasureError(AmosError):
    """Measuring could not start or gave nothing that could be used."""


class NetworkError(AmosError):
    """A model cannot be read, or a network was called wrongly."""


class ExploreError(AmosError):
    """An exploration cannot do what was requested."""


class ExportError(AmosError):
    """A kernel cannot be written in the requested format or place."""


class RecordError(AmosError):
    """A record file cannot be read or written."""


class ServeError(AmosError):
    """The explorer's page cannot be served as asked."""


class ToolchainError(AmosError):
    """TVM's packages do not work together, or kernels cannot be linked and loaded."""


class UnknownNameError(AmosError, KeyError):
    """A name that is not registered; the message suggests the nearest ones.

    Args:
        kind: what was looked up, for example ``"intrinsic"``.
        name: what the user wrote.
        registered: every registered name.
    """

    def __init__(self, kind: str, name: str, registered: Iterable[str]) -> None:
        if not isinstance(name, str):
            name = quote(name)
        self.kind, self.name, self.registered = kind, name, sorted(registered)
        near = [each for each in self.registered if name and each.startswith(name)][:3]
        near = near or difflib.get_close_matches(name, self.registered, n=3, cutoff=0.4)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        else:
            some = ", ".join(self.registered[:8]) + (", …" if len(self.registered) > 8 else "")
            hint = f"known are {some}" if some else "none is registered"
        self.message = f"unknown {kind} {quote(name)}: {hint}"
        super().__init__(self.message)

    def __str__(self) -> str:
        # KeyError would print the representation of the message.
        return self.message
