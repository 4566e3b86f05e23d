"""Loops of an instruction and micro-operations walk what the nest walks."""

from __future__ import annotations

import itertools

import numpy as np

from amos.streams.codegen.writer import Step
from amos.streams.vta.loops import arrange_loops
from tests.support.drawing.generators import drawn


def _walked(outer: Step, inner: Step, uops: np.ndarray) -> list[tuple[int, ...]]:
    return [
        tuple((i * np.array(outer.moves) + j * np.array(inner.moves) + uop).tolist())
        for i, j, uop in itertools.product(range(outer.length), range(inner.length), uops)
    ]


def _nest(loops: tuple[Step, ...]) -> list[tuple[int, ...]]:
    places = itertools.product(*(range(step.length) for step in loops))
    return [
        tuple(
            sum(n * step.moves[k] for n, step in zip(place, loops, strict=True)) for k in range(3)
        )
        for place in places
    ]


@drawn(80)
def test_an_instruction_walks_the_nest(rng: np.random.Generator) -> None:
    loops, base = [], 1
    for _ in range(int(rng.integers(1, 6))):
        length, sums = int(rng.integers(1, 6)), bool(rng.integers(2))
        loops.append(Step(length, (0 if sums else base, int(rng.integers(4)), int(sums))))
        base *= 1 if sums else length
    arranged = arrange_loops(tuple(loops), 8192, 3)
    assert arranged is not None or np.prod([x.length for x in loops if not x.sums]) < 3
    if arranged is None:
        return
    walked = _walked(arranged.outer, arranged.inner, arranged.uops)
    assert sorted(walked) == sorted(_nest(tuple(loops)))
    written = [place[0] for place in walked]
    assert not any(a in b for a, *b in zip(written, written[1:], written[2:], strict=False))


def test_loops_that_go_on_are_one() -> None:
    arranged = arrange_loops((Step(4, (28, 30, 0)), Step(7, (4, 1, 0)), Step(3, (12, 9, 0)),
                    Step(4, (1, 0, 9))), 8192, 3)  # fmt: skip
    assert arranged is not None
    assert len(arranged.uops) == 12


def test_no_more_micro_operations_than_there_is_room_for() -> None:
    loops = tuple(Step(7, (7**n, 3 - n, n * n)) for n in range(4))
    assert arrange_loops(loops, 48, 3) is None
    assert arrange_loops(loops, 49, 3) is not None


def test_loops_that_go_down_are_micro_operations() -> None:
    """Factors have no sign."""
    down = Step(3, (4, -2, 0))
    arranged = arrange_loops((down, Step(4, (1, 2, 0)), Step(5, (0, 7, -1))), 64, 3)
    assert arranged is not None
    assert min(*arranged.outer.moves, *arranged.inner.moves) >= 0
    assert len(arranged.uops) == 15
