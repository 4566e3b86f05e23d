"""Rows that fall into few sets of the nearest cache."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.perfmodel import evaluate
from amos.perfmodel.cpu.sets import conflict_bytes
from amos.perfmodel.traffic import CoreNest
from amos.plan import Schedule, Structure, batch_of
from amos.reproduce import fig5
from tests.support.models import VNNI, nest_of

ZEN = fig5.load_stored("fig5_second_cpu").machine_with(None)


def _structure(columns: int) -> Structure:
    """A 3 × 3 convolution whose image has rows of so many times 64 bytes."""
    op = Operator.parse(
        "out[p,q,k] += image[p+r,q+s,c] * weight[k,c,r,s]",
        extents=dict(p=16, q=columns - 2, k=16, c=64, r=3, s=3),
        shapes={"image": (18, columns, 64)},
    )
    space = amos.enumerate_mappings(op, VNNI)
    return Structure(next(m for m in space if m.groups == {"i1": ("k",), "r1": ("c",)}))


def _crowding(columns: int, **values: int | str) -> float:
    """Bytes of a register tile's image beside its own, in one step of the reduction."""
    structure = _structure(columns)
    batch = batch_of(structure, [Schedule.of({"order": "p q", "reduce": "r s r1.tile", **values})])
    nest = CoreNest(nest_of(structure, batch), None, 64)
    image = next(op for op in structure.sources if not op.packed)
    shares = conflict_bytes(image, nest)
    return 0.0 if shares is None else float(shares[-1, 0])


@pytest.mark.parametrize(
    ("columns", "tile", "sets"),
    [
        (64, {"tile.p": 8}, 1),  # all rows a page apart
        (32, {"tile.p": 8}, 2),  # half a page
        (72, {"tile.p": 8}, 8),  # a page and an eighth
        (64, {"tile.q": 31}, 31),  # neighbouring lines
        (64, {"tile.p": 4, "tile.q": 2}, 2),
    ],
)
def test_rows_share_the_sets_that_their_distance_leaves(
    columns: int, tile: dict[str, int], sets: int
) -> None:
    lines = tile.get("tile.p", 1) * tile.get("tile.q", 1)
    assert _crowding(columns, **tile) == pytest.approx(lines * 64 * (64 / sets - 1), rel=1e-5)


def test_an_image_with_rows_a_page_apart_is_read_again() -> None:
    read = []
    for columns in (64, 72):
        structure = _structure(columns)
        values: dict[str, int | str] = {"order": "q p", "reduce": "r s r1.tile", "parallel": 1}
        batch = batch_of(structure, [Schedule.of(values)])
        read.append(evaluate(structure, ZEN, batch).bytes_in["L2"][0] / (columns - 2))
    # Eighteen rows are more than the ways of a set: nothing is left for the next column.
    assert read[0] > 2 * read[1]


def test_what_lies_in_order_takes_all_sets() -> None:
    structure = _structure(64)
    weight = next(op for op in structure.sources if op.packed)
    batch = batch_of(structure, [Schedule.of({"order": "p q", "reduce": "r s r1.tile"})])
    nest = CoreNest(nest_of(structure, batch), None, 64)
    shares = conflict_bytes(weight, nest)
    assert shares is None or np.max(shares[0]) <= 0
