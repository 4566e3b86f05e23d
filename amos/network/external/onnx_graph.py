"""An ONNX model as nodes that read each other's results, with what was read of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amos.network.graph import Constant
from amos.network.network import Port
from amos.network.reading.model import Reading, names_read


@dataclass(frozen=True)
class OnnxGraph:
    """A model with what is known of its values.

    Attributes:
        reading: of the model.
    """

    reading: Reading

    @property
    def model(self) -> Any:
        """An ``onnx.ModelProto``."""
        return self.reading.model

    @cached_property
    def nodes(self) -> tuple[Any, ...]:
        """Nodes in an order in which they can be computed."""
        return tuple(self.model.graph.node)

    @cached_property
    def initializers(self) -> dict[str, Any]:
        """Constant tensors by name."""
        return {each.name: each for each in self.model.graph.initializer}

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

    @cached_property
    def constant(self) -> frozenset[int]:
        """Numbers of the nodes whose results are known ahead."""
        values = self.reading.values
        return frozenset(
            number
            for number, node in enumerate(self.nodes)
            if number not in self.reading.external
            and all(isinstance(values.get(n), Constant) for n in node.output if n in values)
        )
