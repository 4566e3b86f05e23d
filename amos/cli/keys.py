"""The keys of a description file, from the signatures and docstrings that read it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from amos.cli.output import print_json, print_table

#: Further indentation of the lines of a section of a docstring.
_ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", re.M)
_SECTION = re.compile(r"^(?:Attributes|Args):\n((?: {4}.*\n?|\n)+)", re.M)


@dataclass(frozen=True)
class Key:
    """A key of a table.

    Attributes:
        table: the header that it stands below; empty for the top of a file.
        kind: of its value, in words.
        default: its value where it is left out; ``None`` where it must not be.
        meaning: from the docstring.
    """

    table: str
    name: str
    kind: str
    default: str | None
    meaning: str


def keys_of(
    table: str, reader: Callable[..., Any], *documented: Any, without: tuple[str, ...] = ()
) -> list[Key]:
    """List the keys that a class or function reads from a table.

    Args:
        table: header of the table.
        reader: called with the keys as arguments.
        documented: objects whose docstrings say what the keys mean, where it is not the reader.
        without: arguments that the file says otherwise.
    """
    meanings: dict[str, str] = {}
    for item in (reader, *documented):
        meanings |= _meanings(item)
    hints = get_type_hints(reader)
    return [
        Key(table, name, _words(hints[name]), _default(parameter), meanings.get(name, ""))
        for name, parameter in inspect.signature(reader).parameters.items()
        if name not in without
    ]


def _meanings(documented: Any) -> dict[str, str]:
    text = inspect.getdoc(documented) or ""
    meanings: dict[str, str] = {}
    for section in _SECTION.findall(text):
        for names, meaning in _ENTRY.findall(section):
            plain = re.sub(r":\w+:`(?:~|amos\.)?([^`]+)`", r"`\1`", " ".join(meaning.split()))
            meanings |= dict.fromkeys(re.split(r",\s*", names), plain.replace("``", "`"))
    return meanings


def _default(parameter: inspect.Parameter) -> str | None:
    if parameter.default in (parameter.empty, MISSING):
        return None
    return "" if parameter.default in (None, "", ()) else _plain(parameter.default)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | str) else ""


#: Kinds of values as TOML calls them.
_KINDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
}


def _words(kind: Any) -> str:
    origin, arguments = get_origin(kind), [x for x in get_args(kind) if x is not type(None)]
    if origin in (Union, UnionType):
        return _words(arguments[0])
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is not None and issubclass(origin, Sequence):
        return f"list: {_words(arguments[0])}"
    return _KINDS.get(kind, "table")


def machine_keys() -> list[Key]:
    """List the keys of machine files."""
    from amos.machine import Costs, Level, Machine, Peak, catalogue
    from amos.machine.gpu_costs import GpuCosts
    from amos.machine.stream_unit import StreamUnit

    meanings = {"level": "memory levels, from inside out", "peak": "rates of intrinsics"}
    top = [
        replace(key, meaning=meanings.get(key.name, key.meaning))
        for key in keys_of("", catalogue.described_machine, Machine)
    ]
    tables = {"level": Level, "peak.NAME": Peak, "stream": StreamUnit, "costs": Costs}
    rows = [
        replace(key, default="as read_bandwidth") if key.name == "write_bandwidth" else key
        for name, kind in tables.items()
        for key in keys_of(name, kind)
    ]
    return top + rows + keys_of("gpu", GpuCosts)


def intrinsic_keys() -> list[Key]:
    """List the keys of intrinsic files."""
    from amos.intrinsics import Arithmetic, Implementation, Intrinsic, Memory, Timing
    from amos.intrinsics.arithmetic import ShapeFamily
    from amos.intrinsics.toml_file import STATED

    stated = Key(
        "memory", "statement", "text", None, "what is moved: `reg.A[i] = memory.A[addr + i]`"
    )
    return [
        *keys_of("", Intrinsic.define, Intrinsic),
        stated,
        *keys_of("memory", Memory, without=(*STATED, "layout")),
        *keys_of("timing", Timing),
        *keys_of("arithmetic", Arithmetic),
        *keys_of("shapes", ShapeFamily),
        *keys_of("implementation.KIND", Implementation, without=("intrinsic", "kind")),
    ]


def print_keys(rows: Sequence[Key], as_json: bool) -> None:
    """Print keys as a table."""
    if as_json:
        print_json(rows)
        return
    print_table(
        ["table", "key", "value", "default", "meaning"],
        [
            [row.table, row.name, row.kind, "needed" if row.default is None else row.default]
            + [row.meaning]
            for row in rows
        ],
    )
