"""PyTorch's rules for dtypes: operands are cast as it casts them, results are what it says.

The engine's importer computes in the dtype of an operand, and makes float32 of products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from amos.errors import NetworkError

#: Operators whose operands PyTorch promotes to one dtype.
_PROMOTED = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "floor_divide",
        "remainder",
        "fmod",
        "pow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "maximum",
        "minimum",
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "cat",
        "logaddexp",
        "atan2",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
)
#: Of those, the ones that make floats of integers.
_QUOTIENTS = frozenset({"div", "logaddexp", "atan2"})
#: Functions of one operand that make floats of integers.
_FUNCTIONS = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
    ]
)
#: Reductions and scans whose operand is cast to the dtype of the result.
_CAST = frozenset(["sum", "prod", "mean", "cumsum", "cumprod", "_softmax", "_log_softmax", "any"])
#: What rounds to whole numbers, as integers are.
_ROUNDING = frozenset(["floor", "ceil", "trunc", "round"])
_PRODUCTS = ("mm", "bmm", "matmul")


def promoted(program: Any) -> Any:
    """A decomposed program with PyTorch's casts of operands written out; itself, changed in place.

    Raises:
        NetworkError: an operator of integers has no counterpart.
    """
    for node in list(program.graph.nodes):
        if node.op != "call_function" or not hasattr(node.meta.get("val"), "dtype"):
            continue
        name = _name(node)
        if (kind := _operand_kind(node, name)) is not None:
            with program.graph.inserting_before(node):
                operands = node.args[1:] if name == "where" else node.args
                cast = _cast(program.graph, operands, kind)
                node.args = (node.args[0], *cast) if name == "where" else cast
        elif name in _ROUNDING and not node.meta["val"].dtype.is_floating_point:
            node.replace_all_uses_with(node.args[0])
    program.graph_module.recompile()
    return program


def _name(node: Any) -> str:
    """An operator's name without its overload."""
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _operand_kind(node: Any, name: str) -> Any:
    """The dtype in which PyTorch computes; ``None`` where that is the operands' own."""
    import torch

    kind = node.meta["val"].dtype
    if name in _CAST:
        return kind
    if name in _FUNCTIONS and not node.args[0].meta["val"].dtype.is_floating_point:
        return kind
    if name not in _PROMOTED:
        return None
    kind = _common_kind([*_leaves(node.args[1:] if name == "where" else node.args)])
    if name in _QUOTIENTS and not kind.is_floating_point and _rounding(node) is None:
        return torch.get_default_dtype()
    return kind


def _common_kind(operands: list[Any]) -> Any:
    """The dtype that PyTorch promotes operands to."""
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    values = [getattr(each, "meta", {}).get("val", each) for each in operands]
    kinds = ELEMENTWISE_TYPE_PROMOTION_KIND
    return elementwise_dtypes(*values, type_promotion_kind=kinds.DEFAULT)[1]


def _leaves(values: Any) -> list[Any]:
    """Tensors and numbers among the arguments of an operator."""
    import torch

    if isinstance(values, list | tuple):
        return [leaf for each in values for leaf in _leaves(each)]
    if isinstance(values, torch.fx.Node):
        return [values] if hasattr(values.meta["val"], "dtype") else []
    return [values] if isinstance(values, int | float) else []


def _cast(graph: Any, values: Any, kind: Any) -> Any:
    """Arguments with tensors of a dtype."""
    import torch

    if isinstance(values, list | tuple):
        return tuple(_cast(graph, each, kind) for each in values)
    if not isinstance(values, torch.fx.Node) or not hasattr(values.meta["val"], "dtype"):
        return values
    if values.meta["val"].dtype == kind:
        return values
    copy = graph.call_function(torch.ops.aten._to_copy.default, (values,), {"dtype": kind})
    copy.meta = {**values.meta, "val": values.meta["val"].to(kind)}
    return copy


def _rounding(node: Any) -> str | None:
    """How a quotient is rounded, if it is."""
    mode = node.kwargs.get("rounding_mode")
    return None if mode is None else str(mode)


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Conversions for the engine's importer: its own and ours, with results of PyTorch's dtype."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    names = [*ExportedProgramImporter().convert_map]
    own = {name: convert for name, convert in _OWN.items() if name in names}
    return {name: partial(_converted, own.get(name)) for name in names}


def _converted(own: Callable[[Any, Any], Any] | None, node: Any, importer: Any) -> Any:
    """What the importer makes of a node, in the dtype and shape that PyTorch gives it.

    Raises:
        NetworkError: it is computed in a dtype that loses values, or has another shape.
    """
    value = _theirs(node, importer) if own is None else own(node, importer)
    expected: Any = node.meta.get("val")
    result: Any = getattr(value, "ty", None)
    if not hasattr(expected, "dtype") or not hasattr(result, "dtype"):
        return value
    kind, got = str(expected.dtype).removeprefix("torch."), str(result.dtype)
    shape = _static(result.shape)
    if shape is not None and shape != tuple(expected.shape):
        raise NetworkError(
            f"{_name(node)}: the engine's result has shape {shape}, PyTorch's "
            f"{tuple(expected.shape)}"
        )
    if kind == got:
        return value
    if not _keeps_values(got, kind):
        raise NetworkError(f"{_name(node)}: the engine computes {got}, PyTorch {kind}")
    from tvm import relax

    return importer.block_builder.emit(relax.op.astype(value, kind))


def _theirs(node: Any, importer: Any) -> Any:
    """What the importer itself makes of a node."""
    return importer.create_convert_map()[node.target.__name__](node)


def _static(shape: Any) -> tuple[int, ...] | None:
    """Extents, where all are numbers."""
    extents = getattr(shape, "values", None)
    if extents is None or not all(hasattr(extent, "value") for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def _keeps_values(got: str, kind: str) -> bool:
    """Whether a result of one dtype, cast to another, is what computing in the other gives."""
    floats = {"bfloat16": 1, "float16": 1, "float32": 2, "float64": 3}
    if got in floats or kind in floats:
        return floats.get(got, 0) > floats.get(kind, 4)
    if "bool" in (got, kind):
        return got != "bool"
    return np.dtype(got).itemsize >= np.dtype(kind).itemsize


def _product_kind(kind: str) -> str:
    """The dtype in which products of a dtype are summed up."""
    return {"float64": "float64", "int64": "int64"}.get(kind) or (
        "float32" if "float" in kind else "int32"
    )


def _product(node: Any, importer: Any) -> Any:
    """A matrix product, whose sums of integers and of float64 are not float32's."""
    from tvm import relax

    x, y = importer.retrieve_args(node)
    out = _product_kind(str(x.ty.dtype))
    return importer.block_builder.emit(relax.op.matmul(x, y, out_dtype=out))


def _added_product(node: Any, importer: Any) -> Any:
    """A matrix product plus a tensor, each with a factor."""
    from tvm import relax

    emit = importer.block_builder.emit
    added, x, y = importer.retrieve_args(node)
    out = _product_kind(str(x.ty.dtype))
    factors = [node.kwargs.get(name, 1) for name in ("beta", "alpha")]
    product = emit(relax.op.matmul(x, y, out_dtype=out))
    added = added if str(added.ty.dtype) == out else emit(relax.op.astype(added, out))
    scaled = [
        value if factor == 1 else emit(relax.op.multiply(value, relax.const(factor, out)))
        for value, factor in zip((added, product), factors, strict=True)
        if factor != 0
    ]
    return emit(relax.op.add(*scaled)) if len(scaled) == 2 else scaled[0]


def _convolution(node: Any, importer: Any) -> Any:
    """A convolution, whose sums of integers and of float64 are not float32's."""
    from tvm import relax

    image, weight, bias, strides, padding, dilation, transposed, _, groups = importer.retrieve_args(
        node
    )
    out, letters = _product_kind(str(image.ty.dtype)), {3: "W", 4: "HW", 5: "DHW"}
    axes = letters.get(int(image.ty.ndim))
    if out == "float32" or transposed or axes is None:
        return _theirs(node, importer)
    emit, convolve = importer.block_builder.emit, getattr(relax.op.nn, f"conv{len(axes)}d")
    layouts = {"data_layout": f"NC{axes}", "kernel_layout": f"OI{axes}", "out_dtype": out}
    sums = emit(convolve(image, weight, strides, padding, dilation, groups, **layouts))
    if bias is None:
        return sums
    return emit(relax.op.add(sums, relax.op.reshape(bias, (1, -1, *[1] * len(axes)))))


def _rounded_quotient(node: Any, importer: Any) -> Any:
    """A quotient rounded down or towards zero, of numbers too."""
    from tvm import relax

    emit, kind = importer.block_builder.emit, _kind(node)
    x, y = _operands(node, importer, kind)
    mode = _rounding(node)
    if mode == "trunc" or "float" not in kind:
        rounded = relax.op.trunc if "float" in kind else lambda value: value
        divide = relax.op.floor_divide if mode == "floor" else relax.op.divide
        return emit(rounded(emit(divide(x, y))))
    return _floor(importer, x, y, kind) if mode == "floor" else emit(relax.op.divide(x, y))


def _floor_quotient(node: Any, importer: Any) -> Any:
    """A quotient rounded down."""
    from tvm import relax

    kind = _kind(node)
    x, y = _operands(node, importer, kind)
    if "float" in kind:
        return _floor(importer, x, y, kind)
    return importer.block_builder.emit(relax.op.floor_divide(x, y))


def _floor(importer: Any, x: Any, y: Any, kind: str) -> Any:
    """The quotient of what is divisible, as PyTorch has it: 1 by 0.1 is 9."""
    from tvm import relax

    emit = importer.block_builder.emit
    whole = emit(relax.op.subtract(x, _modulo(importer, x, y, kind)))
    return emit(relax.op.round(emit(relax.op.divide(whole, y))))


def _remainder(node: Any, importer: Any) -> Any:
    """A remainder of the divisor's sign."""
    from tvm import relax

    kind = _kind(node)
    x, y = _operands(node, importer, kind)
    if "float" in kind:
        return _modulo(importer, x, y, kind)
    return importer.block_builder.emit(relax.op.floor_mod(x, y))


def _modulo(importer: Any, x: Any, y: Any, kind: str) -> Any:
    """A remainder of floats: of truncated division, which is exact, moved to the divisor's sign."""
    from tvm import relax

    emit, zero = importer.block_builder.emit, relax.const(0, kind)
    remainder = emit(relax.op.mod(x, y))
    signs = [emit(relax.op.less(value, zero)) for value in (remainder, y)]
    differ = emit(relax.op.logical_xor(*signs))
    moved = emit(relax.op.logical_and(relax.op.not_equal(remainder, zero), differ))
    return emit(relax.op.where(moved, relax.op.add(remainder, y), remainder))


def _kind(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _operands(node: Any, importer: Any, kind: str) -> list[Any]:
    """Two operands, numbers as constants."""
    from tvm import relax

    values = importer.retrieve_args(node)[:2]
    return [v if isinstance(v, relax.Expr) else relax.const(v, kind) for v in values]


def _difference(node: Any, importer: Any) -> Any:
    """The second operand less the first."""
    from tvm import relax

    first, second = _operands(node, importer, _kind(node))
    return importer.block_builder.emit(relax.op.subtract(second, first))


def _power(node: Any, importer: Any) -> Any:
    """A power; of integers, which the engine does not raise, by a small constant.

    Raises:
        NetworkError: the exponent of integers is another.
    """
    base, exponent = node.args
    if "float" not in _kind(node) and not (
        isinstance(exponent, int) and 0 <= exponent <= _LARGEST_EXPONENT
    ):
        raise NetworkError(f"pow of {_kind(node)} is not supported; cast it to floats")
    return _theirs(node, importer)


_LARGEST_EXPONENT = 64
_OWN: dict[str, Callable[[Any, Any], Any]] = {
    **{f"{name}.default": _product for name in _PRODUCTS},
    "addmm.default": _added_product,
    "baddbmm.default": _added_product,
    "convolution.default": _convolution,
    "div.Tensor_mode": _rounded_quotient,
    **dict.fromkeys(("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor"), _power),
    "floor_divide.default": _floor_quotient,
    "remainder.Scalar": _remainder,
    "remainder.Tensor": _remainder,
    "rsub.Scalar": _difference,
    "rsub.Tensor": _difference,
}
