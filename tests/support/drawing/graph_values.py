"""What drawn ONNX graphs consist of: values of many dtypes, shared weights, several results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

__all__ = ["GraphWriter", "Value"]

_KINDS = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64, "int32": TensorProto.INT32, "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8, "bool": TensorProto.BOOL,
}  # fmt: skip
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 20, 33)


@dataclass(frozen=True)
class Value:
    """A tensor of a graph: its name, extents and dtype."""

    name: str
    shape: tuple[int, ...]
    kind: str


class GraphWriter:
    """A graph that grows from values anywhere in it.

    Attributes:
        values: all tensors that nodes may read.
        jumps: whether a small difference may become a large one.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.constants: dict[tuple[tuple[int, ...], str], str] = {}
        self.jumps = self.rounds = False
        self.count = 0
        self._inner = np.random.default_rng(int(rng.integers(1 << 30)))
        for _ in range(int(rng.integers(1, 4))):
            self._input()

    def _input(self) -> None:
        rank = int(self.rng.choice([4, 4, 3, 2, 2, 1, 0]))
        shape = [int(self.rng.choice(SIZES)) for _ in range(rank)]
        if rank and self.rng.random() < 0.03:
            shape[int(self.rng.integers(rank))] = 0
        kinds = ["float64", "float16", "int64", "int32", "uint8", "bool"]
        kind = "float32" if self.rng.random() < 0.8 else str(self.rng.choice(kinds))
        value = Value(f"in{len(self.inputs)}", (*shape,), kind)
        self.inputs.append(value)
        if self.rng.random() < 0.9:  # others are read by nothing
            self.values.append(value)

    def arrays(self) -> dict[str, np.ndarray]:
        """Random inputs."""
        return {x.name: self._array(x.shape, x.kind) for x in self.inputs}

    def _array(self, shape: Sequence[int], kind: str) -> np.ndarray:
        if kind == "bool":
            return np.asarray(self._inner.random(shape) < 0.5)
        if not kind.startswith("float"):
            return self._inner.integers(0, 5, shape).astype(kind)
        return np.asarray(self._inner.standard_normal(shape)).astype(kind)

    def _name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: Any, kind: str = "float32") -> str:
        """An initializer, or a node that holds one."""
        name, values = self._name(), np.asarray(array, kind)
        tensor = numpy_helper.from_array(values, name)
        if self.rng.random() < 0.2:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.weights.append(tensor)
        return name

    def weight(self, shape: Sequence[int], kind: str = "float32") -> str:
        """Random numbers; the same tensor again where one of that shape is there."""
        key = ((*shape,), kind)
        if key in self.constants and self.rng.random() < 0.4:
            return self.constants[key]
        scale = np.sqrt(max(1, prod(shape[1:])))
        self.constants[key] = self.constant(self._array(shape, kind) / scale, kind)
        return self.constants[key]

    def node(
        self, kind: str, inputs: Sequence[str], shape: Sequence[int], dtype: str, **more: Any
    ) -> Value:
        """Append an operator."""
        value = Value(self._name(), (*map(int, shape),), dtype)
        self.nodes.append(helper.make_node(kind, [*inputs], [value.name], **more))
        self.values.append(value)
        return value

    def pick(self, *ranks: int, kinds: Sequence[str] = ("float32",)) -> Value | None:
        """A tensor of these ranks, or any; late ones more often than early ones."""
        fitting = [
            x for x in self.values if x.kind in kinds and (not ranks or len(x.shape) in ranks)
        ]
        if not fitting:
            return None
        late = fitting[-4:] if self.rng.random() < 0.7 else fitting
        return late[int(self.rng.integers(len(late)))]

    def model(self, opset: int) -> Any:
        """The model; its results are some of the values, initializers and inputs among them.

        Raises:
            Exception: onnx refuses it, with errors of many types.
        """
        computed = [x for x in self.values if x not in self.inputs]
        results = computed[-1:]
        for _ in range(int(self.rng.choice([0, 0, 1, 2]))):
            results.append(computed[int(self.rng.integers(len(computed)))])
        if self.rng.random() < 0.1:
            results.append(self.inputs[0])
        if self.weights and self.rng.random() < 0.1:
            tensor = self.weights[int(self.rng.integers(len(self.weights)))]
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type).name
            results.append(Value(tensor.name, (*tensor.dims,), kind))
        results = [*dict.fromkeys(results)]
        self.rng.shuffle(results)
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info(x.name, _KINDS[x.kind], x.shape) for x in self.inputs],
            [helper.make_tensor_value_info(x.name, _KINDS[x.kind], x.shape) for x in results],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                                  ir_version=10)  # fmt: skip
        checker.check_model(model, full_check=True)
        return model
