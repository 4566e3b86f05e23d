"""Groups of a network that one kernel computes: cascades, and chains such as attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.explore.choosing import Chooser
from amos.network.groups import Job
from amos.network.lowerings.cascade import choose_cascades
from amos.network.lowerings.chains import NO_RECORDS, FusedChain, choose_chains
from amos.network.network import Network
from amos.records import Record


def choose_fused(
    network: Network,
    chooser: Chooser,
    count: int = 1,
    ranked: Mapping[str, Sequence[Record]] = NO_RECORDS,
) -> dict[Job, tuple[FusedChain, ...]]:
    """Choose what one kernel computes; arguments as of :func:`choose_chains`."""
    cascades = choose_cascades(network, chooser, count, ranked)
    return cascades | choose_chains(network.graph, network.grouping, chooser, count, ranked)
