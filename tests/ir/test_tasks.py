"""Task mappings: every task once, composed as the paper says, alike as numbers and as text."""

from __future__ import annotations

from itertools import compress, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import amos
from amos.errors import TaskMappingError
from amos.ir.tasks import TaskMapping, custom, repeat, spatial
from tests.support.task_mappings import task_mappings

THREE = st.integers(1, 2).flatmap(lambda n: st.tuples(*[task_mappings(n)] * 3))


def every_task(mapping: TaskMapping) -> list[tuple[int, ...]]:
    return [task for worker in range(mapping.workers) for task in mapping.tasks(worker)]


def composed(outer: TaskMapping, inner: TaskMapping, worker: int) -> list[tuple[int, ...]]:
    """The definition of Hidet, section 5.1.2."""
    return [
        tuple(a * n + b for a, n, b in zip(first, inner.shape, second, strict=True))
        for first in outer.tasks(worker // inner.workers)
        for second in inner.tasks(worker % inner.workers)
    ]


@given(mappings=THREE)
def test_composition_is_the_papers(mappings: tuple[TaskMapping, ...]) -> None:
    outer, inner, _ = mappings
    both = outer * inner
    assert both.workers == outer.workers * inner.workers
    for worker in range(both.workers):
        assert both.tasks(worker) == composed(outer, inner, worker)


@given(mappings=THREE)
def test_composition_is_associative(mappings: tuple[TaskMapping, ...]) -> None:
    a, b, c = mappings
    assert (a * b) * c == a * (b * c)
    nested = [composed(a, b * c, worker) for worker in range(a.workers * b.workers * c.workers)]
    assert [(a * b * c).tasks(worker) for worker in range(len(nested))] == nested


@given(mappings=THREE, data=st.data())
def test_every_task_is_done_exactly_once(
    mappings: tuple[TaskMapping, ...], data: st.DataObject
) -> None:
    a, b, c = mappings
    whole = a * b * c
    shape = tuple(data.draw(st.integers(1, n)) for n in whole.shape)
    clipped = whole.clip(*shape)
    grid = list(product(*map(range, shape)))
    assert sorted(every_task(clipped)) == grid
    assert sorted(every_task(whole)) == list(product(*map(range, whole.shape)))
    assert whole.is_even
    assert clipped.is_even == (shape == whole.shape)


@given(mappings=THREE, data=st.data())
def test_text_and_arrays_give_the_numbers(
    mappings: tuple[TaskMapping, ...], data: st.DataObject
) -> None:
    a, b, c = mappings
    whole = a * b * c
    mapping = whole.clip(*(data.draw(st.integers(1, n)) for n in whole.shape))
    code = [compile(text.replace("/", "//"), "task", "eval") for text in mapping.text("w", "t")]
    guard = (mapping.guard("w", "t") or "1").replace("/", "//").replace("&&", "and")
    table, live = mapping.table(), compile(guard, "guard", "eval")
    for worker in range(mapping.workers):
        places = [{"w": worker, "t": turn} for turn in range(mapping.turns)]
        tasks = [tuple(eval(x, {}, at) for x in code) for at in places]  # noqa: S307 - our own text
        assert tasks == list(map(tuple, table[worker].tolist()))
        exists = [eval(live, {}, at) for at in places]  # noqa: S307
        assert list(compress(tasks, exists)) == mapping.tasks(worker)


@given(threads=st.integers(1, 40), shape=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_reshaped_tasks_are_all_done(threads: int, shape: list[int]) -> None:
    total = prod(shape)
    turns = -(-total // threads)
    mapping = (repeat(turns) * spatial(threads)).clip(total).reshape(*shape)
    assert sorted(every_task(mapping)) == list(product(*map(range, shape)))


def test_matrix_product_of_the_paper() -> None:
    """Hidet, section 5.1.2: warps of a block, turns of a warp, threads of a warp, elements."""
    mapping = spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)
    assert (mapping.shape, mapping.workers, mapping.turns) == ((128, 128), 256, 64)
    assert str(mapping) == "spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)"
    assert repeat(1, 2) * repeat(2, 1) != repeat(2, 2)
    assert (repeat(1, 2) * repeat(2, 1)).tasks(0) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_text_has_no_division_that_changes_nothing() -> None:
    copies = (repeat(3) * spatial(64)).clip(160).reshape(5, 8, 4)
    assert copies.text("thread", "i") == ("thread / 32 + i * 2", "(thread / 4) % 8", "thread % 4")
    assert copies.guard("thread", "i") == "thread / 32 + i * 2 < 5"
    assert spatial(4, 2).guard("w") == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: custom((2, 3), 2, lambda w, t: (w, t // 2)), r"task \(0, 0\) is done 2 times"),
        (lambda: custom((2, 3), 2, lambda w, t: (w, t // 2 + 1)), r"task \(0, 0\) is left out"),
        (lambda: custom((4,), 2, lambda w, t: (w * 2 + t + 1,)), r"worker 1 does \(4\), which is"),
        (lambda: custom((4,), 2, lambda w, t: (w, t)), "expected 1 indices of a task"),
        (lambda: custom((4,), 3, lambda w, t: (w,)), "divides 4 tasks, got 3"),
        (lambda: custom((1 << 13, 1 << 13), 1, lambda w, t: (w, t)), "67,108,864 tasks, but"),
        (lambda: repeat(2) * spatial(2, 2), "as many dimensions, got 1 and 2"),
        (lambda: repeat(2) * spatial(4).clip(3), "not clipped on the right"),
        (lambda: spatial(4).clip(5), r"expected to clip \(4\)"),
        (lambda: spatial(4).reshape(2, 3), "expected to reshape 6 tasks"),
        (lambda: custom((4,), True, lambda w, t: (t,)), "divides 4 tasks, got True"),
        (lambda: custom(4, 4, lambda w, t: (w,)), "expected numbers of tasks, got 4"),  # type: ignore[arg-type]
        (lambda: custom((4,), 4, lambda w, t: (w if w else 0,)), "integers alone: The truth"),
        (lambda: custom((4,), 4, lambda w, t: (w / 1,)), "integers alone, got the index"),
        (lambda: custom((4,), 4, lambda w, t: (np.where(w == 9, 0, w),)).text("w"), "alone, got"),
        (lambda: custom((4,), 4, lambda w, t: (w % -4 + 3,)).text("w"), "positive divisor, got -4"),
        (lambda: spatial(4).clip(1).reshape(), "no dimension is left"),
        (lambda: spatial(0), "expected positive numbers of tasks, got 0"),
        (lambda: spatial(4).tasks(4), "expected 0 to 3"),
        (
            lambda: custom((4,), 4, lambda w, t: (w ^ 1,)).text("w"),
            r"expected \+ \* // % of integers alone",
        ),
    ],
)
def test_refusals_name_the_object(make: object, message: str) -> None:
    with pytest.raises(TaskMappingError, match=message):
        make()  # type: ignore[operator]


def test_negative_values_are_divided_as_numbers_are() -> None:
    """Python rounds down, and C to zero."""
    mapping = custom((2, 3), 6, lambda w, t: ((w - 4) // 3 % 2, (w * -1) % 3))
    row, column = (text.replace("/", "//") for text in mapping.text("w"))
    assert "(w - 4 + 6)" in row and "(w * (-1) + 6)" in column
    for worker in range(6):
        at = {"w": worker}
        assert [(eval(row, at), eval(column, at))] == mapping.tasks(worker)  # noqa: S307


def test_a_mapping_is_drawn() -> None:
    mapping = (repeat(2, 1) * spatial(2, 2)).clip(3, 2)
    shown = amos.viz.text(mapping)
    assert "3 x 2 tasks, 4 workers, 2 turns" in shown
    assert "2:0" in shown and "0:1" in shown
    assert "<table" in amos.viz.html(mapping)


def test_a_grid_without_dimensions_is_one_task() -> None:
    assert (spatial() * repeat()).tasks(0) == [()]
    assert "0:0" in amos.viz.text(spatial())


def test_arrays_of_workers() -> None:
    rows, columns = spatial(2, 4).at(np.arange(8))
    assert rows.tolist() == [0] * 4 + [1] * 4
    assert columns.tolist() == [0, 1, 2, 3] * 2
