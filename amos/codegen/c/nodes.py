"""Meanings of TensorIR nodes that C expresses differently."""

from __future__ import annotations

from typing import Any

from amos._toolchain import tirx
from amos.codegen.c.types import split


def type_of(node: Any) -> str:
    """Return TVM's name of the type of an expression."""
    return str(node.ty.dtype) if hasattr(node, "ty") else str(node.dtype)


def rounded_argument(node: Any) -> Any:
    """Return the argument that a call rounds to nearest, ties to even; ``None`` for others.

    TVM leaves the operator as it is in a vector, and calls C's function for a scalar.
    """
    if type(node).__name__ != "Call":
        return None
    name = str(node.op.name).rpartition(".")[2]
    if name == "call_pure_extern" and str(node.args[0].value) == "nearbyintf":
        return node.args[1]
    return node.args[0] if name == "nearbyint" else None


def is_wide_sum(node: Any) -> bool:
    """Return whether a node is a sum or product whose lower 32 bits depend on its terms' alone."""
    return type(node).__name__ in ("Add", "Sub", "Mul") and split(type_of(node))[0] == "int64"


def low_bits(node: Any) -> Any:
    """Return the lower 32 bits of an integer."""
    if type(node).__name__ == "Broadcast":
        return tirx.Broadcast(low_bits(node.value), node.lanes)
    inner = node.value if type(node).__name__ == "Cast" else node
    scalar, lanes = split(type_of(inner))
    return inner if scalar == "int32" else inner.astype(f"int32x{lanes}" if lanes > 1 else "int32")


def bit_cast_argument(node: Any) -> Any:
    """Return the argument that a call reinterprets; ``None`` for anything else."""
    is_call = type(node).__name__ == "Call" and str(node.op.name) == "tirx.reinterpret"
    return node.args[0] if is_call else None
