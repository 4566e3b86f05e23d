"""Lines of sources that nothing asked for early, as loops jump between rows of memory."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos import operators
from amos.machine import Machine
from amos.perfmodel import evaluate
from amos.perfmodel.cpu.reads import scatter_penalty
from amos.perfmodel.traffic import CoreNest
from amos.plan import Structure
from amos.plan.structure import LoopBatch
from amos.reproduce import fig5
from tests.support.models import nest_of


def machine() -> Machine:
    return fig5.load_stored("fig5_second_cpu").machine_with(None)


def convolution(batch: int) -> Structure:
    """Rows of the image are 14 KiB: 112 columns of 128 bytes."""
    op = operators.conv2d(n=batch, c=128, k=16, p=112, q=112, r=1, s=1, layout="NHWC", dtype="u8s8")
    unit = amos.intrinsics.get(fig5.INTRINSIC)
    space = amos.enumerate_mappings(op, unit, rule="access")
    return Structure(next(m for m in space if m.groups == {"i1": ("k",), "r1": ("c",)}))


def schedule(structure: Structure, *order: str, **tiles: int) -> LoopBatch:
    names = [loop.name for loop in structure.spatial]
    return LoopBatch(
        np.array([[tiles.get(name, 1) for name in names]]),
        np.array([[names.index(name) for name in order]]),
        np.array([[len(names)]]),
        np.array([1]),
        np.array([1]),
        np.zeros((1, len(structure.choices)), dtype=bool),
    )


def longer(structure: Structure, batch: LoopBatch) -> float:
    nest = CoreNest(nest_of(structure, batch), np.array([1.0]), line=64)
    image = next(op for op in structure.sources if not op.packed)
    return float(scatter_penalty(image, machine(), nest)[0])


def test_whole_rows_are_asked_for_early() -> None:
    structure = convolution(16)
    assert longer(structure, schedule(structure, "n", "p", "q")) < 0.2
    # Eight rows at a time, each from its begin to its end.
    assert longer(structure, schedule(structure, "n", "p", "q", p=8)) < 0.2


def test_short_pieces_of_rows_wait_for_each_line() -> None:
    structure = convolution(16)
    assert longer(structure, schedule(structure, "n", "q", "p")) == pytest.approx(3.0)
    assert longer(structure, schedule(structure, "p", "q", "n")) == pytest.approx(3.0)
    # Sixteen columns are four times what is waited for.
    piece = longer(structure, schedule(structure, "n", "q", "p", q=16))
    assert piece == pytest.approx(3.0 / 4)


def test_what_caches_hold_waits_for_nothing() -> None:
    for batch, slower in ((1, False), (64, True)):
        structure = convolution(batch)
        order = ("n", "p", "q") if batch > 1 else ("p", "q")
        across = (*order[:-2], order[-1], order[-2])
        along, jumping = (
            evaluate(structure, machine(), schedule(structure, *each)).seconds[0]
            for each in (order, across)
        )
        assert (jumping > 1.2 * along) == slower


def test_what_was_packed_ahead_is_read_in_its_order() -> None:
    """Whatever the order of loops: narrow tiles of a large matrix are one stream as well."""
    unit = amos.intrinsics.get("avx512_fmadd_m16_f32_f32")
    extents = {"m": 4, "n": 4096, "k": 4096}
    dtypes = dict.fromkeys(("x", "weight", "out"), "f32")
    for constants, waits in (((), True), (("weight",), False)):
        op = amos.Operator.parse(
            "out[m,n] += x[m,k] * weight[k,n]", extents, dtypes, constants=constants
        )
        space = amos.enumerate_mappings(op, unit, rule="access")
        structure = Structure(next(m for m in space if m.groups == {"i1": ("n",)}))
        names = [loop.name for loop in structure.spatial]
        batch = schedule(structure, *names, m=4)
        nest = CoreNest(nest_of(structure, batch), np.array([1.0]), line=64)
        weight = max(structure.sources, key=lambda op: np.prod([dim.extent for dim in op.dims]))
        assert weight.packed is not waits
        assert bool(scatter_penalty(weight, machine(), nest)[0]) is waits
