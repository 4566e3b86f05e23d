"""An ONNX model as a graph of nodes, with their shapes and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from amos.network.blocked import BlockedWeight
from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand
from amos.network.packages import numpy_helper
from amos.network.reading.branches import names_read


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A model that was read.

    Attributes:
        model: an ``onnx.ModelProto`` whose nodes were read, with branches and loops whose course
            is known ahead written in place.
        operators: what was read of it, in order.
        values: of operators, by their names in the model; those of external nodes are inputs.
        reasons: why nodes stay with onnxruntime, by their position in the model.
        inputs: names of the model's inputs, with the dtype of each.
        shapes: their extents.
    """

    model: Any
    operators: tuple[Node, ...]
    values: Mapping[str, Operand]
    reasons: Mapping[int, str]
    inputs: Mapping[str, str]
    shapes: Mapping[str, Sequence[int]]

    @cached_property
    def _computing(self) -> tuple[int, ...]:
        """Positions of the nodes whose results are not known ahead."""
        return tuple(
            position
            for position, node in enumerate(self.model.graph.node)
            if position in self.reasons or not all(map(self._is_known, node.output))
        )

    def _is_known(self, name: str) -> bool:
        """Return whether a value is a constant; weights of a few bits stay as they are."""
        value = self.values.get(name)
        return isinstance(value, Constant) and not isinstance(value, BlockedWeight)

    @cached_property
    def nodes(self) -> tuple[Any, ...]:
        """Nodes whose results are not known ahead, in an order in which they can be computed."""
        nodes = self.model.graph.node
        return tuple(nodes[position] for position in self._computing)

    @cached_property
    def external(self) -> dict[int, str]:
        """Why nodes stay with onnxruntime, by their number."""
        reasons = self.reasons
        return {n: reasons[p] for n, p in enumerate(self._computing) if p in reasons}

    @cached_property
    def initializers(self) -> dict[str, Any]:
        """Constant tensors by name: the model's, and those that are known ahead."""
        tensors = {each.name: each for each in self.model.graph.initializer}
        read = {name for names in self.reads for name in names}
        read |= {port.name for port in self.model.graph.output}
        for name in sorted(read - {*tensors, *self.producers}):
            value = self.values.get(name)
            if isinstance(value, Constant):
                tensors[name] = numpy_helper.from_array(np.ascontiguousarray(value.array), name)
                tensors[name].dims[:] = value.shape
        return tensors

    @cached_property
    def producers(self) -> dict[str, int]:
        """Number of the node that computes each value."""
        return {name: n for n, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """Names that each node reads, inside of its branches and loops too."""
        return tuple(tuple(dict.fromkeys(names_read(node))) for node in self.nodes)

    def slice(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Return the graph between some values, by their names."""
        builder = GraphBuilder()
        for name in inputs:
            operand = self.values[name]
            port = builder.add_input(name, operand.shape, operand.dtype)
            if isinstance(operand, Node):  # several names may stand for one value
                builder.values.setdefault(operand.number, port)
        results = [self.values[name] for name in outputs]
        needed, stack = set[int](), [each for each in results if isinstance(each, Node)]
        while stack:
            node = stack.pop()
            if node.number in builder.values or node.number in needed:
                continue
            needed.add(node.number)
            stack += [each for each in node.operands if isinstance(each, Node)]
        for node in self.operators:
            if node.number in needed:
                builder.values[node.number] = builder.copy(node)
        return builder.finish([*map(builder.value, results)])
