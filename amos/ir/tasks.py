"""Task mappings: which worker does which tasks, and in what order (Hidet, section 5.1).

A grid of tasks is distributed among workers; each does its tasks one after another, in
*turns*. Workers are blocks, warps, threads or work-items. Mappings are
composed by ``*``: each task of the first one is a whole grid of the second, and each worker a
group of workers.

>>> copies = repeat(4, 1) * spatial(16, 8)
>>> copies.shape, copies.workers, copies.turns
((64, 8), 128, 4)
>>> copies.tasks(9)
[(1, 1), (17, 1), (33, 1), (49, 1)]

A mapping is evaluated with ``+ * // %`` alone, so that one object gives numbers, NumPy arrays
and the text of a kernel in CUDA or OpenCL:

>>> copies.text("threadIdx.x", "i")
('threadIdx.x / 8 + i * 16', 'threadIdx.x % 8')
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos._display import Shown
from amos.errors import TaskMappingError, quote
from amos.ir.index_text import Value, conditions, text, variable

#: An integer, an array of them, or anything else that has ``+ * // %``.
Index = Any
#: Most tasks of a user's mapping, all of which are checked.
_CHECKED = 1 << 22
_NEEDS = "expected + * // % of integers alone"


@dataclass(frozen=True, kw_only=True)
class TaskMapping(Shown, ABC):
    """A grid of tasks shared out among workers; every task is done exactly once."""

    shape: tuple[int, ...]
    workers: int
    turns: int

    @abstractmethod
    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        """Return the task that a worker does in a turn; beyond ``shape`` there is none."""

    @property
    def is_even(self) -> bool:
        """Whether every worker has a task in every turn."""
        return self.workers * self.turns == prod(self.shape)

    def __mul__(self, inner: TaskMapping) -> TaskMapping:
        """Compose two mappings: this one shares out grids of the other."""
        if not isinstance(inner, TaskMapping):
            return NotImplemented
        factors = (*_factors(self), *_factors(inner))
        _check_factors(factors)
        shapes = zip(*(factor.shape for factor in factors), strict=True)
        return _Product(
            factors=factors,
            shape=tuple(map(prod, shapes)),
            workers=self.workers * inner.workers,
            turns=self.turns * inner.turns,
        )

    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        """List the tasks of one worker in order.

        Raises:
            TaskMappingError: there is no such worker.
        """
        if not 0 <= worker < self.workers:
            raise TaskMappingError(f"worker {worker} of {self}: expected 0 to {self.workers - 1}")
        rows = self._evaluate(np.full(self.turns, worker), np.arange(self.turns))
        return [tuple(row) for row in rows[(rows < self.shape).all(axis=-1)].tolist()]

    def table(self) -> np.ndarray:
        """Evaluate all workers and turns: int array, workers × turns × dimensions."""
        return self._evaluate(*np.indices((self.workers, self.turns)))

    def _evaluate(self, worker: np.ndarray, turn: np.ndarray) -> np.ndarray:
        tasks = np.empty((*worker.shape, len(self.shape)), dtype=np.int64)
        for d, at in enumerate(self.at(worker, turn)):
            tasks[..., d] = at
        return tasks

    def text(self, worker: str, turn: str = "turn") -> tuple[str, ...]:
        """Write the indices of a task as C, of variables for the worker and the turn.

        Raises:
            TaskMappingError: a function of a user needs more than ``+ * // %``.
        """
        return tuple(text(at) for at in self._expressions(worker, turn))

    def guard(self, worker: str, turn: str = "turn") -> str:
        """Write when there is such a task as C; empty if there always is."""
        return " && ".join(conditions(self._expressions(worker, turn), self.shape))

    def _expressions(self, worker: str, turn: str) -> tuple[Value, ...]:
        return self.at(variable(worker, self.workers), variable(turn, self.turns))

    def clip(self, *shape: int) -> TaskMapping:
        """Leave out the tasks beyond a smaller grid; it may be composed with others on its right.

        >>> (repeat(2) * spatial(4)).clip(6).tasks(3)
        [(3,)]
        """
        sizes, grid = _sizes("clip", shape), self.shape
        if len(grid) != len(sizes) or any(a > b for a, b in zip(sizes, grid, strict=True)):
            raise TaskMappingError(
                f"{self}: expected to clip {_format_sizes(grid)} to a grid within it, got "
                f"{_format_sizes(sizes)}"
            )
        return _Clipped(shape=sizes, workers=self.workers, turns=self.turns, grid=self)

    def reshape(self, *shape: int) -> TaskMapping:
        """Number the tasks of one dimension along several, the last one fastest.

        >>> (repeat(2) * spatial(3)).reshape(3, 2).tasks(1)
        [(0, 1), (2, 0)]
        """
        sizes = _sizes("reshape", shape)
        if self.shape != (prod(sizes),):
            raise TaskMappingError(
                f"{self}: expected to reshape {prod(sizes)} tasks of one dimension, got "
                f"{_format_sizes(self.shape)}"
            )
        if not sizes and not self.is_even:
            raise TaskMappingError(f"{self}: no dimension is left that says when there is a task")
        return _Reshaped(shape=sizes, workers=self.workers, turns=self.turns, flat=self)


def repeat(*shape: int) -> TaskMapping:
    """Let one worker do a grid of tasks, the last index fastest.

    >>> repeat(2, 2).tasks(0)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    sizes = _sizes("repeat", shape)
    return _Repeat(shape=sizes, workers=1, turns=prod(sizes))


def spatial(*shape: int) -> TaskMapping:
    """Let each worker do one task of a grid, the last index fastest.

    >>> [spatial(2, 2).tasks(worker) for worker in range(4)]
    [[(0, 0)], [(0, 1)], [(1, 0)], [(1, 1)]]
    """
    sizes = _sizes("spatial", shape)
    return _Spatial(shape=sizes, workers=prod(sizes), turns=1)


def custom(
    shape: Sequence[int], workers: int, function: Callable[[Index, Index], Sequence[Index]]
) -> TaskMapping:
    """Map tasks by a function, checked to do every task exactly once.

    Args:
        shape: tasks along each dimension.
        workers: number of workers, which divides the number of tasks.
        function: the indices of a task, computed of the worker and the turn with ``+ * // %``.

    Raises:
        TaskMappingError: a task is left out or done twice; the first such task is named.

    >>> custom((2, 3), 2, lambda worker, turn: (worker, (turn + worker) % 3)).tasks(1)
    [(1, 1), (1, 2), (1, 0)]
    """
    sizes = _sizes("custom", shape)
    total = prod(sizes)
    is_count = isinstance(workers, int) and not isinstance(workers, bool)
    if not is_count or workers < 1 or total % workers:
        raise TaskMappingError(
            f"custom: expected a number of workers that divides {total} tasks, got {quote(workers)}"
        )
    if total > _CHECKED:
        raise TaskMappingError(f"custom: {total:,} tasks, but {_CHECKED:,} can be checked")
    return _Custom(shape=sizes, workers=workers, turns=total // workers, function=function)


def decode(shape: Sequence[int], flat: Index) -> tuple[Index, ...]:
    """Split a flat index into those of a grid, the last one fastest."""
    weights = [prod(shape[d + 1 :]) for d in range(len(shape))]
    digits = [flat if weight == 1 else flat // weight for weight in weights]
    # The first index has no remainder, so that a place beyond the grid stays beyond it.
    return tuple(
        digit % extent if d else digit
        for d, (digit, extent) in enumerate(zip(digits, shape, strict=True))
    )


@dataclass(frozen=True, kw_only=True)
class _Repeat(TaskMapping):
    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        return decode(self.shape, turn)

    def __str__(self) -> str:
        return f"repeat{_format_sizes(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class _Spatial(TaskMapping):
    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        return decode(self.shape, worker)

    def __str__(self) -> str:
        return f"spatial{_format_sizes(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class _Custom(TaskMapping):
    function: Callable[[Index, Index], Sequence[Index]]

    def __post_init__(self) -> None:
        """Refuse a mapping that leaves a task out, repeats one, or leaves the grid."""
        tasks = self.table().reshape(-1, len(self.shape))
        strange = np.flatnonzero(((tasks < 0) | (tasks >= self.shape)).any(axis=1))
        if len(strange):
            worker, task = strange[0] // self.turns, _format_sizes(tasks[strange[0]])
            raise TaskMappingError(f"{self}: worker {worker} does {task}, which is no task of it")
        counts = np.zeros(self.shape, dtype=np.int64)
        np.add.at(counts, tuple(tasks.T), 1)
        if len(wrong := np.argwhere(counts != 1)):
            count = int(counts[tuple(wrong[0])])
            problem = f"is done {count} times" if count else "is left out"
            raise TaskMappingError(f"{self}: task {_format_sizes(wrong[0])} {problem}")

    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        try:
            task = self.function(worker, turn)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise TaskMappingError(f"{self}: {_NEEDS}: {error}") from None
        if not isinstance(task, tuple | list) or len(task) != len(self.shape):
            raise TaskMappingError(
                f"{self}: expected {len(self.shape)} indices of a task, got {quote(task)}"
            )
        for index in task:
            if not _is_index(index):
                raise TaskMappingError(f"{self}: {_NEEDS}, got the index {quote(index)}")
        return tuple(task)

    def __str__(self) -> str:
        return f"custom({_format_sizes(self.shape)}, {self.workers} workers)"


@dataclass(frozen=True, kw_only=True)
class _Product(TaskMapping):
    """Nested mappings, outermost first; composition is associative."""

    factors: tuple[TaskMapping, ...]

    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        first, *inner = self.factors
        task: tuple[Index, ...] = (0,) * len(self.shape)
        size = np.ones(len(self.shape), dtype=np.int64)
        for factor in reversed(inner):
            digits = factor.at(worker % factor.workers, turn % factor.turns)
            worker, turn = worker // factor.workers, turn // factor.turns
            task = _place(task, digits, size)
            size = size * factor.shape
        return _place(task, first.at(worker, turn), size)

    def __str__(self) -> str:
        return " * ".join(map(str, self.factors))


@dataclass(frozen=True, kw_only=True)
class _Clipped(TaskMapping):
    grid: TaskMapping

    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        return self.grid.at(worker, turn)

    def __str__(self) -> str:
        return f"({self.grid}).clip{_format_sizes(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class _Reshaped(TaskMapping):
    flat: TaskMapping

    def at(self, worker: Index, turn: Index = 0) -> tuple[Index, ...]:
        return decode(self.shape, self.flat.at(worker, turn)[0])

    def __str__(self) -> str:
        return f"({self.flat}).reshape{_format_sizes(self.shape)}"


def _factors(mapping: TaskMapping) -> tuple[TaskMapping, ...]:
    return mapping.factors if isinstance(mapping, _Product) else (mapping,)


def _check_factors(factors: Sequence[TaskMapping]) -> None:
    """Refuse factors of different dimensions, or with tasks left out within a grid."""
    first, *inner = factors
    for factor in inner:
        if len(factor.shape) != len(first.shape):
            raise TaskMappingError(
                f"{first} * {factor}: expected grids of as many dimensions, got "
                f"{len(first.shape)} and {len(factor.shape)}"
            )
        if not factor.is_even:
            raise TaskMappingError(
                f"{first} * {factor}: expected a grid that is not clipped on the right"
            )


def _place(task: Sequence[Index], digits: Sequence[Index], size: np.ndarray) -> tuple[Index, ...]:
    """Place a task of the inner grids within that task of the outer one."""
    places = zip(task, digits, size.tolist(), strict=True)
    return tuple(at + digit * extent for at, digit, extent in places)


def _is_index(value: Index) -> bool:
    """Return whether a value is an integer, an array of integers, or an expression."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "iu"
    return not isinstance(value, float | str) and hasattr(value, "__floordiv__")


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Check the numbers of tasks along each dimension.

    Raises:
        TaskMappingError: there are none, or one is no positive integer.
    """
    if not isinstance(shape, Sequence):
        raise TaskMappingError(f"{name}: expected numbers of tasks, got {quote(shape)}")
    sizes = tuple(shape)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise TaskMappingError(f"{name}: expected positive numbers of tasks, got {quote(size)}")
    return tuple(map(int, sizes))


def _format_sizes(numbers: Sequence[int]) -> str:
    return f"({', '.join(map(str, numbers))})"
