"""Convolutions of a network as cascades (:mod:`amos.operators.cascade`): which, in which tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.errors import AmosError
from amos.explore.choosing import Chooser
from amos.ir import Affine, Operator
from amos.machine import Machine
from amos.measure.reference import References, tolerance
from amos.network.candidates import predict_transfer
from amos.network.graph import Graph
from amos.network.groups import CallSite, Group, Job, Task
from amos.network.lowerings.base import SAFETY_FACTOR, Example, Lowering, ScheduledProduct
from amos.network.lowerings.cascade_matching import is_pointwise, match_cascades
from amos.network.lowerings.cascade_tiles import write_bands, write_channel_blocks
from amos.network.lowerings.choosing import predict_lowering
from amos.network.lowerings.direct import Direct
from amos.operators.cascade import (
    IMAGES,
    ROWS,
    SOURCE,
    Cascade,
    argument,
    channel_of,
    channels_of,
    rows_of,
    source_of,
)
from amos.validate import evaluate, random_inputs

#: Dimension that is cut: tiles are bands of rows, or channel blocks of a whole image.
BY_ROWS, BY_CHANNELS = "rows", "channels"
#: Share of a core's private cache that intermediate tensors may take.
_SHARE = 0.5


@dataclass(frozen=True)
class TiledCascade(Lowering):
    """A cascade in tiles: a core computes all convolutions of one, each by a product of its own.

    In bands of rows the first product computes a single row.

    Attributes:
        by: dimension that is cut: ``"rows"`` or ``"channels"``.
        size: rows or channels of the result in a tile.
        cores: number of cores.
        overhead_seconds: predicted, to start the kernel and to move tensors beyond a core's caches.
    """

    operator: Cascade
    by: str
    size: int
    cores: int
    overhead_seconds: float
    #: LLVM keeps no accumulators in registers if layers share the memory of staged operands.
    shared: ClassVar = False

    def total(self, seconds: Sequence[float]) -> float:
        """Return the seconds of the tiles of a core, and the overhead."""
        cascade, (first, *following) = self.operator, seconds
        tiles_of_image = (cascade.rows if self.by == BY_ROWS else cascade.channels) // self.size
        tile_count = -(-cascade.images * tiles_of_image // self.cores)
        if self.by == BY_CHANNELS:
            return self.overhead_seconds + tile_count * sum(seconds)
        rows = self.size * tile_count
        image_count = -(-rows // cascade.rows)
        rows = rows * cascade.window.stride + image_count * cascade.window.halo
        return self.overhead_seconds + rows * first + tile_count * sum(following)

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The convolutions one by one; times of their tiles are predicted."""
        return tuple((layer, 1) for layer in self.operator.layers)

    def write(self, products: Sequence[ScheduledProduct]) -> tuple[Sequence[Argument], Any]:
        """Write the convolutions of a tile, one after the other."""
        write = write_channel_blocks if self.by == BY_CHANNELS else write_bands
        return write(self.operator, self.size, self.cores, products)

    def split(self, argument: Argument, array: np.ndarray) -> Sequence[np.ndarray]:
        """Split constants into channel blocks, which are packed one by one."""
        if self.by == BY_ROWS:
            return [array]
        return self.operator.parts(argument.tensor, array, self.size)

    def example(self, references: References) -> Example:
        """Draw inputs and compute layer by layer; errors of the layers add up."""
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


def choose_cascades(
    tasks: Sequence[Task], graph: Graph, chooser: Chooser
) -> dict[Job, TiledCascade]:
    """Choose the cascades of a network that are predicted to be faster than their convolutions.

    Where cascades overlap, the one that saves most is chosen.

    Args:
        tasks: of the network.
        graph: of the network.
        chooser: of the machine.
    """
    if not chooser.target(()).cached:
        return {}
    sites: dict[Cascade, list[tuple[Group, ...]]] = {}
    for site in match_cascades(tasks, graph):
        sites.setdefault(Cascade(tuple(group.operator for group in site)), []).append(site)
    tilings: dict[Cascade, TiledCascade] = {}
    changes: dict[Cascade, float] = {}
    by_group = {group: task for task in tasks for group in task.groups}
    _search_in_parallel(sites, chooser)
    for cascade, (groups, *_) in sites.items():
        separate_seconds = _predict_separate([by_group[group] for group in groups], chooser)
        tiled = _choose_tiling(cascade, separate_seconds, chooser)
        if tiled is not None:
            tilings[cascade], changes[cascade] = tiled, tiled.predicted - separate_seconds
    fused: set[Group] = set()
    calls: dict[Cascade, list[CallSite]] = {}
    for cascade in sorted(tilings, key=changes.__getitem__):
        for groups in sites[cascade]:
            if not fused.intersection(groups):  # two of the same cascade may overlap
                calls.setdefault(cascade, []).append(_join_groups(cascade, groups))
                fused.update(groups)
    return {Job(each, tuple(places)): tilings[each] for each, places in calls.items()}


def _search_in_parallel(
    sites: Mapping[Cascade, Sequence[Sequence[Group]]], chooser: Chooser
) -> None:
    """Search the kernels of cascades, and of their convolutions by themselves, on all cores."""
    machine = chooser.target(())
    groups = (group for places in sites.values() for group in places[0])
    chooser.search_in_parallel(group.operator for group in groups)
    chooser.core.search_in_parallel(
        layer
        for cascade in sites
        for by, size in _list_tilings(cascade, machine)
        for layer in _layers_of(cascade, by, size)
    )


def _join_groups(cascade: Cascade, groups: Sequence[Group]) -> CallSite:
    """Join groups into the site of one call."""
    values = {
        argument(number, name): value
        for number, group in enumerate(groups)
        for name, value in group.arguments.items()
    }
    nodes = tuple(node for group in groups for node in group.nodes)
    return CallSite({tensor.name: values[tensor.name] for tensor in cascade.inputs}, nodes)


def _predict_separate(tasks: Sequence[Task], chooser: Chooser) -> float:
    """Predict the seconds of convolutions as kernels of their own; 0 if one has no instruction.

    The model of a single kernel takes its tensors to be in the smallest cache that holds them.
    Intermediate results are written there and read again, which is added here.
    """
    machine = chooser.target(())
    intermediate_bytes = (task.operator.result.stored_bytes for task in tasks[:-1])
    try:
        seconds = sum(predict_lowering(task, chooser).predicted for task in tasks)
    except AmosError:
        return 0.0
    return seconds + sum(
        predict_transfer(machine, n, n) - machine.launch for n in intermediate_bytes
    )


def _choose_tiling(
    cascade: Cascade, separate_seconds: float, chooser: Chooser
) -> TiledCascade | None:
    """Choose the tiles that are predicted fastest; ``None`` if separate kernels are faster."""
    machine = chooser.target(())
    # Channel blocks do the same work as separate kernels, so model errors cancel.
    thresholds = {BY_ROWS: SAFETY_FACTOR * separate_seconds, BY_CHANNELS: separate_seconds}
    tilings = (lower_cascade(cascade, by, n, chooser) for by, n in _list_tilings(cascade, machine))
    faster = [each for each in tilings if each and each.predicted < thresholds[each.by]]
    return min(faster, key=lambda tiled: tiled.predicted, default=None)


def lower_cascade(cascade: Cascade, by: str, size: int, chooser: Chooser) -> TiledCascade | None:
    """Lower a cascade to tiles of a size; ``None`` if no instruction computes one of its layers.

    Args:
        cascade: what is computed.
        by: dimension that is cut.
        size: rows or channels of the result in a tile, a divisor of all.
        chooser: of the machine.
    """
    machine = chooser.target(())
    try:
        products = tuple(
            # All of them are compiled as one module.
            replace(chooser.core.choose(layer), implementation="native")
            for layer in _layers_of(cascade, by, size)
        )
    except AmosError:
        return None
    overhead_seconds = machine.launch
    if by == BY_ROWS:  # the model takes inputs and results of a band to be in a private cache
        read = sum(each.stored_bytes for each in cascade.inputs)
        overhead_seconds = predict_transfer(machine, read, cascade.result.stored_bytes)
    return TiledCascade(cascade, products, by, size, machine.cores, overhead_seconds)


def _layers_of(cascade: Cascade, by: str, size: int) -> list[Operator]:
    """Return the convolutions of a tile."""
    first, *following = cascade.layers
    if by == BY_ROWS:
        return [rows_of(first, 1), *(rows_of(each, size) for each in following)]
    layers = [channels_of(first, size, last=False)]
    return [*layers, *(channels_of(each, size, last=True) for each in following)]


def _list_tilings(cascade: Cascade, machine: Machine) -> Iterator[tuple[str, int]]:
    """Yield dimensions that may be cut and sizes of tiles, each at least twice the one before."""
    if max(each.elements for each in (*cascade.inputs, cascade.result)) > MOST_ELEMENTS:
        return
    tilings: list[tuple[str, list[int]]] = []
    if _fits_bands(cascade) and not _has_resident_intermediate(cascade, machine):
        tilings.append((BY_ROWS, _list_heights(cascade, machine)))
    if _fits_channel_blocks(cascade) and not _is_resident(cascade, machine):
        tilings.append((BY_CHANNELS, _list_widths(cascade, machine)))
    for by, sizes in tilings:
        last = 0
        for size in sizes:
            if size >= 2 * last:  # those between hardly differ
                yield by, size
                last = size


def _list_heights(cascade: Cascade, machine: Machine) -> list[int]:
    """List the rows that a band may have."""
    stride, halo = cascade.window.stride, cascade.window.halo
    capacity = _SHARE * _private_cache_bytes(machine)
    return [
        rows
        for rows in _divisors(cascade.rows)
        if stride * rows >= halo and sum(cascade.between(rows)) <= capacity
    ]


def _list_widths(cascade: Cascade, machine: Machine) -> list[int]:
    """List the channels that a block may have."""
    first, images = cascade.layers[0], cascade.images
    image_bytes = source_of(first).tensor.stored_bytes // images
    intermediate_bytes = first.result.stored_bytes // images // cascade.channels
    element_bytes = cascade.result.stored_bytes // cascade.result.elements
    capacity = _SHARE * _private_cache_bytes(machine)
    return [
        channels
        for channels in _divisors(cascade.channels)
        # Each block reads the image again, and stores whole cache lines.
        if image_bytes + channels * intermediate_bytes <= capacity
        if channels * element_bytes % machine.line == 0
        if cascade.channels // channels * images >= machine.cores
    ]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _fits_bands(cascade: Cascade) -> bool:
    """Whether a cascade can be computed band by band."""
    first, second, *_ = cascade.layers
    if not is_pointwise(first) or not all(map(_reads_by_rows, cascade.layers)):
        return False
    # The halo is copied at once; rows that nothing reads are not computed.
    return 0 <= cascade.window.halo <= cascade.window.stride * second.extents[ROWS]


def _reads_by_rows(operator: Operator) -> bool:
    """Whether an epilogue reads tensors by rows of all images in order, or the same for all."""
    whole = [(ROWS,)] if operator.extents[IMAGES] == 1 else [(IMAGES,), (ROWS,)]
    for load in operator.epilogue_loads:
        names = [index.names for index in load.indices]
        if names[: len(whole)] == whole:
            del names[: len(whole)]
        if any({IMAGES, ROWS}.intersection(each) for each in names):
            return False
    return True


def _fits_channel_blocks(cascade: Cascade) -> bool:
    """Whether a cascade can be computed block by block of its channels."""
    if len(cascade.layers) > 2:
        return False  # the next convolution reads all channels
    channel = channel_of(cascade.layers[1])
    of_source = source_of(cascade.layers[1]).indices[-1]
    return of_source == Affine.of({channel: 1}) and all(map(_reads_by_channels, cascade.layers))


def _reads_by_channels(operator: Operator) -> bool:
    """Whether channels and images are dimensions of all that a convolution reads."""
    own = {channel_of(operator), IMAGES}
    return all(
        index.names == (name,) and index == Affine.of({name: 1})
        for load in (*operator.sources, *operator.epilogue_loads)
        for index in load.indices
        for name in own.intersection(index.names)
    )


def _has_resident_intermediate(cascade: Cascade, machine: Machine) -> bool:
    """Whether the first intermediate tensor fits in the private caches of all cores anyway."""
    return cascade.layers[0].result.stored_bytes <= _private_cache_bytes(machine) * machine.cores


def _is_resident(cascade: Cascade, machine: Machine) -> bool:
    """Whether the working set of a cascade fits in the private caches of all cores."""
    tensors = (*cascade.inputs, *(layer.result for layer in cascade.layers))
    capacity = _SHARE * _private_cache_bytes(machine) * machine.cores
    return sum(tensor.stored_bytes for tensor in tensors) <= capacity


def _private_cache_bytes(machine: Machine) -> int:
    """Return the capacity of the largest private cache of a core."""
    own = (level.capacity for level in machine.levels if level.units >= machine.cores)
    return max(own, default=0)
