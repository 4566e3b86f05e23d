"""Which lowering a task gets: by the records, or by the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from amos.errors import AmosError
from amos.ir import Operator
from amos.network.candidates import Chooser, Product, operator_key, recorded
from amos.network.groups import Task
from amos.network.lowerings.base import Lowering
from amos.network.lowerings.direct import Direct
from amos.network.lowerings.winograd import by_tiles, forms_of, pays, winograd_of
from amos.operators.winograd import Winograd
from amos.records import Record

#: Candidates that are searched for where the first kernel of a task is wrong.
_MORE = 4


@dataclass(frozen=True)
class Ways:
    """The ways to compute a task, as plain values that another process can rank.

    Attributes:
        operator: of the task.
        forms: the convolutions that it is by Winograd's tiles.
        records: of the operator and of the products of tiles, the fastest of each first.
    """

    operator: Operator
    forms: tuple[Winograd, ...]
    records: Mapping[Operator, Sequence[Record]]

    def rank(self, count: int, chooser: Chooser) -> Iterator[Lowering]:
        """The best of the records, or of what the model thinks of; of several both.

        A convolution is also there by tiles: first where that is taken, else last. Where all of
        them fail, some follow that are searched for only then.

        Args:
            count: how many are wanted of the operator as it is.
            chooser: of the machine.

        Raises:
            MappingError: no instruction can be used; the message says why.
        """
        own = self._best(self.operator, count, chooser)
        yield from self.with_tiles(own, chooser, lambda each: self._best(each, 1, chooser)[0])
        if count == 1:
            more, seen = chooser.promising(self.operator, _MORE), {each.key for each in own}
            yield from (Direct(self.operator, (each,)) for each in more if each.key not in seen)

    def with_tiles(
        self, own: Sequence[Product], chooser: Chooser, select: Callable[[Operator], Product]
    ) -> list[Lowering]:
        """Kernels of the operator, and it by tiles: first where that pays, else last.

        Args:
            own: kernels of the operator.
            chooser: of the machine.
            select: what products of tiles are computed by.
        """
        ordered: list[Lowering] = [Direct(self.operator, (each,)) for each in own]
        for form in self.forms:
            tiles = by_tiles(form, self.operator, chooser, select)
            if tiles is not None:
                ordered.insert(0 if pays(tiles, ordered[0]) else len(own), tiles)
        return ordered

    def _best(self, operator: Operator, count: int, chooser: Chooser) -> Sequence[Product]:
        here = (each for each in self.records[operator] if each.counts_here)
        rebuilt = (recorded(each, chooser) for each in here)
        measured = [*islice(filter(None, rebuilt), max(count - 1, 1))]
        if count == 1:
            return measured or [chooser.predicted(operator, thorough=True)]
        more = chooser.promising(operator, count - len(measured))
        seen = {each.key for each in measured}
        return [*measured, *(each for each in more if each.key not in seen)]


def ways_of(task: Task, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]) -> Ways:
    """The ways to compute a task.

    Args:
        task: of a network.
        chooser: of the machine.
        ranked: records by :func:`operator_key`, the fastest first.
    """
    forms = forms_of(task, chooser)
    operators = (task.operator, *(form.operator for form in forms))
    records = {each: records_of(each, chooser, ranked) for each in operators}
    return Ways(task.operator, forms, records)


def records_of(
    operator: Operator, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> Sequence[Record]:
    """The records of an operator, the fastest first."""
    return ranked.get(operator_key(chooser.operator(operator)), ()) if ranked else ()


def predict_lowering(task: Task, chooser: Chooser) -> Lowering:
    """What the model thinks best of a task, by a brief search.

    Raises:
        MappingError: no instruction can be used; the message says why.
    """
    ways = ways_of(task, chooser, {})
    return ways.with_tiles([chooser.predicted(task.operator)], chooser, chooser.predicted)[0]


def searched(task: Task, chooser: Chooser) -> Task:
    """The task, or the product of it that is computed by tiles: what is worth measuring.

    The product occurs once for each strip.
    """
    if winograd_of(task) is None:
        return task
    try:
        ((operator, times),) = predict_lowering(task, chooser).tuned
    except AmosError:
        return task  # whose own search says why
    return Task(operator, task.groups * times)
