"""Intrinsics as plain values: the arguments of ``Intrinsic.define``, in TOML or in a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

from amos._tables import TableReader
from amos.errors import IntrinsicError
from amos.intrinsics.arithmetic import Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import KINDS, Implementation
from amos.intrinsics.memory import FragmentLayout, Memory

#: Most characters that are read of a file; a description has fewer.
_MOST = 200_001
#: Attributes of a memory statement that its text or its operand determines.
STATED = (
    "operand", "direction", "scope", "indices", "address", "strides", "register_scope", "fragment",
)  # fmt: skip


def from_toml(source: str | Path) -> Intrinsic:
    """Read the intrinsic that a TOML text or file describes; nothing is registered.

    Args:
        source: a path, or the text itself (a string with an ``=`` in it).
    """
    intrinsic = read(source)[0]
    assert isinstance(intrinsic, Intrinsic)
    return intrinsic


def read(source: str | Path) -> tuple[Intrinsic | Implementation, ...]:
    """Read a TOML text or file: the intrinsic, then its implementations.

    Raises:
        IntrinsicError: the file cannot be read, is no TOML, has a key that is
            unknown or lacks one, or describes no well formed intrinsic.
    """
    if isinstance(source, str) and "=" in source:
        reader = _Reader("<text>", source, IntrinsicError)
        return reader.read_document(reader.toml())
    try:
        with Path(source).open(encoding="utf-8") as file:
            reader = _Reader(str(source), file.read(_MOST), IntrinsicError)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IntrinsicError(f"{source}: expected a readable TOML file, found: {reason}") from None
    return reader.read_document(reader.toml())


def read_values(values: Mapping[str, Any], where: str) -> tuple[Intrinsic | Implementation, ...]:
    """Read plain values with the keys of a TOML file; see :func:`values_of`, :func:`read`."""
    return _Reader(where, "", IntrinsicError).read_document(values)


class _Reader(TableReader):
    def read_document(self, values: Mapping[str, Any]) -> tuple[Intrinsic | Implementation, ...]:
        self.special = {
            Memory: self._memory,
            FragmentLayout: self._layout,
            Sequence[Timing]: self._timing,
        }
        for name in values:
            self.check_name(name, (*signature(Intrinsic.define).parameters, "implementation"), "")
        parts = dict(values)
        sources = parts.pop("implementation", {})
        self.table(sources, "implementation")
        intrinsic = self.call(Intrinsic.define, parts, "")
        return intrinsic, *(self._source(intrinsic, kind, sources[kind]) for kind in sources)

    def _timing(self, value: Any, key: str) -> tuple[Timing, ...]:
        """Read one table, or one for each machine."""
        if isinstance(value, dict):
            return (self.call(Timing, value, key),)
        timings: tuple[Timing, ...] = self.read(tuple[Timing, ...], value, key)
        return timings

    def _memory(self, value: Any, key: str) -> Memory:
        table = {"statement": value} if isinstance(value, str) else value
        self.table(table, key)
        if "statement" not in table:
            self.fail(f"{key}.statement", "expected this key, found none")
        text = self.read(str, table["statement"], f"{key}.statement")
        extra = {name: value for name, value in table.items() if name != "statement"}
        try:
            stated = Memory.parse(text)
        except IntrinsicError as error:
            self.fail(key, str(error))
        return self.call(Memory, extra, key, **{name: getattr(stated, name) for name in STATED})

    def _layout(self, value: Any, key: str) -> FragmentLayout:
        self.table(value, key)
        sizes = {name: value[name] for name in ("lanes", "elements") if name in value}
        where = {name: formula for name, formula in value.items() if name not in sizes}
        formulas = self.read(Mapping[str, str], where, key)
        return self.call(FragmentLayout, sizes, key, where=tuple(formulas.items()))

    def _source(self, intrinsic: Intrinsic, kind: str, value: Any) -> Implementation:
        self.check_name(kind, tuple(KINDS), "implementation")
        table = {"source": value} if isinstance(value, str) else value
        key = f"implementation.{kind}"
        return self.call(Implementation, table, key, intrinsic=intrinsic.name, kind=kind)

    def refuse(self, key: str, message: str) -> NoReturn:
        """Fail with a message, at the line of the key that it concerns."""
        self.fail(key or _blame(message), message)


#: Subjects of the description's messages, and the keys that they concern.
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
    places = [(message.find(text), key) for text, key in _BLAMED if text in message]
    return min(places)[1] if places else "compute"


def values_of(intrinsic: Intrinsic, sources: Iterable[Implementation] = ()) -> dict[str, Any]:
    """Return the values from which :func:`read_values` makes the same objects.

    A record stores them, so that it can rebuild the intrinsic without its file.
    """
    return _changed_values(intrinsic, ("compute", "memory")) | {
        "compute": str(intrinsic.compute),
        "extents": dict(intrinsic.extents),
        "dtypes": {
            load.tensor.name: kind.declared
            for load, kind in zip(intrinsic.operands, intrinsic.kinds, strict=True)
        },
        "memory": [_memory_values(statement) for statement in intrinsic.memory],
        "implementation": {
            each.kind: _changed_values(each, ("intrinsic", "kind")) for each in sources
        },
    }


def _memory_values(statement: Memory) -> dict[str, Any]:
    values = {"statement": statement.statement} | _changed_values(statement, STATED)
    if (layout := statement.layout) is not None:
        values["layout"] = {"lanes": layout.lanes, "elements": layout.elements} | dict(layout.where)
    return values


def _changed_values(described: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the attributes that differ from their defaults."""
    values = {field.name: getattr(described, field.name) for field in fields(described)}
    defaults = {field.name: field.default for field in fields(described)}
    return {
        name: _to_plain(value)
        for name, value in values.items()
        if name not in without and value != defaults[name]
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain(each) for each in value]
    return _changed_values(value) if is_dataclass(value) else value
