"""Lines of the output that come too late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos import operators
from amos.machine import Machine
from amos.perfmodel import evaluate
from amos.perfmodel.cpu.stores import unforeseen
from amos.perfmodel.traffic import CoreNest
from amos.plan import Structure
from amos.plan.structure import LoopBatch
from amos.reproduce import fig5
from tests.support.models import nest_of


def machine() -> Machine:
    return fig5.stored("fig5_second_cpu").machine_with(None)


def convolution(size: int = 112) -> Structure:
    """Rows of the output begin 28 KiB apart: a multiple of a page."""
    op = operators.conv2d(n=1, c=32, k=64, p=size, q=size, r=1, s=1, layout="NHWC", dtype="u8s8")
    unit = amos.intrinsics.get(fig5.INTRINSIC)
    host = amos.enumerate_mappings(op, unit, rule="access")
    return Structure(next(m for m in host if m.groups == {"i1": ("k",), "r1": ("c",)}))


def schedule(structure: Structure, rows: int, order: tuple[str, ...]) -> LoopBatch:
    """A register tile of so many rows of the output."""
    names = [loop.name for loop in structure.spatial]
    tile = [rows if name == "p" else 1 for name in names]
    return LoopBatch(
        np.array([tile]),
        np.array([[names.index(name) for name in order]]),
        np.array([[len(names)]]),
        np.array([1]),
        np.array([1]),
        np.zeros((1, len(structure.choices)), dtype=bool),
    )


def share(structure: Structure, batch: LoopBatch) -> float:
    steps = nest_of(structure, batch)
    nest = CoreNest(steps, np.minimum(2, steps.parallel), 64)
    return float(unforeseen(structure.destination, machine(), nest)[0])


def test_rows_that_the_cache_holds_together_are_fetched_ahead() -> None:
    structure = convolution()
    assert share(structure, schedule(structure, 8, ("p", "q", "i1.tile"))) < 0.01
    # One line of each of 28 rows, while a set of the nearest cache has 12 ways.
    assert share(structure, schedule(structure, 28, ("p", "q", "i1.tile"))) == 1.0


def test_longer_visits_wait_once() -> None:
    structure = convolution()
    column = share(structure, schedule(structure, 1, ("q", "i1.tile", "p")))
    position = share(structure, schedule(structure, 1, ("q", "p", "i1.tile")))
    assert column == 1.0
    assert position == pytest.approx(1 / 4)


def test_rows_at_other_places_of_a_page_share_no_set() -> None:
    # 113 columns of 256 bytes: rows begin at 16 places of a page.
    structure = convolution(113)
    assert share(structure, schedule(structure, 28, ("p", "q", "i1.tile"))) == 0.0


def test_small_outputs_wait_for_nothing() -> None:
    structure = convolution(28)
    batch = schedule(structure, 14, ("q", "i1.tile", "p"))
    host = machine()
    off = replace(host, costs=replace(host.costs, late=0.0))
    assert evaluate(structure, host, batch).seconds == evaluate(structure, off, batch).seconds


def test_lines_that_are_written_one_by_one_are_fetched_in_pairs() -> None:
    structure = convolution()

    def crossing(order: tuple[str, ...]) -> float:
        return float(
            evaluate(structure, machine(), schedule(structure, 1, order)).bytes_out["L3"][0]
        )

    # With channels outside, the second line of each pair is gone when its turn comes.
    ratio = crossing(("i1.tile", "p", "q")) / crossing(("p", "q", "i1.tile"))
    assert ratio == pytest.approx(2.0, rel=0.05)
