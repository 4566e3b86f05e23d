"""An intrinsic and its implementations as plain values: the keys of its TOML form.

Whoever keeps them, as a record does, has the intrinsic again without its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Any

from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory

__all__ = ["values_of"]

#: Attributes of a memory statement that the statement itself says.
_STATED = ("operand", "direction", "scope", "indices", "address", "strides", "register_scope")


def values_of(intrinsic: Intrinsic, sources: Iterable[Implementation] = ()) -> dict[str, Any]:
    """What :func:`amos.intrinsics.read_values` makes the same objects of.

    Args:
        intrinsic: the description.
        sources: its implementations.
    """
    values: dict[str, Any] = {
        "name": intrinsic.name,
        "family": intrinsic.family,
        "source": intrinsic.source,
        "description": intrinsic.description,
        "compute": str(intrinsic.compute),
        "extents": dict(intrinsic.extents),
        "dtypes": {load.tensor.name: load.tensor.dtype for load in intrinsic.operands},
        "memory": [_memory(statement) for statement in intrinsic.memory],
        "requires": list(intrinsic.requires),
        "registers": intrinsic.registers,
        "arithmetic": asdict(intrinsic.arithmetic),
        "timing": [
            {key: value for key, value in asdict(timing).items() if value is not None}
            for timing in intrinsic.timing
        ],
        "implementation": {source.kind: _implementation(source) for source in sources},
    }
    if intrinsic.shapes is not None:
        shapes = asdict(intrinsic.shapes)
        values["shapes"] = {k: v if k == "where" else list(v) for k, v in shapes.items()}
    return values


def _memory(statement: Memory) -> dict[str, Any]:
    values = {"statement": str(replace(statement, broadcast=()))} | _changed(statement, _STATED)
    if statement.layout is not None:
        layout = statement.layout
        values["layout"] = {"lanes": layout.lanes, "elements": layout.elements} | dict(layout.where)
    return values


def _implementation(source: Implementation) -> dict[str, Any]:
    return {"source": source.source} | _changed(source, ("intrinsic", "kind", "source"))


def _changed(described: Any, without: tuple[str, ...]) -> dict[str, Any]:
    """Attributes that differ from their defaults; tuples as lists."""
    values = {}
    for field in fields(described):
        value = getattr(described, field.name)
        if field.name not in without and value != field.default:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values
