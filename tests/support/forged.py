"""Rows of records whose digests fit whatever they hold: anybody can compute one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from amos.records.canonical import digest
from amos.records.record import Run
from amos.records.rows import COLUMNS, ENCODED

__all__ = ["encoded", "sealed"]


def sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the keys that its values call for."""
    values = {name: row[name] for name in COLUMNS}
    values["run"] = digest({each.name: values[each.name] for each in fields(Run)})
    return values | {"digest": digest(values)}


def encoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the file holds it."""
    return {name: json.dumps(value) if name in ENCODED else value for name, value in row.items()}
