"""A model of which AMOS takes regions, and onnxruntime runs everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from amos._display import Shown, several
from amos.errors import NetworkError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.network.external.regions import Region, find_regions, load_region
from amos.network.frontend import RANDOM_OPERATORS, Shapes, close_shapes, title_of
from amos.network.graph import Graph, divides_integers
from amos.network.groups import Task, merge_tasks
from amos.network.halves import find_factors, find_halves, widen_halves
from amos.network.network import Network, Port
from amos.network.reading.branches import operators_of
from amos.network.reading.model import read_model
from amos.network.reading.onnx_graph import OnnxGraph
from amos.network.reading.validity import inline_functions, naming
from amos.network.report import Report
from amos.network.reporting import report
from amos.network.sessions import Reference, explain_refusal, onnxruntime_reference


@dataclass(frozen=True, eq=False)
class PartitionedNetwork(Shown):
    """A model divided between AMOS and onnxruntime.

    Attributes:
        regions: that become one operator each, by its name.
        external: operators that stay with onnxruntime, how many by name and reason.
        reference: another program that runs the model, if one is installed.
        source: the model as it was read, or the path of its file.
        roundings: what rounds factors of products, by region.
        halves: floats of 16 bits that the model was written in; all of it computes in ``float32``.
        factors: the one of these that all its weights had; empty if there is none.
    """

    name: str
    graph: OnnxGraph
    regions: Mapping[str, Region]
    external: Mapping[tuple[str, str], int]
    reference: Reference | None
    source: Any = field(repr=False)
    roundings: Mapping[str, Callable[[Graph], Graph]] = field(default_factory=dict, repr=False)
    halves: frozenset[str] = frozenset()
    factors: str = ""

    @property
    def networks(self) -> dict[str, Network]:
        """Networks of the regions, by the name of their operator."""
        return {name: region.network for name, region in self.regions.items()}

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs, in order."""
        graph = self.graph
        return tuple(
            Port(name, tuple(graph.shapes[name]), dtype) for name, dtype in graph.inputs.items()
        )

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of its results."""
        return tuple(each.name for each in self.graph.model.graph.output)

    @property
    def is_single_region(self) -> bool:
        """Whether AMOS takes all of it as one operator."""
        return len(self.regions) == 1 and not self.external

    @property
    def single(self) -> bool:
        """Whether it returns one result, and not a tuple."""
        return len(self.output_names) == 1

    @cached_property
    def divides_integers(self) -> bool:
        """Whether integers are divided by values that are no constants."""
        return divides_integers(self.graph.operators)

    @cached_property
    def is_random(self) -> bool:
        """Whether it draws random numbers, so that no two calls have equal results."""
        return not RANDOM_OPERATORS.isdisjoint(operators_of(self.graph.model.graph))

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct groups of all regions, each with how often it occurs."""
        return merge_tasks(task for network in self.networks.values() for task in network.tasks)

    def report(
        self,
        machine: str | Machine = "host",
        intrinsics: Sequence[Intrinsic] = (),
        *,
        bounds: bool = False,
    ) -> Report:
        """Report where each part would run and how fast; see :meth:`Network.report`."""
        return report(self, machine, intrinsics, bounds=bounds)

    def __str__(self) -> str:
        ports = ", ".join(map(str, self.inputs))
        regions = several(len(self.regions), "region")
        return f"{self.name}({ports}): {regions}, {several(len(self.tasks), 'task')}"

    __repr__ = __str__


def load_partition(
    source: Any,
    shapes: Shapes | None,
    name: str | None,
    reference: Reference | None = None,
    prefix: str = "",
) -> PartitionedNetwork:
    """Load a model of ONNX, divided between AMOS and onnxruntime.

    A region without a product that AMOS maps stays with onnxruntime, unless it is all of a model.

    Args:
        reference: runs the model; by default onnxruntime does.
        prefix: of the operators' names.

    Raises:
        NetworkError: it contradicts itself, or onnxruntime would have to run a part of it and
            does not take it.
    """
    model, closed = close_shapes(source, shapes)
    title = name or title_of(source)
    with naming(title):
        model = inline_functions(model, title)
        factors = ""
        if halves := find_halves(model):
            if reference is None and "bfloat16" not in halves:  # onnxruntime does not multiply it
                reference = onnxruntime_reference(source)
            factors = find_factors(model)
            source = model = widen_halves(model)
        graph = read_model(model, closed)
    reasons, regions = dict(graph.external), list[Region]()
    for nodes in find_regions(graph):
        try:
            region = load_region(graph, nodes, title)
        except NetworkError as error:
            reasons |= dict.fromkeys(nodes, str(error).splitlines()[0])
            continue
        if region.network.tasks or not graph.external:
            regions.append(region)
    network = PartitionedNetwork(
        title,
        graph,
        {f"{prefix}Region{number}": region for number, region in enumerate(regions)},
        _external(graph, regions, reasons),
        reference or onnxruntime_reference(source),
        source,
        halves=halves,
        factors=factors,
    )
    if reasons:
        _check_with_onnxruntime(source, reasons, title)
    return network


def _external(
    graph: OnnxGraph, regions: Iterable[Region], reasons: Mapping[int, str]
) -> dict[tuple[str, str], int]:
    """Count the nodes that stay with onnxruntime, by operator and reason."""
    computed = {number for region in regions for number in region.nodes}
    counts = Counter(
        (node.op_type, reasons.get(number, "no product is near it"))
        for number, node in enumerate(graph.nodes)
        if number not in computed
    )
    return dict(counts.most_common())


def _check_with_onnxruntime(source: Any, reasons: Mapping[int, str], title: str) -> None:
    """Refuse a model of which onnxruntime has to run a part, if it does not take it."""
    if find_spec("onnxruntime") is None:
        raise NetworkError(f"model {title!r}: {next(iter(reasons.values()))}")
    if why := explain_refusal(source):
        raise NetworkError(f"model {title!r}: onnxruntime does not take it: {why}")
