"""Keywords of an exploration, written flat, and the keys of its result."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from amos.explore import MeasureOptions, SearchOptions

#: Keys of a result as plain values.
CONTRACT = {
    "operator", "intrinsic", "mapping", "schedule", "predicted_seconds", "measured_seconds",
    "tops", "peak_fraction", "verified_elements", "max_difference",
}  # fmt: skip


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Keywords of :func:`amos.explore`, those of its two groups put into them."""
    plain = dict(options)
    for keyword, group in (("search", SearchOptions), ("measure", MeasureOptions)):
        names = {field.name for field in fields(group)} & plain.keys()
        plain[keyword] = group(**{name: plain.pop(name) for name in names})
    return plain
