"""Intrinsics written in TOML: the same parts as ``Intrinsic.define``, and strict.

Every key is one that is listed here, and every message names the file, the line
where it can be told, the key, what was expected and what was found.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from amos.errors import AmosError, IntrinsicError, shown
from amos.intrinsics.arithmetic import Arithmetic, ShapeFamily, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import KINDS, Implementation
from amos.intrinsics.memory import FragmentLayout, Memory

__all__ = ["from_toml", "read", "read_values"]

_NEEDED = ("name", "family", "source", "compute", "extents", "dtypes", "memory")
_TEXTS = ("name", "family", "source", "compute", "description")
_TABLES = ("extents", "dtypes", "arithmetic", "shapes", "implementation")
_KEYS = (*_NEEDED, "description", "requires", "registers", "timing", *_TABLES[2:])
_MEMORY = (
    "statement", "broadcast", "capacity", "alignment", "explicit", "write_interval", "layout",
    "vectors",
)  # fmt: skip
#: Characters of a description with its implementations.
_TEXT = 200_000
_SOURCE = (
    "source", "machine", "requires", "flags", "headers", "architectures", "partial", "instruction",
)  # fmt: skip


def from_toml(source: str | Path) -> Intrinsic:
    """The intrinsic that a TOML text or file describes; nothing is registered.

    Args:
        source: a path, or the text itself (a string with an ``=`` in it).

    Raises:
        IntrinsicError: see :func:`read`.
    """
    intrinsic = read(source)[0]
    assert isinstance(intrinsic, Intrinsic)
    return intrinsic


def read(source: str | Path) -> tuple[Intrinsic | Implementation, ...]:
    """What a TOML text or file describes: the intrinsic, then its implementations.

    Raises:
        IntrinsicError: the file cannot be read, is no TOML, has a key that is
            unknown or lacks one, or describes no well formed intrinsic.
    """
    if isinstance(source, str) and "=" in source:
        return _Reader("<text>", source).read()
    path = Path(source)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_TEXT + 1)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IntrinsicError(f"{source}: expected a readable TOML file, found: {reason}") from None
    return _Reader(str(path), text).read()


def read_values(values: Mapping[str, Any], where: str) -> tuple[Intrinsic | Implementation, ...]:
    """What plain values with the keys of a TOML file describe; see :func:`read`.

    Args:
        values: for example what :func:`amos.intrinsics.values_of` has made.
        where: what to call them in messages.

    Raises:
        IntrinsicError: see :func:`read`.
    """
    return _Reader(where, "").described(values)


@dataclass
class _Reader:
    file: str
    text: str

    def fail(self, key: str, message: str) -> NoReturn:
        raise IntrinsicError(f"{self.file}{self.line(key)}: {key}: {message}")

    def line(self, key: str) -> str:
        """Line on which a key or the header of its table stands, if it can be found."""
        *tables, last = [re.escape(part) for part in key.split(".")]
        lines = self.text.splitlines()
        header = re.compile(r"\s*\[+\s*" + r"\s*\.\s*".join([*tables, last]) + r"\s*\]")
        inline = re.compile(rf"\s*{last}\s*[=.]" if not tables else rf".*\b{last}\s*[=.]")
        for pattern in (header, inline):
            for number, content in enumerate(lines, 1):
                if pattern.match(content):
                    return f":{number}"
        return self.line(key.rpartition(".")[0]) if tables else ""

    def read(self) -> tuple[Intrinsic | Implementation, ...]:
        if len(self.text) > _TEXT:
            raise IntrinsicError(f"{self.file}: expected at most {_TEXT} characters, got more")
        try:
            data = tomllib.loads(self.text)
        except RecursionError:
            raise IntrinsicError(f"{self.file}: expected TOML, found too many levels") from None
        except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
            number = re.search(r"at line (\d+)", str(error))
            where = f":{number.group(1)}" if number else ""
            raise IntrinsicError(f"{self.file}{where}: expected TOML, found: {error}") from None
        return self.described(data)

    def described(self, data: Mapping[str, Any]) -> tuple[Intrinsic | Implementation, ...]:
        self.keys("", data, _KEYS)
        for key in _NEEDED:
            if key not in data:
                raise IntrinsicError(f"{self.file}: {key}: expected this key, found none")
        for key in _TEXTS:
            self.typed(key, data.get(key, ""), str, "a text")
        for key in _TABLES:
            self.typed(key, data.get(key, {}), dict, "a table")
        intrinsic = self.attempt("", lambda: self.intrinsic(data))
        return intrinsic, *self.implementations(intrinsic, data.get("implementation", {}))

    def intrinsic(self, data: Mapping[str, Any]) -> Intrinsic:
        return Intrinsic.define(
            data["name"],
            data["compute"],
            data["extents"],
            data["dtypes"],
            self.memory(data["memory"]),
            family=data["family"],
            source=data["source"],
            description=data.get("description", ""),
            requires=self.texts("requires", data.get("requires", [])),
            registers=self.typed("registers", data.get("registers", 0), int, "a whole number"),
            arithmetic=self.made("arithmetic", data, Arithmetic),
            shapes=self.made("shapes", data, ShapeFamily),
            timing=self.timings(data.get("timing", [])),
        )

    def timings(self, given: Any) -> list[Timing]:
        """One table, or one for each machine."""
        tables = [given] if isinstance(given, dict) else given
        for table in self.typed("timing", tables, list, "a table, or a list of them"):
            self.typed("timing", table, dict, "a table, or a list of them")
        return [self.made("timing", {"timing": table}, Timing) for table in tables]

    def made(self, key: str, data: Mapping[str, Any], kind: Callable[..., Any]) -> Any:
        """One of the small tables whose keys are the attributes of a class."""
        if key not in data:
            return None
        fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
        self.keys(key, data[key], tuple(fields))
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data[key].items()}
        try:
            return kind(**values)
        except TypeError as error:
            self.fail(key, f"expected {', '.join(fields)}, found: {error}")
        except AmosError as error:
            self.fail(key, str(error))

    def memory(self, given: Any) -> list[Memory]:
        made = []
        for item in self.typed("memory", given, list, "a list of statements"):
            table = {"statement": item} if isinstance(item, str) else item
            self.typed("memory", table, dict, "a statement or a table with one")
            self.keys("memory", table, _MEMORY)
            if "statement" not in table:
                self.fail("memory", "statement: expected this key, found none")
            extra = {key: value for key, value in table.items() if key != "statement"}
            if "broadcast" in extra:
                extra["broadcast"] = self.texts("memory.broadcast", extra["broadcast"])
            if "vectors" in extra:
                widths = self.typed("memory.vectors", extra["vectors"], list, "a list of bytes")
                extra["vectors"] = tuple(widths)
            if "layout" in extra:
                extra["layout"] = self.layout(extra["layout"])
            if not isinstance(extra.get("explicit", True), bool):
                self.fail("memory.explicit", f"expected true or false, found {extra['explicit']!r}")
            try:
                made.append(Memory.parse(table["statement"], **extra))
            except AmosError as error:
                self.fail("memory", str(error))
        return made

    def layout(self, given: Any) -> FragmentLayout:
        self.typed("memory.layout", given, dict, "a table")
        where = {k: v for k, v in given.items() if k not in ("lanes", "elements")}
        if not all(isinstance(v, str) for v in where.values()):
            self.fail("memory.layout", f"expected a formula for each index, found {shown(where)}")
        try:
            return FragmentLayout(
                given.get("lanes", 0), given.get("elements", 0), tuple(where.items())
            )
        except AmosError as error:
            self.fail("memory.layout", str(error))

    def implementations(self, intrinsic: Intrinsic, given: Any) -> list[Implementation]:
        self.keys("implementation", given, tuple(KINDS))
        made = []
        for kind, part in given.items():
            key = f"implementation.{kind}"
            table = {"source": part} if isinstance(part, str) else part
            self.typed(key, table, dict, "source text or a table with it")
            self.keys(key, table, _SOURCE)
            for name in ("source", "machine", "headers", "instruction"):
                self.typed(f"{key}.{name}", table.get(name, ""), str, "a text")
            lists = {
                name: self.texts(f"{key}.{name}", table.get(name, []))
                for name in ("requires", "flags", "architectures")
            }
            try:
                made.append(
                    Implementation(
                        intrinsic.name,
                        kind,
                        table.get("source", ""),
                        table.get("machine", ""),
                        lists["requires"],
                        lists["flags"],
                        table.get("headers", ""),
                        lists["architectures"],
                        self.typed(f"{key}.partial", table.get("partial", 1), int, "a number"),
                        table.get("instruction", ""),
                    )
                )
            except AmosError as error:
                self.fail(key, str(error))
        return made

    def attempt(self, key: str, make: Callable[[], Intrinsic]) -> Intrinsic:
        """Make the intrinsic; a message about one of its keys gets that key's line."""
        try:
            return make()
        except AmosError as error:
            message = str(error)
            if message.startswith(self.file):
                raise
            key = _blame(message)
            where = f"{self.line(key)}: {key}" if key else ""
            raise IntrinsicError(f"{self.file}{where}: {message}") from None

    def keys(self, where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                full = f"{where}.{key}" if where else key
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                self.fail(full, f"expected one of {', '.join(known)}; found {shown(key)}{hint}")

    def typed(self, key: str, value: Any, kind: type, what: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(key, f"expected {what}, found {shown(value)}")
        return value

    def texts(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.fail(key, f"expected a list of texts, found {shown(value)}")
        return tuple(value)


#: What a message of the description speaks of, and the key that it comes from.
_BLAMED = (
    ("extent", "extents"),
    ("dtype", "dtypes"),
    ("memory", "memory"),
    ("layout", "memory"),
    ("arithmetic", "arithmetic"),
    ("shapes", "shapes"),
    ("timing", "timing"),
    ("registers", "registers"),
    ("name:", "name"),
    ("family:", "family"),
    ("source:", "source"),
)


def _blame(message: str) -> str:
    found = [(message.find(text), key) for text, key in _BLAMED if text in message]
    return min(found)[1] if found else "compute"
