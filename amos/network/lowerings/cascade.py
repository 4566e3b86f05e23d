"""Convolutions one behind the other as a chain whose rows roll: which, in bands of which height.

Computed one by one, each sends its results to memory, or to a cache that all cores share. In bands
of rows they stay in the caches near a core (Alwani et al., *Fused-layer CNN accelerators*, MICRO
2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.model import predict_chain, temporary_bytes
from amos.chains.tiling import Tiling
from amos.chains.trials import ChainOption
from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.machine import Machine
from amos.network.attention import ChainSite
from amos.network.candidates import predict_transfer
from amos.network.groups import CallSite, Group, Job, Task
from amos.network.lowerings.base import SAFETY_FACTOR
from amos.network.lowerings.cascade_matching import (
    IMAGES,
    ROWS,
    match_cascades,
)
from amos.network.lowerings.chains import NO_RECORDS, FusedChain, put_recorded_first
from amos.network.lowerings.choosing import list_lowerings, predict_lowering
from amos.network.network import Network
from amos.records import Record

#: Share of a core's private cache that intermediate tensors may take.
_SHARE = 0.5


def choose_cascades(
    network: Network,
    chooser: Chooser,
    count: int = 1,
    ranked: Mapping[str, Sequence[Record]] = NO_RECORDS,
) -> dict[Job, tuple[FusedChain, ...]]:
    """Choose the cascades of a network that are faster than their convolutions.

    By the records, if they have both, else by the model. Where cascades overlap, the one that is
    predicted to save most is chosen, or none if its records refuse it.

    Args:
        count: of kernels of a cascade, the fastest first.
    """
    if not chooser.target(()).cached:
        return {}
    sites: dict[Chain, list[ChainSite]] = {}
    for site in match_cascades(network.tasks, network.graph):
        sites.setdefault(site.chain, []).append(site)
    ranking: dict[Chain, tuple[FusedChain, ...]] = {}
    savings: dict[Chain, float] = {}
    refused: set[Chain] = set()
    by_group = {group: task for task in network.tasks for group in task.groups}
    _search_in_parallel(sites, chooser)
    for cascade, (site, *_) in sites.items():
        if not (modelled := _lower_bands(cascade, chooser)):
            continue
        kernels = put_recorded_first(modelled, chooser, count, ranked)
        tasks = [by_group[group] for group in site.groups]
        predicted = _predict_separate(tasks, chooser)
        measured = None if kernels[0].measured is None else _find_measured(tasks, chooser, ranked)
        if measured is None and modelled[0].predicted >= SAFETY_FACTOR * predicted:
            continue
        if measured is not None and kernels[0].expected >= measured:
            refused.add(cascade)
        # Predictions alone compare those that overlap: not all of them have records.
        ranking[cascade], savings[cascade] = kernels, predicted - modelled[0].predicted
    fused: set[Group] = set()
    calls: dict[Chain, list[CallSite]] = {}
    for cascade in sorted(ranking, key=savings.__getitem__, reverse=True):
        for site in sites[cascade]:
            if not fused.intersection(site.groups):  # two of the same cascade may overlap
                calls.setdefault(cascade, []).append(site)
                fused.update(site.groups)
    return {
        Job(each, tuple(places)): ranking[each]
        for each, places in calls.items()
        if each not in refused
    }


def _search_in_parallel(sites: Mapping[Chain, Sequence[ChainSite]], chooser: Chooser) -> None:
    """Search the kernels of cascades, and of their convolutions by themselves, on all cores."""
    machine = chooser.target(())
    groups = (group for places in sites.values() for group in places[0].groups)
    chooser.search_in_parallel(group.operator for group in groups)
    chooser.core.search_in_parallel(
        slot.operator
        for cascade in sites
        for bands in list_bands(cascade, machine)
        for slot in slots_of(bands, frozenset())
    )


def _find_measured(
    tasks: Sequence[Task], chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> float | None:
    """Return the measured seconds of convolutions; ``None`` unless records have all of them."""
    total = 0.0
    for task in tasks:
        try:
            lowering = next(list_lowerings(task, chooser, ranked).rank(1, chooser))
        except AmosError:
            return None
        if lowering.measured is None:
            return None
        total += lowering.measured
    return total


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


def _lower_bands(cascade: Chain, chooser: Chooser) -> list[FusedChain]:
    """Lower a cascade to bands of different heights, those that are predicted fastest first."""
    bands = list_bands(cascade, chooser.target(()))
    lowerings = filter(None, (lower_cascade(each, chooser) for each in bands))
    return sorted(lowerings, key=lambda lowering: lowering.predicted)


def lower_cascade(bands: Tiling, chooser: Chooser) -> FusedChain | None:
    """Lower a cascade to a kernel; ``None`` if no instruction computes one of its layers."""
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


def list_bands(cascade: Chain, machine: Machine) -> Iterator[Tiling]:
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
