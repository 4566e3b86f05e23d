"""Models of products with weights of a few bits, and what they compute, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Case", "floats_of", "model_of", "random_rows", "rounded", "run_onnxruntime"]


@dataclass(frozen=True)
class Case:
    """A product with weights of a few bits.

    Attributes:
        rows: extents ahead of the sums.
        depth, columns: of the weights.
        bits, block: of a code, and codes that share a scale.
        zeros: dtype of the zero points; empty for the middle of all codes.
        level: of accuracy.
    """

    rows: tuple[int, ...]
    depth: int
    columns: int
    bits: int = 4
    block: int = 32
    zeros: str = ""
    level: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """Codes, scales and zero points as the operator has them."""
        rng, blocks = np.random.default_rng(7), -(-self.depth // self.block)
        size, points = self.block * self.bits // 8, -(-blocks * self.bits // 8)
        arrays = {
            "codes": rng.integers(0, 256, (self.columns, blocks, size), np.uint8),
            "scales": rng.uniform(0.01, 0.1, self.columns * blocks).astype(np.float32),
        }
        if self.zeros == "uint8":
            arrays["zeros"] = rng.integers(0, 256, self.columns * points, np.uint8)
        elif self.zeros:
            zeros = rng.uniform(0, (1 << self.bits) - 1, self.columns * blocks)
            arrays["zeros"] = zeros.astype(self.zeros)
        return arrays

    def model(self, *followers: str, dtype: str = "float32", bias: bool = False) -> onnx.ModelProto:
        """A model of it and of elementwise operators behind it."""
        arrays = self.arrays()
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        arrays["scales"] = arrays["scales"].astype(dtype)
        names = [f"input{n}" for n in range(4)]
        names[1:4] = [name if name in arrays else "" for name in ("codes", "scales", "zeros")]
        if bias:
            names += ["", "bias"]
            arrays["bias"] = np.linspace(-1, 1, self.columns).astype(dtype)
        attributes: dict[str, Any] = dict(
            N=self.columns, K=self.depth, bits=self.bits, block_size=self.block
        )
        attributes |= {"accuracy_level": self.level} if self.level else {}
        nodes = [
            helper.make_node("MatMulNBits", names, ["y0"], domain="com.microsoft", **attributes)
        ]
        for number, name in enumerate(followers):
            nodes.append(helper.make_node(name, [f"y{number}"], [f"y{number + 1}"]))
        shape = (*self.rows, self.columns)
        return model_of(nodes, arrays, (*self.rows, self.depth), shape, f"y{len(followers)}", kind)


def model_of(
    nodes: list[Any],
    arrays: dict[str, np.ndarray],
    shape: tuple[int, ...],
    result: tuple[int, ...],
    name: str = "y",
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("input0", kind, shape)],
        [helper.make_tensor_value_info(name, kind, result)],
        [numpy_helper.from_array(array, key) for key, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_onnxruntime(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    result: np.ndarray = session.run(None, {"input0": x})[0]
    return result


def random_rows(case: Case, dtype: str = "float32") -> np.ndarray:
    shape = (*case.rows, case.depth)
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def floats_of(case: Case) -> np.ndarray:
    """The weights, code by code."""
    arrays = case.arrays()
    blocks = -(-case.depth // case.block)
    scales = arrays["scales"].reshape(case.columns, blocks)
    result = np.empty((case.depth, case.columns), np.float32)
    per_byte, mask = 8 // case.bits, (1 << case.bits) - 1

    def code(row: np.ndarray, at: int) -> int:
        return int(row[at // per_byte]) >> at % per_byte * case.bits & mask

    for column in range(case.columns):
        for at in range(case.depth):
            zero: float = 1 << (case.bits - 1)
            if case.zeros == "uint8":
                points = arrays["zeros"].reshape(case.columns, -1)
                zero = code(points[column], at // case.block)
            elif case.zeros:
                zero = arrays["zeros"].reshape(case.columns, -1)[column, at // case.block]
            number = code(arrays["codes"][column].reshape(-1), at)
            result[at, column] = (number - np.float32(zero)) * scales[column, at // case.block]
    return result


def rounded(x: np.ndarray, block: int) -> np.ndarray:
    """Rows rounded to bytes, block by block."""
    result = x.astype(np.float64)
    for begin in range(0, x.shape[-1], block):
        block_values = x[..., begin : begin + block]
        most = np.abs(block_values).max(-1, keepdims=True)
        inverse = np.where(most > 0, np.float32(127) / np.where(most > 0, most, 1), 0)
        levels = np.rint(block_values * inverse.astype(np.float32))
        result[..., begin : begin + block] = levels * (most / np.float32(127))
    return result
