"""Tiles of operands: rectangles that move exactly what a tile has, padding included."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.plan import Structure
from amos.plan.staging import stage_array
from amos.streams.codegen.rectangles import tile_of
from amos.streams.operand import StreamOperand, stream_operands
from amos.streams.plan import Span
from tests.support.streams import OPERATORS, VTA, inputs_of


def _loaded(op: StreamOperand, packed: np.ndarray, spans: dict[str, Span]) -> np.ndarray:
    """What is on chip after all loads of a tile, fragment by fragment."""
    tile = tile_of(op, spans)
    flat = packed.reshape(-1, *op.fragment)
    chip = np.full((tile.fragments, *op.fragment), 99, flat.dtype)
    touched = np.zeros(tile.fragments, int)
    for rectangle in tile.rectangles():
        at = rectangle.sram
        for y in range(-rectangle.before[0], rectangle.rows + rectangle.after[0]):
            for x in range(-rectangle.before[1], rectangle.columns + rectangle.after[1]):
                in_bounds = 0 <= y < rectangle.rows and 0 <= x < rectangle.columns
                chip[at] = flat[rectangle.dram + y * rectangle.stride + x] if in_bounds else 0
                touched[at] += 1
                at += 1
    assert (touched == 1).all()
    return chip


@pytest.mark.parametrize("name", OPERATORS)
def test_a_tile_has_what_its_calls_read(name: str) -> None:
    """Each step of the loops finds the fragment that the staged operand has for it."""
    rng, op = np.random.default_rng(1), OPERATORS[name]
    inputs = inputs_of(op)
    mappings = list(amos.enumerate_mappings(op, VTA))
    for _ in range(6):
        structure = Structure(mappings[int(rng.integers(len(mappings)))])
        spans = {}
        for loop in (*structure.spatial, *structure.reduce):
            start = int(rng.integers(loop.extent))
            spans[loop.name] = Span(start, int(rng.integers(1, loop.extent - start + 1)))
        for operand in stream_operands(structure)[:-1]:
            staged = operand.staged
            whole = stage_array(staged, inputs[staged.load.tensor.name])
            packed = operand.pack(inputs[staged.load.tensor.name])
            chip, tile = _loaded(operand, packed, spans), tile_of(operand, spans)
            for _ in range(10):
                steps = {n: int(rng.integers(s.length)) for n, s in spans.items()}
                at = tile.first + sum(tile.steps.get(n, 0) * k for n, k in steps.items())
                values = {n: spans[n].start + k for n, k in steps.items()}
                values |= {loop.name: 0 for loop in structure.nest.loops if loop.extent == 1}
                where = tuple(
                    dim.index.evaluate(values) for dim in staged.dims[: -len(staged.fragment)]
                )
                np.testing.assert_array_equal(chip[at], whole[where])


def test_padded_rows_of_an_image_are_one_load() -> None:
    op = amos.operators.resolve("resnet18:C5", dtype="s8")
    (mapping,) = [m for m in amos.enumerate_mappings(op, VTA) if m.name == "n-k-c"]
    image, weight, _ = stream_operands(Structure(mapping))
    assert image.shape == (8, 28, 28, 1, 16)
    assert weight.shape == (8, 8, 3, 3, 16, 16)
    spans = {"p": Span(0, 7), "q": Span(0, 28), "r": Span(0, 3), "s": Span(0, 3)}
    (rectangle,) = tile_of(image, {**spans, "r1.tile": Span(2, 1)}).rectangles()
    assert (rectangle.dram, rectangle.rows, rectangle.columns, rectangle.stride) == (
        2 * 784,
        8,
        28,
        28,
    )
    assert (rectangle.before, rectangle.after) == ((1, 1), (0, 1))
    (rectangle,) = tile_of(
        weight, {**spans, "i2.tile": Span(1, 2), "r1.tile": Span(0, 8)}
    ).rectangles()
    assert (rectangle.dram, rectangle.rows, rectangle.columns) == (72, 1, 144)
