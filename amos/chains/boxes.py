"""Which part of each tensor a tile of the result needs: boxes that start at affine places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amos.errors import ScheduleError
from amos.ir import Affine, BufferLoad, Iteration
from amos.ir.chain import Step


@dataclass(frozen=True)
class Range:
    """Values that an iteration or an index takes within a tile.

    Attributes:
        start: the first, as an expression of the origins of shared loops.
        size: how many there are, one after the other.
    """

    start: Affine
    size: int

    @staticmethod
    def whole(size: int) -> Range:
        """Return all values from zero on."""
        return Range(Affine(), size)

    def __str__(self) -> str:
        return f"{self.start} + {self.size}"


Box = tuple[Range, ...]


def index_range(index: Affine, ranges: Mapping[str, Range]) -> Range:
    """Return the range of an index while iterations run over ranges."""
    start, size = Affine(constant=index.constant), 1
    for name, factor in index.terms:
        run = ranges[name]
        start = start + run.start * factor
        start = start + min(factor, 0) * (run.size - 1)
        size += abs(factor) * (run.size - 1)
    return Range(start, size)


def load_box(
    load: BufferLoad,
    ranges: Mapping[str, Range],
    extents: Mapping[str, int] | None = None,
    rolling: str = "",
) -> Box:
    """Return the elements that an access reaches; whole dimensions where it leaves the tensor.

    Args:
        ranges: of its iterations within a tile.
        extents: of these; ``None`` if it reads nothing beyond.
        rolling: the shared loop along which rows beyond the tensor are filled.
    """
    box = []
    for index, size in zip(load.indices, load.tensor.shape, strict=True):
        low, high = index.bounds(extents) if extents and load.padded else (0, 0)
        reached = index_range(index, ranges)
        is_exact = low >= 0 and high < size or rolling in reached.start.names
        box.append(reached if is_exact else Range.whole(size))
    return tuple(box)


def unite(first: Box, second: Box, shape: tuple[int, ...]) -> Box:
    """Return the smallest box of both; whole dimensions where their offsets differ."""
    box = []
    for near, far, size in zip(first, second, shape, strict=True):
        distance = far.start + near.start * -1
        if distance.terms:
            box.append(Range.whole(size))
            continue
        low = min(0, distance.constant)
        high = max(near.size, distance.constant + far.size)
        box.append(Range(near.start + low, high - low))
    return tuple(box)


def offset_box(box: Box, whole: Box) -> Box:
    """Return a box relative to another one that contains it."""
    pairs = zip(box, whole, strict=True)
    return tuple(Range(own.start + outer.start * -1, own.size) for own, outer in pairs)


def user_name(tensor: str) -> str:
    """Return the user's name of a tensor, also of one inside a row function.

    >>> user_name("p.exp"), user_name("p")
    ('p', 'p')
    """
    return tensor.partition(".")[0]


def local_load(
    load: BufferLoad, ranges: Mapping[str, Range], box: Box, shape: tuple[int, ...]
) -> BufferLoad:
    """Return an access by iterations from zero to a tensor that begins where a box does.

    It is padded only where it reads beyond the box.

    Args:
        load: the access, by iterations with their own values.
        ranges: of these.
        box: of the tensor.
        shape: of the tensor in memory.

    Raises:
        ScheduleError: the access moves from tile to tile within the box.
    """
    indices = []
    for index, whole in zip(load.indices, box, strict=True):
        start = Affine(constant=index.constant)
        for name, factor in index.terms:
            start = start + ranges[name].start * factor
        offset = start + whole.start * -1
        if offset.terms:
            name = user_name(load.tensor.name)
            moved = ", ".join(each for each in offset.names if "." not in each)  # no unit of rows
            inner = ", ".join(map(str, load.indices))
            raise ScheduleError(
                f"a tile of {moved} has all of {name!r} for one statement and a part of it for "
                f"{name}[{inner}]: leave {moved} whole"
            )
        indices.append(Affine(index.terms, offset.constant))
    if shape and not indices:  # a scalar, which lies in memory as a vector of one
        indices.append(Affine())
    sizes = {name: ranges[name].size for name in load.names}
    is_padded = load.padded and any(
        low < 0 or high >= place.size
        for place, (low, high) in zip(box, (i.bounds(sizes) for i in indices), strict=False)
    )
    padding = load.padding if is_padded else 0
    tensor = replace(load.tensor, shape=shape)
    return BufferLoad(tensor, tuple(indices), is_padded, padding)


def local_iterations(step: Step, ranges: Mapping[str, Range]) -> tuple[Iteration, ...]:
    """Return the iterations of a step within a tile."""
    return tuple(replace(it, extent=ranges[it.name].size) for it in step.iterations)


def origins_of(step: Step, ranges: Mapping[str, Range], boxes: Mapping[str, Box]) -> set[str]:
    """Return the shared loops that the values of a step depend on."""
    used = {n for name in step.extents for n in ranges[name].start.names}
    for place in boxes[step.output.tensor.name]:
        used.update(place.start.names)
    return used
