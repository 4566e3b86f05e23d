"""Products of records, and how long other operators take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from amos.errors import AmosError
from amos.explore.choosing import RULE, Chooser, Product
from amos.ir import Chain, Operator
from amos.machine import Machine
from amos.mapping import enumerate_mappings
from amos.network.graph import Node
from amos.network.shapes import count_bytes
from amos.perfmodel import predict
from amos.records import Record, Records
from amos.records.canonical import digest, operator_values
from amos.records.exchange import right_records


def predict_transfer(machine: Machine, read_bytes: int, written_bytes: int) -> float:
    """Predict the seconds to read and write some bytes at the first level that holds all."""
    level = next(
        each
        for each in machine.levels
        if not each.capacity or each.capacity * each.units >= read_bytes + written_bytes
    )
    moved = read_bytes / level.read_bandwidth + written_bytes / level.write_bandwidth
    return machine.launch + moved / level.units


def predict_node(machine: Machine, node: Node) -> float:
    """Predict the seconds of a node as those of moving its operands and its result."""
    return predict_transfer(machine, sum(map(count_bytes, node.operands)), count_bytes(node))


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
