"""A network as stages: layers of a unit, and the parts of onnxruntime between them.

A stage reads and writes values by name. Those of a region are named for its nodes, those between
regions as in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.ir import Operator
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.regions import extract_nodes, find_boundary, order_places
from amos.network.external.writing import values_read, write_nodes
from amos.network.graph import Constant, Graph, Node
from amos.network.groups import CallSite
from amos.network.sessions import plain_session
from amos.plan import Candidate
from amos.runtime.simulated import SimulatedKernel, SimulatedRun

#: Flips the first bit of a byte: an unsigned one becomes the signed one that is less by 128.
_FIRST_BIT = np.uint8(0x80)


@dataclass(frozen=True, eq=False)
class Layer:
    """A call of a stream.

    Attributes:
        name: of its function in the model.
        site: nodes that it replaces, and their operands.
        host_steps: that the host does of the group, in words.
        shifted: names of unsigned sources, which reach the unit less 128.
        correction: that the host adds to the results for them.
    """

    name: str
    operator: Operator
    candidate: Candidate
    kernel: SimulatedKernel = field(repr=False)
    site: CallSite = field(repr=False)
    host_steps: tuple[str, ...] = ()
    shifted: frozenset[str] = frozenset()
    correction: np.ndarray | None = field(default=None, repr=False)

    def arrange(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return those of the values that are operands, as the unit takes them, by tensor."""
        arranged = {}
        for tensor in self.operator.inputs:
            if tensor.name not in values:
                continue
            array = np.ascontiguousarray(values[tensor.name]).reshape(tensor.shape)
            if tensor.name in self.shifted:
                array = (array ^ _FIRST_BIT).view(np.int8)
            arranged[tensor.name] = array
        return arranged

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Operands that do not change from call to call, by tensor."""
        arguments = self.site.arguments.items()
        return self.arrange({n: x.array for n, x in arguments if isinstance(x, Constant)})

    def restore(self, result: np.ndarray) -> np.ndarray:
        """Return a result of the unit as the graph has it."""
        node = self.site.result
        array = result if self.correction is None else result + self.correction
        return array.astype(node.dtype, copy=False).reshape(node.shape)


@dataclass(frozen=True, eq=False)
class UnitStage:
    """A layer on the unit, with the names of values of its operands, by tensor, and its result."""

    layer: Layer
    reads: Mapping[str, str]
    writes: str

    def arrange(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all operands as the unit takes them."""
        own = self.layer.arrange({name: values[value] for name, value in self.reads.items()})
        return self.layer.constants | own

    def store(self, run: SimulatedRun, values: dict[str, np.ndarray]) -> None:
        """Write the result of a run."""
        assert run.result is not None
        values[self.writes] = self.layer.restore(run.result)


@dataclass(frozen=True, eq=False)
class HostStage:
    """A part of a model that onnxruntime runs between layers; its ports are named for values."""

    model: Any = field(repr=False)

    @cached_property
    def _session(self) -> Any:
        return plain_session(self.model, optimized=True)

    def run(self, values: dict[str, np.ndarray]) -> None:
        """Read values and write others; raise NetworkError if onnxruntime fails."""
        try:
            inputs = {port.name: values[port.name] for port in self._session.get_inputs()}
            results = self._session.run(None, inputs)
        except Exception as error:  # onnxruntime raises types of its own
            raise NetworkError(f"onnxruntime on the host: {last_line(error)}") from error
        names = [port.name for port in self._session.get_outputs()]
        values.update(zip(names, results, strict=True))


#: In sequence they compute a network.
Stage = UnitStage | HostStage


def list_stages(
    network: PartitionedNetwork, layers: Mapping[str, Sequence[Layer]]
) -> tuple[Stage, ...]:
    """List the stages of a model; ``layers`` are of each region, in the order of their results."""
    stages, external = list[Stage](), list[int]()
    for place in order_places(network.graph, network.regions):
        if isinstance(place, int):
            external.append(place)
            continue
        stages += _external_stages(network, external)
        external.clear()
        region = network.regions[place]
        outputs = dict(zip(region.outputs, region.network.graph.outputs, strict=True))
        stages += _region_stages(place, region.network.graph, outputs, layers[place])
    return *stages, *_external_stages(network, external)


def _external_stages(network: PartitionedNetwork, nodes: Sequence[int]) -> Iterator[HostStage]:
    """Yield the stage of nodes that AMOS does not take, if there are any."""
    if nodes:
        order = sorted(nodes)
        inputs, outputs = find_boundary(network.graph, order)
        yield HostStage(extract_nodes(network.graph, order, inputs, outputs))


def _region_stages(
    name: str, graph: Graph, outputs: Mapping[str, Node], layers: Iterable[Layer]
) -> Iterator[Stage]:
    """Yield the stages of a region, whose results ``outputs`` names as the model does."""
    names = {n.number: n.name or f"{name}.v{n.number}" for n in graph.nodes}
    ends = {layer.site.result.number: layer for layer in layers}
    on_unit = {node.number for layer in ends.values() for node in layer.site.nodes}
    pending = list[Node]()
    for node in graph.computing():
        layer = ends.get(node.number)
        if layer is not None:
            yield from _host_stages(graph, pending, names)
            pending.clear()
            arguments = layer.site.arguments.items()
            tensors = {tensor.name for tensor in layer.operator.inputs}
            reads = {
                n: names[x.number] for n, x in arguments if n in tensors and isinstance(x, Node)
            }
            yield UnitStage(layer, reads, names[node.number])
        elif node.number not in on_unit:
            pending.append(node)
    yield HostStage(write_nodes(pending, names, outputs))


def _host_stages(
    graph: Graph, nodes: Sequence[Node], names: Mapping[int, str]
) -> Iterator[HostStage]:
    """Yield the stage of some nodes, if there are any."""
    if not nodes:
        return
    own = {node.number for node in nodes}
    later = {reader.number for number in own for reader in graph.users[number]} - own
    readers = [node for node in graph.nodes if node.number in later]
    read = {node.number for node in values_read(readers)} | graph.returned
    results = {names[node.number]: node for node in nodes if node.number in read}
    yield HostStage(write_nodes(nodes, names, results))
