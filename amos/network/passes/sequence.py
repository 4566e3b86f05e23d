"""The passes over a graph ahead of its division into groups, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amos.network.graph import Graph
from amos.network.passes.channels import fill_channels
from amos.network.passes.denormals import without_denormals
from amos.network.passes.layouts import channels_last
from amos.network.passes.masks import bound_masked_scores
from amos.network.passes.quantized import integer_arithmetic
from amos.network.passes.simplify import fold_scales, merge_moves, without_idle_taps

#: Passes over a graph before it is divided into groups, in this order.
PASSES: Mapping[str, Callable[[Graph], Graph]] = {
    "merge_moves": merge_moves,
    "bound_masked_scores": bound_masked_scores,
    "without_idle_taps": without_idle_taps,
    "integer_arithmetic": integer_arithmetic,
    "fold_scales": fold_scales,
    "fill_channels": fill_channels,
    "without_denormals": without_denormals,
    "channels_last": channels_last,
}


def list_passes(
    round_graph: Callable[[Graph], Graph] | None,
) -> Mapping[str, Callable[[Graph], Graph]]:
    """Return the passes with one that rounds factors of products, if there is one."""
    if round_graph is None:
        return PASSES
    *before, layouts = PASSES.items()
    return dict([*before, ("round_products", round_graph), layouts])


def apply_before_layouts(graph: Graph) -> Graph:
    """Apply the passes ahead of the choice of layouts, which is the last one."""
    *before, _ = PASSES.values()
    for rewrite in before:
        graph = rewrite(graph)
    return graph
