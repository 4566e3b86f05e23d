"""Records of tasks, and the products that they measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from amos.errors import AmosError
from amos.explore.choosing import RULE, Chooser, Product
from amos.ir import Chain, Operator
from amos.mapping import enumerate_mappings
from amos.perfmodel import predict
from amos.records import Record, Records
from amos.records.canonical import digest, operator_values
from amos.records.exchange import right_records


def rank_records(path: str | Path | None) -> dict[str, list[Record]]:
    """Rank the right records of a file by :func:`operator_key`, the fastest first.

    Some may not count here. There are none without a file.
    """
    if path is None:
        return {}
    with Records(path, readonly=True) as store:
        records = right_records(list(store.all()))
    ranked: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seconds):
        ranked.setdefault(_key(record.canonical), []).append(record)
    return ranked


def operator_key(operator: Operator | Chain) -> str:
    """Return the digest of an operator or a chain without its name."""
    return _key(operator_values(operator))


def _key(values: Mapping[str, object]) -> str:
    return digest({**values, "name": ""})


def rebuild_product(record: Record, chooser: Chooser) -> Product | None:
    """Rebuild the product of a record; ``None`` if that is no longer possible."""
    try:
        candidate = record.rebuild()
    except AmosError:
        return None
    unit = candidate.mapping.intrinsic
    prediction = predict(candidate.mapping, chooser.target([unit]), candidate.schedule)
    count = enumerate_mappings(candidate.mapping.operator, unit, RULE, commute=True).count
    return Product(candidate, count, prediction, record.seconds, record.implementation or None)


def find_records(
    operator: Operator, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> Sequence[Record]:
    """Return the records of an operator, the fastest first."""
    return ranked.get(operator_key(chooser.operator(operator)), ()) if ranked else ()
