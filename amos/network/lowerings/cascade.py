"""Convolutions of a network as cascades (:mod:`amos.operators.cascade`): which, and how cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.errors import AmosError
from amos.ir import Affine, Operator
from amos.machine import Machine
from amos.measure.reference import References, tolerance
from amos.network.candidates import Chooser, moving
from amos.network.graph import Graph, Node
from amos.network.groups import CallSite, Group, Job, Task
from amos.network.lowerings.base import WORTH, Example, Lowering, Scheduled
from amos.network.lowerings.choosing import predict_lowering
from amos.network.lowerings.direct import Direct
from amos.network.lowerings.strips import by_channels, by_rows
from amos.network.shapes import HALVES
from amos.operators.cascade import (
    IMAGES,
    ROWS,
    SOURCE,
    Cascade,
    Window,
    argument,
    channel_of,
    channels_of,
    rows_of,
    source_of,
)
from amos.validate import evaluate, random_inputs

#: What the layers of a cascade are called.
_DENSE, _DEPTHWISE = "conv2d", "depthwise_conv2d"
#: What strips are of.
BY_ROWS, BY_CHANNELS = "rows", "channels"
#: Share of the cache near a core that what is between convolutions may take.
_SHARE = 0.5


@dataclass(frozen=True)
class CascadeStrips(Lowering):
    """A cascade by strips, with a product for each convolution of a strip, on one core.

    By rows the first one is of a single row of results.

    Attributes:
        by: what strips are of: ``"rows"`` or ``"channels"``.
        size: how many of the result a strip has.
        cores: how many there are.
        overhead_seconds: predicted, to start the kernel and to move tensors beyond a core's caches.
    """

    operator: Cascade
    by: str
    size: int
    cores: int
    overhead_seconds: float
    #: In one piece of memory with what another layer stages, accumulators are in no registers.
    shared: ClassVar = False

    def total(self, seconds: Sequence[float]) -> float:
        """Those of the strips of a core, and the overhead."""
        cascade, (first, *others) = self.operator, seconds
        of_image = (cascade.rows if self.by == BY_ROWS else cascade.channels) // self.size
        strips = -(-cascade.images * of_image // self.cores)
        if self.by == BY_CHANNELS:
            return self.overhead_seconds + strips * sum(seconds)
        rows = self.size * strips
        begun = -(-rows // cascade.rows)
        rows = rows * cascade.window.stride + begun * cascade.window.kept
        return self.overhead_seconds + rows * first + strips * sum(others)

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The convolutions one by one; what strips of them take is predicted."""
        return tuple((layer, 1) for layer in self.operator.layers)

    def write(self, parts: Sequence[Scheduled]) -> tuple[Sequence[Argument], Any]:
        """The convolutions of a strip, one after the other."""
        write = by_channels if self.by == BY_CHANNELS else by_rows
        return write(self.operator, self.size, self.cores, parts)

    def parts(self, argument: Argument, array: np.ndarray) -> Sequence[np.ndarray]:
        """Constants of strips of channels are packed one by one."""
        if self.by == BY_ROWS:
            return [array]
        return self.operator.parts(argument.tensor, array, self.size)

    def example(self, references: References) -> Example:
        """Random inputs, and results one by one; what a layer differs by others sum up."""
        rng, inputs, allowed = np.random.default_rng(0), dict[str, np.ndarray](), 0.0
        result = np.empty(0)
        for number, layer in enumerate(self.operator.layers):
            values = random_inputs(layer, rng)
            if number:
                values[SOURCE] = result.reshape(values[SOURCE].shape)
            own = {n: v for n, v in values.items() if not number or n != SOURCE}
            inputs |= {argument(number, name): value for name, value in own.items()}
            result = np.asarray(evaluate(layer, values))
            allowed = max(allowed, tolerance(layer, result))
        return inputs, result, (allowed * len(self.products),)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        layers = [Direct(each.mapping.operator, (each,)).to_dict() for each in self.products]
        return super().to_dict() | {self.by: self.size, "layers": layers}


def cascades_of(
    tasks: Sequence[Task], graph: Graph, chooser: Chooser, *, thorough: bool = False
) -> dict[Job, CascadeStrips]:
    """The cascades of a network that are predicted to be faster than their convolutions.

    Args:
        tasks: of the network.
        graph: of the network.
        chooser: of the machine.
        thorough: search their kernels as long as before a measurement.
    """
    if not chooser.target(()).cached:
        return {}
    places: dict[Cascade, list[tuple[Group, ...]]] = {}
    for place in _places(tasks, graph):
        places.setdefault(Cascade(tuple(group.operator for group in place)), []).append(place)
    found: list[tuple[float, CascadeStrips]] = []
    by_group = {group: task for task in tasks for group in task.groups}
    for cascade, (groups, *_) in places.items():
        apart = _apart([by_group[group] for group in groups], chooser)
        if (strips := _chosen(cascade, apart, chooser)) is not None:
            found.append((strips.predicted - apart, strips))
    inside: set[Group] = set()
    cascades: dict[Job, CascadeStrips] = {}
    for _, strips in sorted(found, key=lambda each: each[0]):
        cascade, free = strips.operator, list[CallSite]()
        for groups in places[cascade]:
            if not inside.intersection(groups):  # two of the same cascade may overlap
                free.append(_joined(cascade, groups))
                inside.update(groups)
        longer: CascadeStrips | None = strips
        if free and thorough:
            longer = of_strips(cascade, strips.by, strips.size, chooser, thorough=True)
        if free and longer is not None:
            cascades[Job(cascade, tuple(free))] = longer
    return cascades


def _joined(cascade: Cascade, groups: Sequence[Group]) -> CallSite:
    """Groups as one place."""
    values = {
        argument(number, name): value
        for number, group in enumerate(groups)
        for name, value in group.arguments.items()
    }
    nodes = tuple(node for group in groups for node in group.nodes)
    return CallSite({tensor.name: values[tensor.name] for tensor in cascade.inputs}, nodes)


def _apart(tasks: Sequence[Task], chooser: Chooser) -> float:
    """Predicted seconds of convolutions one by one; 0 if the engine computes one of them.

    Of a kernel alone the model says what it takes when its tensors are where they have room. What
    one makes for the next goes there, and comes back.
    """
    machine = chooser.target(())
    passed = (task.operator.result.nbytes for task in tasks[:-1])
    try:
        alone = sum(predict_lowering(task, chooser).predicted for task in tasks)
    except AmosError:
        return 0.0
    return alone + sum(moving(machine, size, size) - machine.launch for size in passed)


def _chosen(cascade: Cascade, apart: float, chooser: Chooser) -> CascadeStrips | None:
    """What the model thinks best of a cascade; ``None`` if it takes longer than one by one."""
    if max(each.elements for each in (*cascade.inputs, cascade.result)) > MOST_ELEMENTS:
        return None
    machine = chooser.target(())
    # By channels the same is computed as one by one, so the model errs alike.
    worth = {BY_ROWS: WORTH * apart, BY_CHANNELS: apart}
    ways = (of_strips(cascade, by, size, chooser) for by, size in _cuts(cascade, machine))
    choices = [way for way in ways if way is not None and way.predicted < worth[way.by]]
    return min(choices, key=lambda choice: choice.predicted, default=None)


def of_strips(
    cascade: Cascade, by: str, size: int, chooser: Chooser, *, thorough: bool = False
) -> CascadeStrips | None:
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
        products = tuple(
            # All of them are compiled as one module.
            replace(chooser.core.predicted(part, thorough=thorough), implementation="native")
            for part in parts
        )
    except AmosError:
        return None  # one of them stays with the engine
    overhead_seconds = machine.launch
    if by == BY_ROWS:  # the model takes what a strip reads and stores to be near its core
        read = sum(each.nbytes for each in cascade.inputs)
        overhead_seconds = moving(machine, read, cascade.result.nbytes)
    return CascadeStrips(cascade, products, by, size, machine.cores, overhead_seconds)


def _cuts(cascade: Cascade, machine: Machine) -> Iterator[tuple[str, int]]:
    """What strips may be of, and their sizes, each at least twice the one before."""
    ways: list[tuple[str, list[int]]] = []
    if _of_rows(cascade) and not _stays(cascade, machine):
        ways.append((BY_ROWS, _heights(cascade, machine)))
    if _of_channels(cascade) and not _has_room(cascade, machine):
        ways.append((BY_CHANNELS, _widths(cascade, machine)))
    for by, sizes in ways:
        last = 0
        for size in sizes:
            if size >= 2 * last:  # those between hardly differ
                yield by, size
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
    if not _is_pointwise(first) or not all(map(_by_rows, cascade.layers)):
        return False
    # What is kept is copied at once, and rows that nothing reads are not made.
    return 0 <= cascade.window.kept <= cascade.window.stride * second.extents[ROWS]


def _by_rows(operator: Operator) -> bool:
    """Whether an epilogue reads tensors by rows of all images in order, or the same for all."""
    whole = [(ROWS,)] if operator.extents[IMAGES] == 1 else [(IMAGES,), (ROWS,)]
    for load in operator.epilogue_loads:
        names = [index.names for index in load.indices]
        if names[: len(whole)] == whole:
            del names[: len(whole)]
        if any({IMAGES, ROWS}.intersection(each) for each in names):
            return False
    return True


def _is_pointwise(operator: Operator) -> bool:
    """Whether a convolution reads one element of each channel, of all rows one after the other."""
    taps = all(operator.extents.get(tap, 1) == 1 for tap in "rs")
    if not taps or Window.of(operator) != Window(1, 1, 0):
        return False
    return source_of(operator).tensor.shape[1] == operator.extents[ROWS]  # none of padding below


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


def _places(tasks: Sequence[Task], graph: Graph) -> Iterator[tuple[Group, ...]]:
    """Groups that could be a cascade, two and three."""
    groups = [group for task in tasks for group in task.groups if _fits(group.operator)]
    dense = [group for group in groups if group.operator.name == _DENSE]
    making = {group.result.number: group for group in dense}
    sources = ((group.arguments[SOURCE], group) for group in dense)
    reading = {source.number: group for source, group in sources if isinstance(source, Node)}
    for group in groups:
        source = group.arguments[SOURCE]
        if group.operator.name != _DEPTHWISE or not isinstance(source, Node):
            continue
        before = making.get(source.number)
        if before is None or not _only(before, group, graph):
            continue
        yield before, group
        behind = reading.get(group.result.number)
        if behind is not None and _is_pointwise(behind.operator) and _only(group, behind, graph):
            yield before, group, behind


def _fits(operator: Operator) -> bool:
    """Whether a convolution may be part of a cascade."""
    if operator.name not in (_DENSE, _DEPTHWISE) or operator.further or operator.prologues:
        return False
    if SOURCE in operator.constants:  # packed ahead, as no strips are
        return False
    if any(str(each.dtype) in HALVES for each in (*operator.inputs, operator.result)):
        return False
    same = operator.result.shape == operator.output.tensor.shape
    return same and operator.stored.indices == operator.output.indices


def _only(one: Group, other: Group, graph: Graph) -> bool:
    """Whether nothing but the source of another group is what a group makes."""
    result, inside = one.result, set(other.nodes)
    beside = (each for name, each in other.arguments.items() if name != SOURCE)
    kinds = {str(each.operator.output.tensor.dtype) for each in (one, other)}
    return (
        # Sums of integers are exact, those of floats are not; a check allows for one or the other.
        len(kinds) == 1
        and other.arguments[SOURCE] is result
        and inside.issuperset(graph.users[result.number])
        and result.number not in graph.returned
        and all(each is not result for each in beside)
    )
