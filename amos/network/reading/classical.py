"""Operators of ``ai.onnx.ml`` around networks of scikit-learn: scalers and linear regressions."""

from __future__ import annotations

import math

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.reading.node import NodeSource, Read
from amos.network.reading.norms import emit_unit_norm
from amos.network.reading.products import multiply


def _numbers(node: NodeSource, name: str) -> Constant | None:
    """Return an attribute of floats: one, or one for each column; ``None`` without it."""
    values = node.attributes.get(name, ())
    return Constant(np.array(values, np.float32)) if values else None


def _read_scaler(node: NodeSource) -> Operand:
    value = node.cast(node.input(0), "float32")
    for operation, name in (("Sub", "offset"), ("Mul", "scale")):
        if (numbers := _numbers(node, name)) is not None:
            value = node.emit(operation, value, numbers)
    return value


def _read_normalizer(node: NodeSource) -> Operand:
    norm = str(node.attributes.get("norm", "MAX"))
    if norm not in ("L1", "L2"):
        raise node.refuse(f"norm {norm} is not supported")
    value = node.cast(node.input(0), "float32")
    return emit_unit_norm(node, value, len(value.shape) - 1, int(norm[1]))


def _read_imputer(node: NodeSource) -> Operand:
    value, numbers = node.input(0), _numbers(node, "imputed_value_floats")
    missing = float(node.attributes.get("replaced_value_float", 0.0))
    if value.dtype != "float32" or numbers is None:
        raise node.refuse(f"values of {value.dtype} are not supported")
    if math.isnan(missing):
        is_missing = node.emit("IsNaN", value)
    else:
        is_missing = node.emit("Equal", value, node.scalar(missing, value))
    return node.emit("Where", is_missing, numbers, value)


def _read_linear_regressor(node: NodeSource) -> Operand:
    if str(node.attributes.get("post_transform", "NONE")) != "NONE":
        raise node.refuse("transforms of results are not supported")
    value = node.cast(node.input(0), "float32")
    weights, intercepts = _numbers(node, "coefficients"), _numbers(node, "intercepts")
    if weights is None or len(value.shape) != 2:
        raise node.refuse(f"an input of shape {value.shape} is not supported")
    matrix = weights.array.reshape(int(node.attributes.get("targets", 1)), value.shape[1])
    result = multiply(node, value, Constant(matrix.T.copy()))
    return result if intercepts is None else node.emit("Add", result, intercepts)


READERS: dict[str, Read] = {
    "Imputer": _read_imputer,
    "LinearRegressor": _read_linear_regressor,
    "Normalizer": _read_normalizer,
    "Scaler": _read_scaler,
}
