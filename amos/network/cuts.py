"""How a cascade is cut into strips (:mod:`amos.operators.cascade`), and what each way takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError
from amos.ir import Affine, Operator
from amos.machine import Machine
from amos.network.candidates import WORTH, Choice, Chooser, moving
from amos.operators.cascade import (
    IMAGES,
    ROWS,
    Cascade,
    Window,
    channel_of,
    channels_of,
    rows_of,
    source_of,
)

#: What strips are of.
BY_ROWS, BY_CHANNELS = "rows", "channels"
#: Share of the cache near a core that what is between convolutions may take.
_SHARE = 0.5


@dataclass(frozen=True)
class CascadeChoice:
    """The kernel of a cascade, before it is built.

    Attributes:
        cascade: what it computes.
        by: what strips are of: ``"rows"`` or ``"channels"``.
        size: how many of the result a strip has.
        cores: how many there are.
        layers: a choice for each convolution of a strip, on one core; by rows, of a row of results
            for the first one.
        around: predicted seconds of starting, and of what comes and goes beyond a core's caches.
    """

    cascade: Cascade
    by: str
    size: int
    cores: int
    layers: tuple[Choice, ...]
    around: float
    #: What a choice of one operator may also have.
    seconds: ClassVar[None] = None
    winograd: ClassVar[None] = None

    @property
    def predicted(self) -> float:
        """Seconds by the model."""
        cascade, (first, *others) = self.cascade, self.layers
        of_image = (cascade.rows if self.by == BY_ROWS else cascade.channels) // self.size
        strips = -(-cascade.images * of_image // self.cores)
        if self.by == BY_CHANNELS:
            return self.around + strips * sum(layer.predicted for layer in self.layers)
        rows = self.size * strips
        begun = -(-rows // cascade.rows)
        rows = rows * cascade.window.stride + begun * cascade.window.kept
        of_strips = strips * sum(layer.predicted for layer in others)
        return self.around + rows * first.predicted + of_strips

    @property
    def measured(self) -> None:
        """Nothing is."""
        return None

    @property
    def instruction(self) -> str:
        """Names of those of its layers, in order."""
        return " + ".join(layer.instruction for layer in self.layers)

    @property
    def mappings(self) -> int:
        """How many mappings of its layers go together."""
        return prod(layer.mappings for layer in self.layers)

    @property
    def bound(self) -> str:
        """What limits the first layer, which multiplies most."""
        return self.layers[0].bound

    def parts(self, name: str, value: np.ndarray) -> list[np.ndarray]:
        """What an argument is put together of."""
        return self.cascade.parts(name, value, self.size) if self.by == BY_CHANNELS else [value]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "instruction": self.instruction,
            "mapping": " + ".join(layer.candidate.mapping.name for layer in self.layers),
            "schedule": {},
            "winograd": False,
            self.by: self.size,
            "predicted_seconds": self.predicted,
            "measured_seconds": None,
            "layers": [layer.to_dict() for layer in self.layers],
        }


def chosen(cascade: Cascade, apart: float, chooser: Chooser) -> CascadeChoice | None:
    """What the model thinks best of a cascade; ``None`` if its convolutions are faster one by one.

    Args:
        cascade: what is computed.
        apart: predicted seconds of the convolutions one by one.
        chooser: of the machine.
    """
    if max(each.elements for each in (*cascade.inputs, cascade.result)) > MOST_ELEMENTS:
        return None
    machine = chooser.target(())
    # By channels the same is computed as one by one, so the model errs alike.
    worth = {BY_ROWS: WORTH * apart, BY_CHANNELS: apart}
    ways = (of_strips(cascade, by, size, chooser) for by, size in _cuts(cascade, machine))
    choices = [way for way in ways if way is not None and way.predicted < worth[way.by]]
    return min(choices, key=lambda choice: choice.predicted, default=None)


def _cuts(cascade: Cascade, machine: Machine) -> Iterator[tuple[str, int]]:
    """What strips may be of, and their sizes."""
    if _of_rows(cascade) and not _stays(cascade, machine):
        yield from ((BY_ROWS, rows) for rows in _doubling(_heights(cascade, machine)))
    if _of_channels(cascade) and not _has_room(cascade, machine):
        yield from ((BY_CHANNELS, each) for each in _doubling(_widths(cascade, machine)))


def _doubling(sizes: Sequence[int]) -> Iterator[int]:
    """Sizes of which each is at least twice the one before: those between hardly differ."""
    last = 0
    for size in sizes:
        if size >= 2 * last:
            yield size
            last = size


def _heights(cascade: Cascade, machine: Machine) -> list[int]:
    """Rows that strips may have."""
    stride, kept = cascade.window.stride, cascade.window.kept
    most = _SHARE * _near(machine)
    return [
        rows
        for rows in _divisors(cascade.rows)
        if stride * rows >= kept and sum(cascade.between(rows)) <= most
    ]


def _widths(cascade: Cascade, machine: Machine) -> list[int]:
    """Channels that strips may have."""
    first, images = cascade.layers[0], cascade.images
    image = source_of(first).tensor.nbytes // images
    between = first.result.nbytes // images // cascade.channels
    size = cascade.result.nbytes // cascade.result.elements
    most = _SHARE * _near(machine)
    return [
        channels
        for channels in _divisors(cascade.channels)
        # Each strip reads the image anew, and stores whole lines of a cache.
        if image + channels * between <= most
        if channels * size % machine.line == 0
        if cascade.channels // channels * images >= machine.cores
    ]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _of_rows(cascade: Cascade) -> bool:
    """Whether strips of rows can follow one another."""
    first, second, *_ = cascade.layers
    windows = pointwise(first) and _follows(second)
    return windows and all(map(_by_rows, cascade.layers))


def _by_rows(operator: Operator) -> bool:
    """Whether an epilogue reads tensors by rows of all images, or the same for all."""
    loads = operator.epilogue_loads
    whole = [(ROWS,)] if operator.extents[IMAGES] == 1 else [(IMAGES,), (ROWS,)]
    return all(_in_order([index.names for index in load.indices], whole) for load in loads)


def _in_order(indices: Sequence[tuple[str, ...]], whole: Sequence[tuple[str, ...]]) -> bool:
    """Whether a tensor is read by rows of all images, one after the other, or the same for all."""
    rest = indices[len(whole) :] if [*indices[: len(whole)]] == [*whole] else indices
    return not any({IMAGES, ROWS}.intersection(names) for names in rest)


def pointwise(operator: Operator) -> bool:
    """Whether a convolution reads one element of each channel, of all rows one after the other."""
    taps = all(operator.extents.get(tap, 1) == 1 for tap in "rs")
    if not taps or Window.of(operator) != Window(1, 1, 0):
        return False
    return source_of(operator).tensor.shape[1] == operator.extents[ROWS]  # none of padding below


def _follows(operator: Operator) -> bool:
    """Whether strips of rows of a depthwise convolution can follow one another."""
    window = Window.of(operator)
    # What is kept is copied at once, and rows that nothing reads are not made.
    return 0 <= window.kept <= window.stride * operator.extents[ROWS]


def _of_channels(cascade: Cascade) -> bool:
    """Whether strips of channels are parts of tensors."""
    if len(cascade.layers) > 2:
        return False  # the next convolution reads all channels
    channel = channel_of(cascade.layers[1])
    of_source = source_of(cascade.layers[1]).indices[-1]
    return of_source == Affine.of({channel: 1}) and all(map(_by_channels, cascade.layers))


def _by_channels(operator: Operator) -> bool:
    """Whether channels and images are dimensions of all that a convolution reads."""
    own = {channel_of(operator), IMAGES}
    return all(
        index.names == (name,) and index == Affine.of({name: 1})
        for load in (*operator.sources, *operator.epilogue_loads)
        for index in load.indices
        for name in own.intersection(index.names)
    )


def _stays(cascade: Cascade, machine: Machine) -> bool:
    """Whether all that a cascade does not send away has room in the caches near cores anyway."""
    return cascade.layers[0].result.nbytes <= _near(machine) * machine.cores


def _has_room(cascade: Cascade, machine: Machine) -> bool:
    """Whether all that a cascade reads and makes has room there."""
    every = (*cascade.inputs, *(layer.result for layer in cascade.layers))
    return sum(each.nbytes for each in every) <= _SHARE * _near(machine) * machine.cores


def _near(machine: Machine) -> int:
    """Bytes of the largest cache that a core has for itself."""
    own = (level.capacity for level in machine.levels if level.units >= machine.cores)
    return max(own, default=0)


def of_strips(
    cascade: Cascade, by: str, size: int, chooser: Chooser, *, thorough: bool = False
) -> CascadeChoice | None:
    """What the model thinks best for strips; ``None`` if it cannot be computed so.

    Args:
        cascade: what is computed.
        by: what strips are of.
        size: how many a strip has of them, which divide those of the result.
        chooser: of the machine.
        thorough: search as long as before a measurement.
    """
    machine = chooser.target(())
    first, *others = cascade.layers
    try:
        if by == BY_ROWS:
            parts = [rows_of(first, 1), *(rows_of(each, size) for each in others)]
        else:
            parts = [channels_of(first, size, last=False)]
            parts += [channels_of(each, size, last=True) for each in others]
        layers = tuple(chooser.core.predicted(part, thorough=thorough) for part in parts)
    except AmosError:
        return None  # one of them stays with the engine
    around = machine.launch
    if by == BY_ROWS:  # the model takes what a strip reads and stores to be near its core
        read = sum(each.nbytes for each in cascade.inputs)
        around = moving(machine, read, cascade.result.nbytes)
    return CascadeChoice(cascade, by, size, machine.cores, layers, around)
