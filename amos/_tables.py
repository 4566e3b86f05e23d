"""Objects from plain values, as TOML and JSON have them: kinds are those of annotations.

A class or function is written as a table of its arguments, a tuple as a list. Every key is one
of the arguments, and every message names the file, the line where it can be told, the key, what
was expected and what was found.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from amos.errors import AmosError, quote

Thing = TypeVar("Thing")

#: Characters of a description.
_TEXT = 200_000
_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "truth values"),
    str: ("a text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
}


class _ProblemsNotedError(AmosError):
    """A table has problems that are noted already."""


class TableReader:
    """Makes objects of plain values.

    Args:
        file: what to call the values in messages.
        text: their TOML, for the numbers of lines; empty if they come from elsewhere.
        error: raised for whatever is wrong.

    Attributes:
        special: functions that create objects of a class from a value and its key, where the
            class is written in another way.
        problems: messages of :meth:`check`, which continues after a problem; ``None`` while
            the first one ends reading.
    """

    def __init__(self, file: str, text: str, error: type[AmosError]) -> None:
        self.file, self.text, self.error = file, text, error
        self.special: dict[Any, Callable[[Any, str], Any]] = {}
        self.problems: list[str] | None = None

    def check(self, read: Callable[[], Thing]) -> tuple[str, ...]:
        """Return a message for each problem, rather than raise the first one."""
        self.problems = []
        self._attempt(read)
        problems, self.problems = self.problems, None
        return tuple(dict.fromkeys(problems))

    def _attempt(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Read a value; while problems are collected, note why it cannot be read."""
        if self.problems is None:
            return read(*arguments)
        try:
            return read(*arguments)
        except _ProblemsNotedError:
            return None
        except self.error as error:
            self.problems.append(str(error))
            return None

    def fail(self, key: str, message: str) -> NoReturn:
        """Refuse the value of a key, ``memory[1].layout`` for one inside of others."""
        line = self._line(key)
        where = f"{self.file}:{line}" if line else self.file
        raise self.error(f"{where}: {key}: {message}" if key else f"{where}: {message}")

    def toml(self) -> dict[str, Any]:
        """Parse the text into tables."""
        if len(self.text) > _TEXT:
            raise self.error(f"{self.file}: expected at most {_TEXT} characters, got more")
        try:
            return tomllib.loads(self.text)
        except RecursionError:
            raise self.error(f"{self.file}: expected TOML, found too many levels") from None
        except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
            number = re.search(r"at line (\d+)", str(error))
            where = f":{number.group(1)}" if number else ""
            raise self.error(f"{self.file}{where}: expected TOML, found: {error}") from None

    def read(self, kind: Any, value: Any, key: str) -> Any:
        """Convert the value of a key to an object of a kind, which is any annotation."""
        if kind in self.special:
            return self.special[kind](value, key)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return self.read(next(k for k in arguments if k is not NoneType), value, key)
        if origin is tuple or origin is Sequence:
            if not isinstance(value, list | tuple):
                self.fail(key, f"expected a list of {_many(arguments[0])}, found {quote(value)}")
            return tuple(
                self._attempt(self.read, arguments[0], v, f"{key}[{n}]")
                for n, v in enumerate(value)
            )
        if origin is Mapping:
            self.table(value, key)
            return {
                name: self._attempt(self.read, arguments[1], v, f"{key}.{name}")
                for name, v in value.items()
            }
        kind = str if origin is Literal else kind
        if kind not in _WORDS:
            return self.call(kind, value, key)
        # In Python a truth value is a whole number, and a whole number is no float.
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            self.fail(key, f"expected {_WORDS[kind][0]}, found {quote(value)}")
        return value

    def table(self, value: Any, key: str) -> None:
        """Refuse a value that is no table."""
        if not isinstance(value, dict):
            self.fail(key, f"expected a table, found {quote(value)}")

    def call(
        self,
        kind: Callable[..., Thing],
        table: Any,
        key: str,
        /,
        needed: Sequence[str] = (),
        **more: Any,
    ) -> Thing:
        """Call a class or function with a table of its arguments.

        Args:
            needed: arguments that the table has to have though they have defaults.
            more: arguments that are not in the table.
        """
        self.table(table, key)
        parameters, hints = _arguments(kind)
        accepted = {name: each for name, each in parameters.items() if name not in more}
        problems = len(self.problems or ())
        for name in table:
            self._attempt(self.check_name, name, accepted, key)
        for name, parameter in accepted.items():
            if name not in table and (parameter.default is parameter.empty or name in needed):
                self._attempt(self.fail, _join(key, name), "expected this key, found none")
        values = {
            name: self._attempt(self.read, hints[name], value, _join(key, name))
            for name, value in table.items()
            if name in accepted
        }
        if len(self.problems or ()) > problems:
            raise _ProblemsNotedError
        try:
            return kind(**values, **more)
        except AmosError as error:
            self.refuse(key, str(error))

    def check_name(self, name: str, names: Sequence[str] | Mapping[str, Any], key: str) -> None:
        """Refuse a name in a table that is none of those it may have."""
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            expected = f"expected one of {', '.join(names)}"
            self.fail(_join(key, name), f"{expected}; found {quote(name)}{hint}")

    def refuse(self, key: str, message: str) -> NoReturn:
        """Report why the values of a table are inconsistent."""
        self.fail(key, message)

    def _line(self, key: str) -> int:
        """Find the line of a key, its table or its header; 0 if none is found."""
        owner, _, last = key.rpartition(".")
        numbered = re.search(r"\[(\d+)\]$", key)
        before = int(numbered.group(1)) if numbered else 0
        table, last = (re.sub(r"\[\d+\]", "", each) for each in (owner, last))
        start = self._line(owner) if owner else 1
        path = [re.escape(piece) for piece in (*table.split("."), last) if piece]
        header = re.compile(r"\s*\[+\s*" + r"\s*\.\s*".join(path) + r"\s*\]")
        inline = re.compile((r".*\b" if table else r"\s*") + re.escape(last) + r"\s*[=.]")
        lines = list(enumerate(self.text.splitlines(), 1))
        headers = [number for number, content in lines if header.match(content)]
        if headers:  # an entry of an array of tables has one of its own
            return headers[min(before, len(headers) - 1)]
        own = lines[start - 1 :] if start else []
        if own and own[0][1].lstrip().startswith("["):
            own = [own[0], *takewhile(lambda x: not x[1].lstrip().startswith("["), own[1:])]
        for number, content in own:
            if inline.match(content):
                return number
        return start if table else 0


@lru_cache(maxsize=64)
def _arguments(
    kind: Callable[..., Any],
) -> tuple[Mapping[str, inspect.Parameter], Mapping[str, Any]]:
    """Return the parameters of a callable, and their annotations."""
    return inspect.signature(kind).parameters, get_type_hints(kind)


def _many(kind: Any) -> str:
    if get_origin(kind) is UnionType:
        return " or ".join(map(_many, get_args(kind)))
    return _WORDS[kind][1] if kind in _WORDS else "tables"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
