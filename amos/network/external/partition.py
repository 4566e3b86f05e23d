"""A model of which AMOS takes regions, and onnxruntime runs everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from amos._display import Shown, several
from amos.machine import Machine
from amos.network.external.onnx_graph import OnnxGraph, prepare_graph
from amos.network.external.regions import Region, Regions
from amos.network.frontend import Reference
from amos.network.groups import Task, merged
from amos.network.network import Network, Port, load_one

if TYPE_CHECKING:
    from amos.network.report import Report


@dataclass(frozen=True, eq=False)
class PartitionedNetwork(Shown):
    """A model divided between AMOS and onnxruntime.

    Attributes:
        name: what it is called.
        graph: of the model, with its shapes stated.
        regions: that become one operator each, by its name.
        external: operators that stay with onnxruntime, how many by name and reason.
        reference: runs the model as it was read.
        source: the model as it was read.
    """

    name: str
    graph: OnnxGraph
    regions: Mapping[str, Region]
    external: Mapping[tuple[str, str], int]
    reference: Reference
    source: Any = field(repr=False)

    @property
    def networks(self) -> dict[str, Network]:
        """What AMOS takes, by the name of its operator."""
        return {name: region.network for name, region in self.regions.items()}

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """What it takes."""
        weights = self.graph.initializers
        names = [each.name for each in self.graph.model.graph.input if each.name not in weights]
        return tuple(self.graph.ports[name] for name in names)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of its results."""
        return tuple(each.name for each in self.graph.model.graph.output)

    @property
    def single(self) -> bool:
        """Whether it returns one result, and not a tuple."""
        return len(self.output_names) == 1

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct groups of all regions, each with how often it occurs."""
        return merged(task for network in self.networks.values() for task in network.tasks)

    def report(self, machine: str | Machine = "host") -> Report:
        """What would run where and how fast; see :meth:`Network.report`."""
        from amos.network.external.report import partition_report

        return partition_report(self, machine)

    def __str__(self) -> str:
        ports = ", ".join(map(str, self.inputs))
        regions = several(len(self.regions), "region")
        return f"{self.name}({ports}): {regions}, {several(len(self.tasks), 'task')}"

    __repr__ = __str__


def load_partition(
    model: Any, shapes: Mapping[str, Sequence[int]], name: str, reference: Reference
) -> PartitionedNetwork:
    """Divide a model of ONNX.

    A region without a product that AMOS maps stays with onnxruntime.

    Args:
        model: ``onnx.ModelProto``.
        shapes: extents of each input.
        name: of the model.
        reference: runs the model as it was read.

    Raises:
        NetworkError: onnxscript is not installed.
    """
    graph = prepare_graph(model, shapes, name)
    finder = Regions(graph, lambda part: load_one(part, None, name))
    useful = [region for region in finder.find() if region.network.tasks]
    regions = {f"Region{number}": region for number, region in enumerate(useful)}
    computed = {number for region in useful for number in region.nodes}
    left = Counter(
        (node.op_type, finder.reasons.get(number, "no product is near it"))
        for number, node in enumerate(graph.nodes)
        if number not in computed
    )
    return PartitionedNetwork(name, graph, regions, dict(left.most_common()), reference, model)
