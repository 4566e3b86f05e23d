"""An ONNX model as a graph of nodes, with their shapes and constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from amos.network.blocked import BlockedWeight
from amos.network.graph import Constant
from amos.network.network import Port
from amos.network.reading.branches import names_read
from amos.network.reading.model import Reading


@dataclass(frozen=True)
class OnnxGraph:
    """A model with the shapes, dtypes and constants that were read.

    Attributes:
        reading: of the model.
    """

    reading: Reading

    @property
    def model(self) -> Any:
        """An ``onnx.ModelProto``."""
        return self.reading.model

    @cached_property
    def _computing(self) -> tuple[int, ...]:
        """Positions of the nodes whose results are not known ahead."""
        reading = self.reading
        return tuple(
            position
            for position, node in enumerate(self.model.graph.node)
            if position in reading.external or not all(map(self._is_known, node.output))
        )

    def _is_known(self, name: str) -> bool:
        """Return whether a value is a constant; weights of a few bits stay as they are."""
        value = self.reading.values.get(name)
        return isinstance(value, Constant) and not isinstance(value, BlockedWeight)

    @cached_property
    def nodes(self) -> tuple[Any, ...]:
        """Nodes whose results are not known ahead, in an order in which they can be computed."""
        nodes = self.model.graph.node
        return tuple(nodes[position] for position in self._computing)

    @cached_property
    def external(self) -> dict[int, str]:
        """Why nodes stay with onnxruntime, by their number."""
        reasons = self.reading.external
        return {n: reasons[p] for n, p in enumerate(self._computing) if p in reasons}

    @cached_property
    def initializers(self) -> dict[str, Any]:
        """Constant tensors by name: the model's, and those that are known ahead."""
        from onnx import numpy_helper

        tensors = {each.name: each for each in self.model.graph.initializer}
        read = {name for names in self.reads for name in names}
        read |= {port.name for port in self.model.graph.output}
        for name in sorted(read - {*tensors, *self.producers}):
            value = self.reading.values.get(name)
            if isinstance(value, Constant):
                tensors[name] = numpy_helper.from_array(np.ascontiguousarray(value.array), name)
                tensors[name].dims[:] = value.shape
        return tensors

    @cached_property
    def ports(self) -> dict[str, Port]:
        """Values of static shape, by name."""
        values = self.reading.values
        return {name: Port(name, value.shape, value.dtype) for name, value in values.items()}

    @cached_property
    def producers(self) -> dict[str, int]:
        """Number of the node that computes each value."""
        return {name: n for n, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """Names that each node reads, inside of its branches and loops too."""
        return tuple(tuple(dict.fromkeys(names_read(node))) for node in self.nodes)
