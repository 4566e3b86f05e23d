"""Groups of a network that one kernel computes as a chain: attention, cascades and MLP blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat

from amos.chains.candidate import slots_of
from amos.chains.tiling import Tiling
from amos.errors import AmosError
from amos.explore.choosing import Chooser
from amos.ir import Chain
from amos.machine import Machine
from amos.network.attention import ChainSite, match_attention
from amos.network.graph import Node
from amos.network.groups import CallSite, Group, Job, Task
from amos.network.lowerings.base import SAFETY_FACTOR, predict_node, predict_transfer
from amos.network.lowerings.cascade import is_layered, list_tilings, lower_chain
from amos.network.lowerings.cascade_matching import match_cascades
from amos.network.lowerings.chains import NO_RECORDS, FusedChain, put_recorded_first
from amos.network.lowerings.choosing import list_lowerings, predict_lowering
from amos.network.network import Network
from amos.records import Record


def match_chains(network: Network) -> Iterator[ChainSite]:
    """Yield the groups of a network that one kernel could compute; some overlap."""
    yield from match_cascades(network.tasks, network.graph)
    yield from match_attention(network.graph, network.grouping)


def choose_fused(
    network: Network,
    chooser: Chooser,
    count: int = 1,
    ranked: Mapping[str, Sequence[Record]] = NO_RECORDS,
) -> dict[Job, tuple[FusedChain, ...]]:
    """Choose the chains of a network that are faster than their statements as kernels.

    By the records, if they have both, else by the model. Where chains overlap, the one that is
    predicted to save most is chosen.

    Args:
        count: of kernels of a chain, the fastest first; with several, which are going to be
            measured, of bands of all sizes, and also where separate kernels are predicted
            faster, but for bands that roll.
        ranked: records by operator; a kernel that was measured stands before those of the model.
    """
    machine = chooser.target(())
    if not machine.cached:
        return {}
    sites: dict[Chain, list[ChainSite]] = {}
    for site in match_chains(network):
        sites.setdefault(site.chain, []).append(site)
    lowered = _lower_chains(sites, chooser, count)
    ranking: dict[Chain, tuple[FusedChain, ...]] = {}
    savings: dict[Chain, float] = {}
    for chain, (site, *_) in sites.items():
        if not (modelled := lowered[chain]):
            continue
        kernels = put_recorded_first(modelled, chooser, count, ranked)
        predicted = predict_separate(site, modelled[0], chooser)
        measured = None if kernels[0].measured is None else _find_measured(site, chooser, ranked)
        if measured is not None:
            is_faster = kernels[0].expected < measured
        elif modelled[0].candidate.tiling.rolls:
            is_faster = modelled[0].predicted < SAFETY_FACTOR * predicted
        else:  # both do the same work, so model errors cancel
            is_faster = count > 1 or modelled[0].predicted < predicted
        if is_faster:
            # Predictions alone compare those that overlap: not all of them have records.
            ranking[chain], savings[chain] = kernels, predicted - modelled[0].predicted
    fused: set[Group] = set()
    calls: dict[Chain, list[CallSite]] = {}
    for chain in sorted(ranking, key=savings.__getitem__, reverse=True):
        for site in sites[chain]:
            if not fused.intersection(site.groups):  # two of the same chain may overlap
                calls.setdefault(chain, []).append(site)
                fused.update(site.groups)
    return {Job(each, tuple(places)): ranking[each] for each, places in calls.items()}


def _select_bands(tilings: Sequence[Tiling], machine: Machine) -> Sequence[Tiling]:
    """Select the bands that cores share most evenly, of these the largest.

    The model predicts them fastest, so that products of others are not searched.
    """

    def busiest_share(bands: Tiling) -> tuple[float, int]:
        """Return the largest share of the bands that a core has, and the number of bands."""
        return -(-bands.count // machine.cores) / bands.count, bands.count

    return sorted((each for each in tilings if each.rolls), key=busiest_share)[:1]


def predict_separate(site: ChainSite, lowering: FusedChain, chooser: Chooser) -> float:
    """Predict the seconds of a chain's products as kernels, and of plain loops between them.

    Loops compute what the chain does between its products, and move tensors. The model of a single
    kernel takes its tensors to be in the smallest cache that holds them; what one product writes
    for the next one is moved besides.

    Returns:
        seconds, infinite if no instruction computes a product.
    """
    machine = chooser.target(())
    try:
        seconds = sum(predict_lowering(task, chooser).predicted for task in _tasks_of(site))
    except AmosError:
        return float("inf")
    products, steps = lowering.candidate.products, lowering.option.prediction.steps
    if not is_layered(site.chain):
        seconds += sum(x.seconds for x in steps if x.tensor not in products) / machine.cores
    for producer, consumer in pairwise(site.groups):
        if any(value is producer.result for value in consumer.arguments.values()):
            size = producer.operator.result.stored_bytes
            seconds += predict_transfer(machine, size, size) - machine.launch
    return seconds + sum(predict_node(machine, node) for node in _list_loops(site))


def _list_loops(site: ChainSite) -> list[Node]:
    """List the nodes of a chain that are plain loops beside kernels of its products."""
    own = {node.number for group in site.groups for node in group.nodes}
    return [x for x in site.nodes if x.number not in own and x.operation != "Reshape"]


def _tasks_of(site: ChainSite) -> list[Task]:
    return [Task(group.operator, (group,)) for group in site.groups]


def _find_measured(
    site: ChainSite, chooser: Chooser, ranked: Mapping[str, Sequence[Record]]
) -> float | None:
    """Return the measured seconds of separate kernels; ``None`` unless records have all of them."""
    if _list_loops(site):
        return None
    total = 0.0
    for task in _tasks_of(site):
        try:
            lowering = next(list_lowerings(task, chooser, ranked).rank(1, chooser))
        except AmosError:
            return None
        if lowering.measured is None:
            return None
        total += lowering.measured
    return total


def _lower_chains(
    sites: Mapping[Chain, Sequence[ChainSite]], chooser: Chooser, count: int
) -> dict[Chain, tuple[FusedChain, ...]]:
    """Lower chains on all cores; bands that roll after their products, which chains share.

    Args:
        sites: of each chain.
        count: of kernels of a chain.
    """
    machine, bands = chooser.target(()), dict[Chain, Sequence[Tiling]]()
    for chain in filter(is_layered, sites):
        tilings = list_tilings(chain, machine)
        if any(each.rolls for each in tilings):
            bands[chain] = _select_bands(tilings, machine) if count == 1 else tilings
    _search_in_parallel(sites, bands, chooser)
    searched = [chain for chain in sites if chain not in bands]
    keys = [chooser.result_key("chain", chain, count) for chain in searched]
    results = chooser.map_in_processes(
        _lower_alone, searched, repeat(count), keys=keys, lost=lambda _: ()
    )
    lowered = dict(zip(searched, results, strict=True))
    return lowered | {x: lower_chain(x, each, chooser, count) for x, each in bands.items()}


def _lower_alone(chooser: Chooser, chain: Chain, count: int) -> tuple[FusedChain, ...]:
    """Lower a chain whose tilings share no products with those of others."""
    return lower_chain(chain, list_tilings(chain, chooser.target(())), chooser, count)


def _search_in_parallel(
    sites: Mapping[Chain, Sequence[ChainSite]],
    bands: Mapping[Chain, Sequence[Tiling]],
    chooser: Chooser,
) -> None:
    """Search the kernels of all layers, and of their bands that roll, on all cores."""
    chooser.search_in_parallel(
        group.operator for chain in sites for group in sites[chain][0].groups
    )
    chooser.core.search_in_parallel(
        slot.operator
        for tilings in bands.values()
        for each in tilings
        for slot in slots_of(each, frozenset())
    )
