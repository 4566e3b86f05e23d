"""Convolutions of a network as cascades (:mod:`amos.operators.cascade`): which, in which bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.errors import AmosError
from amos.explore.choosing import Chooser
from amos.ir import Operator
from amos.machine import Machine
from amos.measure.reference import References, tolerance
from amos.network.candidates import predict_transfer
from amos.network.graph import Graph
from amos.network.groups import CallSite, Group, Job, Task
from amos.network.lowerings.base import SAFETY_FACTOR, Example, Lowering, ScheduledProduct
from amos.network.lowerings.cascade_matching import is_pointwise, match_cascades
from amos.network.lowerings.cascade_tiles import write_bands
from amos.network.lowerings.choosing import predict_lowering
from amos.network.lowerings.direct import Direct
from amos.operators.cascade import (
    IMAGES,
    ROWS,
    SOURCE,
    Cascade,
    argument,
    rows_of,
)
from amos.validate import evaluate, random_inputs

#: Share of a core's private cache that intermediate tensors may take.
_SHARE = 0.5


@dataclass(frozen=True)
class TiledCascade(Lowering):
    """A cascade in bands: a core computes all convolutions of one, each by a product of its own.

    The first product computes a single row.

    Attributes:
        rows: of the result in a band.
        cores: number of cores.
        overhead_seconds: predicted, to start the kernel and to move tensors beyond a core's caches.
    """

    operator: Cascade
    rows: int
    cores: int
    overhead_seconds: float
    #: LLVM keeps no accumulators in registers if layers share the memory of staged operands.
    shared: ClassVar = False

    def total(self, seconds: Sequence[float]) -> float:
        """Return the seconds of the bands of a core, and the overhead."""
        cascade, (first, *following) = self.operator, seconds
        band_count = -(-cascade.images * (cascade.rows // self.rows) // self.cores)
        rows = self.rows * band_count
        image_count = -(-rows // cascade.rows)
        rows = rows * cascade.window.stride + image_count * cascade.window.halo
        return self.overhead_seconds + rows * first + band_count * sum(following)

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The convolutions one by one; times of their bands are predicted."""
        return tuple((layer, 1) for layer in self.operator.layers)

    def write(self, products: Sequence[ScheduledProduct]) -> tuple[Sequence[Argument], Any]:
        """Write the convolutions of a band, one after the other."""
        return write_bands(self.operator, self.rows, self.cores, products)

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
        return super().to_dict() | {"rows": self.rows, "layers": layers}


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
        for rows in _list_heights(cascade, machine)
        for layer in _layers_of(cascade, rows)
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
    """Choose the bands that are predicted fastest; ``None`` if separate kernels are faster."""
    heights = _list_heights(cascade, chooser.target(()))
    tilings = (lower_cascade(cascade, rows, chooser) for rows in heights)
    threshold = SAFETY_FACTOR * separate_seconds
    faster = [each for each in tilings if each and each.predicted < threshold]
    return min(faster, key=lambda tiled: tiled.predicted, default=None)


def lower_cascade(cascade: Cascade, rows: int, chooser: Chooser) -> TiledCascade | None:
    """Lower a cascade to bands of some rows; ``None`` if no instruction computes one of its layers.

    Args:
        cascade: what is computed.
        rows: of the result in a band, a divisor of all.
        chooser: of the machine.
    """
    machine = chooser.target(())
    try:
        products = tuple(
            # All of them are compiled as one module.
            replace(chooser.core.choose(layer), implementation="native")
            for layer in _layers_of(cascade, rows)
        )
    except AmosError:
        return None
    # The model takes inputs and results of a band to be in a private cache.
    read = sum(each.stored_bytes for each in cascade.inputs)
    overhead_seconds = predict_transfer(machine, read, cascade.result.stored_bytes)
    return TiledCascade(cascade, products, rows, machine.cores, overhead_seconds)


def _layers_of(cascade: Cascade, rows: int) -> list[Operator]:
    """Return the convolutions of a band."""
    first, *following = cascade.layers
    return [rows_of(first, 1), *(rows_of(each, rows) for each in following)]


def _list_heights(cascade: Cascade, machine: Machine) -> list[int]:
    """List the rows that a band may have, each number at least twice the one before."""
    if max(each.elements for each in (*cascade.inputs, cascade.result)) > MOST_ELEMENTS:
        return []
    if not _fits_bands(cascade) or _has_resident_intermediate(cascade, machine):
        return []
    stride, halo = cascade.window.stride, cascade.window.halo
    capacity = _SHARE * _private_cache_bytes(machine)
    heights = list[int]()
    for rows in range(1, cascade.rows + 1):
        is_fitting = stride * rows >= halo and sum(cascade.between(rows)) <= capacity
        if cascade.rows % rows == 0 and is_fitting and (not heights or rows >= 2 * heights[-1]):
            heights.append(rows)  # those between hardly differ
    return heights


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


def _has_resident_intermediate(cascade: Cascade, machine: Machine) -> bool:
    """Whether the first intermediate tensor fits in the private caches of all cores anyway."""
    return cascade.layers[0].result.stored_bytes <= _private_cache_bytes(machine) * machine.cores


def _private_cache_bytes(machine: Machine) -> int:
    """Return the capacity of the largest private cache of a core."""
    own = (level.capacity for level in machine.levels if level.units >= machine.cores)
    return max(own, default=0)
