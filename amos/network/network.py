"""Networks: graphs divided into groups, of which distinct ones are tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from amos._display import Shown, several
from amos.errors import NetworkError, quote
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.network.blocked import BlockedWeight
from amos.network.graph import Graph, Node, divides_integers
from amos.network.groups import Grouping, Task, group_nodes
from amos.network.passes.sequence import list_passes
from amos.network.precision.rounding import ROUNDED, is_product
from amos.network.shapes import BYTES, HALVES

if TYPE_CHECKING:
    from amos.network.report import Report


@dataclass(frozen=True)
class Port:
    """An input, by the model's name of it, or an output of a network."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Network(Shown):
    """A graph that AMOS computes, divided into groups.

    Attributes:
        graph: its operators, channels last, without batch norms.
    """

    name: str
    graph: Graph
    grouping: Grouping

    #: Operators that stay with onnxruntime, as of a partitioned network.
    external: ClassVar[Mapping[tuple[str, str], int]] = {}
    is_random: ClassVar[bool] = False
    halves: ClassVar[frozenset[str]] = frozenset()

    @property
    def networks(self) -> dict[str, Network]:
        """The network by the name of its operator, as of a partitioned one."""
        return {"main": self}

    @property
    def single(self) -> bool:
        """Whether it returns one result, and not a tuple."""
        return len(self.graph.outputs) == 1

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs, in order."""
        return tuple(Port(node.name, node.shape, node.dtype) for node in self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """The results, in order."""
        return tuple(
            Port(f"output{n}" if n else "output", node.shape, node.dtype)
            for n, node in enumerate(self.graph.outputs)
        )

    @property
    def quantized(self) -> bool:
        """Whether floats are rounded to integers of 8 bits."""
        return any(node.dtype in BYTES for node in self._roundings)

    @property
    def may_round_rows(self) -> bool:
        """Whether products may round their rows to 8 bits, as weights of a few bits allow it."""
        weights = (each for node in self.graph.nodes for each in node.operands)
        return any(isinstance(each, BlockedWeight) and each.format.rounds_rows for each in weights)

    @property
    def rounds(self) -> bool:
        """Whether floats are rounded to integers."""
        return any("int" in node.dtype for node in self._roundings)

    @cached_property
    def _roundings(self) -> tuple[Node, ...]:
        """Conversions of floats."""
        casts = (node for node in self.graph.nodes if node.operation == "Cast")
        return tuple(node for node in casts if "float" in node.operands[0].dtype)

    @cached_property
    def has_rounded_products(self) -> bool:
        """Whether factors of a product are floats of 16 bits."""
        nodes = self.graph.nodes
        return any(is_product(each) and each.operands[0].dtype in HALVES for each in nodes)

    @cached_property
    def is_rounded(self) -> bool:
        """Whether factors of a product, or results, are rounded to ``bfloat16``."""
        results = any(node.dtype == ROUNDED for node in self.graph.outputs)
        return self.has_rounded_products or results

    @cached_property
    def divides_integers(self) -> bool:
        """Whether integers are divided by values that are no constants."""
        return divides_integers(self.graph.nodes)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The distinct groups, each with how often it occurs."""
        return self.grouping.tasks

    def report(
        self,
        machine: str | Machine = "host",
        intrinsics: Sequence[Intrinsic] = (),
        *,
        bounds: bool = False,
    ) -> Report:
        """Predict what runs where and how fast.

        Args:
            intrinsics: the only instructions to use; by default all that the machine has.
            bounds: also find what no schedule falls below, of units that streams drive; this
                takes a second or more for each task.

        Raises:
            UnknownNameError: there is no such machine.
        """
        from amos.network.reporting import report

        return report(self, machine, intrinsics, bounds=bounds)

    def __str__(self) -> str:
        ports = ", ".join(map(str, self.inputs))
        groups = several(len(self.grouping.groups), "group")
        return f"{self.name}({ports}): {groups}, {several(len(self.tasks), 'task')}"

    __repr__ = __str__


def check_network(network: object) -> None:
    """Raise NetworkError for other objects than networks."""
    from amos.network.buckets import BucketedNetwork
    from amos.network.external.partition import PartitionedNetwork

    if not isinstance(network, Network | BucketedNetwork | PartitionedNetwork):
        raise NetworkError(f"expected what amos.load_network returns, got {quote(network)}")


def network_of(
    graph: Graph, name: str, round_graph: Callable[[Graph], Graph] | None = None
) -> Network:
    """Return the network of a graph as it was read.

    Args:
        graph: with the channels of images second.
        round_graph: rounds factors of products, ahead of the choice of layouts.
    """
    for rewrite in list_passes(round_graph).values():
        graph = rewrite(graph)
    return Network(name, graph, group_nodes(graph))
