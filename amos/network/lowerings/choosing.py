"""Choosing the lowering of a task: by the records, or by the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from amos.errors import AmosError, MappingError
from amos.explore.choosing import Chooser, Product
from amos.ir import Operator
from amos.network.blocked import BlockFormat
from amos.network.groups import Task
from amos.network.lowerings.base import Direct, Lowering
from amos.network.lowerings.blocked import format_of, lower_blocks
from amos.network.lowerings.winograd import (
    BandedTiles,
    is_winograd_faster,
    list_bands,
    lower_winograd,
)
from amos.network.task_records import find_records, rebuild_product
from amos.records import Record

#: Further candidates, which are searched for if the first kernel of a task is wrong.
_MORE = 4


@dataclass(frozen=True)
class TaskLowerings:
    """How a task can be computed, as plain values that another process can rank.

    Attributes:
        bands: of the same convolution by Winograd's tiles.
        records: of the operator and of the products of tiles, the fastest of each first.
        blocks: format of its weights where they have a few bits.
    """

    operator: Operator
    bands: tuple[BandedTiles, ...]
    records: Mapping[Operator, Sequence[Record]]
    blocks: BlockFormat | None = None

    def rank(self, count: int, chooser: Chooser) -> Iterator[Lowering]:
        """Yield lowerings, the best first, from records and, of several, from the model too.

        Winograd's tiles come first if they are faster, else last; weights of a few bits stay
        packed. With a count of 1, further candidates follow, which are searched for only if they
        are asked for.

        Args:
            count: of direct lowerings.

        Raises:
            MappingError: no instruction can be used; the message says why.
        """
        if (packed := self.unpack_weights(chooser)) is not None:
            yield packed
        own = self._select_products(self.operator, count, chooser)
        yield from self.add_winograd(
            own, chooser, lambda operator: self._select_products(operator, 1, chooser)[0]
        )
        if count == 1:
            more, seen = chooser.rank(self.operator, _MORE), {each.key for each in own}
            yield from (Direct(self.operator, each) for each in more if each.key not in seen)

    def predict(self, chooser: Chooser) -> Lowering:
        """Return the lowering that is predicted fastest, or raise MappingError; ignores records."""
        if (packed := self.unpack_weights(chooser)) is not None:
            return packed
        return self.add_winograd([chooser.choose(self.operator)], chooser, chooser.choose)[0]

    def unpack_weights(self, chooser: Chooser) -> Lowering | None:
        """Return the lowering that unpacks weights in its kernel; ``None`` if they are floats."""
        return None if self.blocks is None else lower_blocks(self.operator, self.blocks, chooser)

    def add_winograd(
        self, own: Sequence[Product], chooser: Chooser, select: Callable[[Operator], Product]
    ) -> list[Lowering]:
        """Return direct lowerings and Winograd's tiles: first if they are faster, else last.

        Args:
            select: returns the product that computes an operator.
        """
        direct = [Direct(self.operator, each) for each in own]
        lowered = (lower_winograd(each, self.operator, chooser, select) for each in self.bands)
        tiles = sorted(filter(None, lowered), key=lambda lowering: lowering.expected)
        first = [each for each in tiles if is_winograd_faster(each, direct[0])][:1]
        return [*first, *direct, *(each for each in tiles if each not in first)]

    def _select_products(
        self, operator: Operator, count: int, chooser: Chooser
    ) -> Sequence[Product]:
        """Select products by records, and by the model where records are fewer."""
        here = (each for each in self.records[operator] if each.counts_here)
        rebuilt = (rebuild_product(each, chooser) for each in here)
        measured = [*islice(filter(None, rebuilt), max(count - 1, 1))]
        if count == 1:
            return measured or [chooser.choose(operator)]
        # A search of several may miss what the descent of an untuned network finds.
        untuned = chooser.choose(operator)
        distinct: dict[object, Product] = {}
        for product in (*measured, untuned, *chooser.rank(operator, count - len(measured))):
            distinct.setdefault(product.key, product)
        return [*distinct.values()][:count]


def list_lowerings(
    task: Task, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> TaskLowerings:
    """Return how a task can be computed; records are by :func:`operator_key`."""
    bands = list_bands(task, chooser)
    operators = (task.operator, *(each.operator for each in bands))
    records = {each: find_records(each, chooser, ranked) for each in operators}
    return TaskLowerings(task.operator, bands, records, format_of(task))


def predict_lowering(task: Task, chooser: Chooser) -> Lowering:
    """Return the lowering that is predicted fastest, or raise MappingError."""
    return list_lowerings(task, chooser, {}).predict(chooser)


def select_tuned_task(task: Task, chooser: Chooser) -> Task:
    """Select the task that is tuned for another: itself, or a product of tiles if that is faster.

    The product is that of all cores. It occurs once for each band of tiles.
    """
    lowerings = list_lowerings(task, chooser, {})
    try:
        if not lowerings.bands or not lowerings.predict(chooser).by_tiles:
            return task
    except AmosError:
        return task  # whose own search says why
    shared = lowerings.bands[0]
    return Task(shared.operator, task.groups * shared.tiling.count)


def predict_seconds(chooser: Chooser, lowerings: TaskLowerings) -> float:
    """Predict the seconds of one call of a task; infinite where no instruction can be used."""
    try:
        return lowerings.predict(chooser).predicted
    except MappingError:
        return math.inf
