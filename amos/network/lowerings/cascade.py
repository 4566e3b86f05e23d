"""Convolutions one behind the other as a chain whose rows roll: which, in bands of which height.

Computed one by one, each sends its results to memory, or to a cache that all cores share. In bands
of rows they stay in the caches near a core (Alwani et al., *Fused-layer CNN accelerators*, MICRO
2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod

from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.model import predict_chain, temporary_bytes
from amos.chains.tiling import Tiling
from amos.chains.trials import ChainOption
from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError, OperatorError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.machine import Machine
from amos.network.candidates import predict_transfer
from amos.network.graph import Graph
from amos.network.groups import CallSite, Group, Job, Task
from amos.network.lowerings.base import SAFETY_FACTOR
from amos.network.lowerings.cascade_matching import (
    IMAGES,
    ROWS,
    chain_layers,
    layer_tensor,
    match_cascades,
)
from amos.network.lowerings.chains import FusedChain
from amos.network.lowerings.choosing import predict_lowering

#: Share of a core's private cache that intermediate tensors may take.
_SHARE = 0.5


def choose_cascades(tasks: Sequence[Task], graph: Graph, chooser: Chooser) -> dict[Job, FusedChain]:
    """Choose the cascades of a network that are predicted to be faster than their convolutions.

    Where cascades overlap, the one that saves most is chosen.

    Args:
        tasks: of the network.
        graph: of the network.
        chooser: of the machine.
    """
    if not chooser.target(()).cached:
        return {}
    sites: dict[Chain, list[tuple[Group, ...]]] = {}
    for site in match_cascades(tasks, graph):
        with suppress(OperatorError):  # one reads what the other stores in another shape
            sites.setdefault(chain_layers([group.operator for group in site]), []).append(site)
    fastest: dict[Chain, FusedChain] = {}
    changes: dict[Chain, float] = {}
    by_group = {group: task for task in tasks for group in task.groups}
    _search_in_parallel(sites, chooser)
    for cascade, (groups, *_) in sites.items():
        separate_seconds = _predict_separate([by_group[group] for group in groups], chooser)
        bands = _choose_bands(cascade, separate_seconds, chooser)
        if bands is not None:
            fastest[cascade], changes[cascade] = bands, bands.predicted - separate_seconds
    fused: set[Group] = set()
    calls: dict[Chain, list[CallSite]] = {}
    for cascade in sorted(fastest, key=changes.__getitem__):
        for groups in sites[cascade]:
            if not fused.intersection(groups):  # two of the same cascade may overlap
                calls.setdefault(cascade, []).append(_join_groups(cascade, groups))
                fused.update(groups)
    return {Job(each, tuple(places)): fastest[each] for each, places in calls.items()}


def _search_in_parallel(sites: Mapping[Chain, Sequence[Sequence[Group]]], chooser: Chooser) -> None:
    """Search the kernels of cascades, and of their convolutions by themselves, on all cores."""
    machine = chooser.target(())
    groups = (group for places in sites.values() for group in places[0])
    chooser.search_in_parallel(group.operator for group in groups)
    chooser.core.search_in_parallel(
        slot.operator
        for cascade in sites
        for bands in _list_bands(cascade, machine)
        for slot in slots_of(bands, frozenset())
    )


def _join_groups(cascade: Chain, groups: Sequence[Group]) -> CallSite:
    """Join groups into the site of one call."""
    values = {
        layer_tensor(number, len(groups), name): value
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


def _choose_bands(cascade: Chain, separate_seconds: float, chooser: Chooser) -> FusedChain | None:
    """Choose the bands that are predicted fastest; ``None`` if separate kernels are faster."""
    bands = _list_bands(cascade, chooser.target(()))
    lowerings = (lower_cascade(each, chooser) for each in bands)
    threshold = SAFETY_FACTOR * separate_seconds
    faster = [each for each in lowerings if each and each.predicted < threshold]
    return min(faster, key=lambda lowering: lowering.predicted, default=None)


def lower_cascade(bands: Tiling, chooser: Chooser) -> FusedChain | None:
    """Lower a cascade to a kernel; ``None`` if no instruction computes one of its layers.

    Args:
        bands: of its rows.
        chooser: of the machine.
    """
    machine, cascade = chooser.target(()), bands.chain
    slots = slots_of(bands, frozenset())
    try:
        products = {slot.tensor: chooser.core.choose(slot.operator) for slot in slots}
    except AmosError:
        return None
    seconds = {name: product.prediction.seconds for name, product in products.items()}
    prediction = predict_chain(bands, seconds, False, machine)
    # The model takes inputs and results of a band to be in a private cache.
    read = sum(each.stored_bytes for each in cascade.inputs)
    transfer = predict_transfer(machine, read, cascade.result.stored_bytes) - machine.launch
    prediction = replace(prediction, seconds=prediction.seconds + transfer)
    candidate = ChainCandidate(bands, {name: each.candidate for name, each in products.items()})
    mappings = prod(product.mappings for product in products.values())
    return FusedChain(cascade, (), ChainOption(candidate, prediction, mappings, ()))


def bands_of(cascade: Chain, rows: int) -> Tiling:
    """The bands of some rows of each image.

    Raises:
        ScheduleError: a band has no rows of the one before.
    """
    return Tiling.of(cascade, {IMAGES: 1, ROWS: rows}, rolling=ROWS)


def _list_bands(cascade: Chain, machine: Machine) -> Iterator[Tiling]:
    """List bands, each of at least twice the rows of the last; those between hardly differ."""
    if max(each.elements for each in (*cascade.inputs, cascade.result)) > MOST_ELEMENTS:
        return
    if _has_resident_intermediate(cascade, machine):
        return
    capacity = _SHARE * machine.private_cache
    last, count = 0, cascade.extents[ROWS]
    for rows in (n for n in range(1, count + 1) if count % n == 0):
        if rows < 2 * last:
            continue
        try:
            bands = bands_of(cascade, rows)
        except ScheduleError:
            return
        halos = (each.halo <= each.fresh for each in bands.layout.rolling.values())
        if all(halos) and temporary_bytes(bands) <= capacity:
            last = rows
            yield bands


def _has_resident_intermediate(cascade: Chain, machine: Machine) -> bool:
    """Whether the first intermediate tensor fits in the private caches of all cores anyway."""
    return cascade.temporaries[0].stored_bytes <= machine.private_cache * machine.cores
