"""Seconds that rounding saves of attention, whose two products one kernel may compute."""

from __future__ import annotations

import math
from collections.abc import Mapping

from amos.explore.choosing import Chooser
from amos.network.attention import ChainSite, match_attention
from amos.network.lowerings.cascade import list_tilings, lower_chain
from amos.network.lowerings.fused import predict_separate
from amos.network.network import Network
from amos.network.precision.rounding import is_product


def predict_attention(
    plain: Network, rounded: Network, chooser: Chooser
) -> dict[int, tuple[float, float]]:
    """Predict each attention of a network, as one kernel or several, whichever is faster.

    None that no kernel computes as a whole; its products are then tasks as any other.

    Returns:
        seconds of each product as it is, and with rounded factors, by its place among all products:
        half of those of both, infinite where no instruction multiplies these.
    """
    seconds: dict[object, float] = {}

    def predict(site: ChainSite | None) -> float:
        if site is None:
            return math.inf
        if site.chain not in seconds:
            tilings = list_tilings(site.chain, chooser.target(()))
            lowerings = lower_chain(site.chain, tilings, chooser, 1)
            separate = [predict_separate(site, each, chooser) for each in lowerings]
            fused = [each.predicted for each in lowerings]
            seconds[site.chain] = min([*separate, *fused], default=math.inf)
        return seconds[site.chain]

    sites, times = _sites_by_places(rounded), dict[int, tuple[float, float]]()
    for places, site in _sites_by_places(plain).items():
        if math.isfinite(before := predict(site)):
            times |= dict.fromkeys(places, (before / 2, predict(sites.get(places)) / 2))
    return times


def _sites_by_places(network: Network) -> Mapping[tuple[int, int], ChainSite]:
    """Return the attentions of a network, by the places of their products among all products."""
    products = [node for node in network.graph.nodes if is_product(node)]
    places = {node.number: place for place, node in enumerate(products)}

    sites = {}
    for site in match_attention(network.graph, network.grouping):
        first, second = (places[group.nodes[0].number] for group in site.groups)
        sites[first, second] = site
    return sites
