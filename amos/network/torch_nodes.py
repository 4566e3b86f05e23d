"""PyTorch's nodes that the engine's importer misreads: stated otherwise, or refused."""

from __future__ import annotations

from math import prod
from typing import Any

from amos.errors import NetworkError

#: Sums with a factor, and which of the operands it belongs to.
_SUMS = {"aten.add": 1, "aten.sub": 1, "aten.rsub": 0}
#: What the importer does itself, by what PyTorch calls it; others it takes apart first.
_RESIZES = {
    "aten.upsample_nearest2d": "nearest",
    "aten.upsample_bilinear2d": "bilinear",
    "aten._upsample_bilinear2d_aa": "antialiased",
}
#: Averages that may divide by a number of their own, and where that stands among the arguments.
_POOLS = ("aten.avg_pool2d", "aten.avg_pool3d")
_DIVISOR = 6
#: Operators that are random unless an argument, at its place or by its name, is zero.
_RANDOM = {
    "aten.dropout": (2, "train"),
    "aten.scaled_dot_product_attention": (4, "dropout_p"),
}
#: What leaves the values of an index as they are.
_VIEWS = ("aten.view", "aten.reshape", "aten.lift_fresh_copy", "aten.clone", "aten.unsqueeze")


def restated(program: Any) -> Any:
    """A program of nodes that the importer reads rightly; itself, changed in place.

    Raises:
        NetworkError: there is no other way to state one of them.
    """
    graph = program.graph
    for node in list(graph.nodes):
        name = str(node.target).rpartition(".")[0] if node.op == "call_function" else ""
        _check_random(node, name)
        if name in _SUMS:
            _multiply(graph, node, _SUMS[name])
        elif name in _POOLS:
            _divide(graph, node)
        elif name in _RESIZES:
            _check_resize(node, _RESIZES[name])
        elif name == "aten.index":
            source, indices = node.args
            _check_indices(indices)
            extents = source.meta["val"].shape
            places = zip(indices, extents, strict=False)
            node.args = source, [_counted(program, node, *each) for each in places]
        elif name == "aten.take":
            source, index = node.args
            node.args = source, _counted(program, node, index, source.meta["val"].numel())
    program.graph_module.recompile()
    return program


def _check_random(node: Any, name: str) -> None:
    """Refuse what draws random numbers, which the importer overlooks.

    Raises:
        NetworkError: it does.
    """
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return
    if name in _RANDOM:
        place, argument = _RANDOM[name]
        stated = node.args[place] if len(node.args) > place else node.kwargs.get(argument, 0)
        if not stated:
            return
    raise NetworkError(f"{name.removeprefix('aten.')} draws random numbers")


def _divide(graph: Any, node: Any) -> None:
    """Write the divisor of an average, which the importer overlooks, as a product.

    Raises:
        NetworkError: windows reach beyond the padding.
    """
    import torch

    if len(node.args) <= _DIVISOR or node.args[_DIVISOR] is None:
        return
    source, window, strides, padding, ceil, _, divisor = node.args
    if ceil:
        raise NetworkError("avg_pool: divisor_override with ceil_mode is not supported")
    node.args = source, window, strides, padding, False, True
    with graph.inserting_after(node):
        sizes = window * (node.meta["val"].ndim - 2) if len(window) == 1 else window
        factor = prod(sizes) / divisor
        product = graph.call_function(torch.ops.aten.mul.Tensor, (node, factor))
    product.meta = dict(node.meta)
    node.replace_all_uses_with(product, delete_user_cb=lambda user: user is not product)


def _multiply(graph: Any, node: Any, place: int) -> None:
    """Write the factor of a sum, which the importer overlooks, as a product."""
    import torch

    first, second, *more = node.args
    alpha = node.kwargs.get("alpha", more[0] if more else 1)
    if alpha == 1:
        return
    operands = [first, second]
    operand = operands[place]
    if isinstance(operand, torch.fx.Node):
        with graph.inserting_before(node):
            product = graph.call_function(torch.ops.aten.mul.Tensor, (operand, alpha))
        product.meta = {**operand.meta, "val": operand.meta["val"] * alpha}
        operands[place] = product
    else:
        operands[place] = operand * alpha
    node.args, node.kwargs = tuple(operands), {}


def _check_indices(indices: Any) -> None:
    """Refuse indices that the importer takes one beside the other.

    Raises:
        NetworkError: there are several, and not of the first axes.
    """
    count = sum(index is not None for index in indices)
    if count > 1 and None in indices[:count]:
        raise NetworkError(
            "several tensors as indices have to be those of the first axes: x[i, j], not x[:, i, j]"
        )


def _counted(program: Any, user: Any, index: Any, extent: int) -> Any:
    """An index that counts from the first element where it counted from the end.

    The engine reads the first element at a negative index, or beside the tensor.
    """
    import torch

    if index is None or index.meta["val"].dtype not in (torch.int32, torch.int64):
        return index  # everything, or those elements for which a mask is true
    values = _stored(program, index)
    if values is not None and bool((values >= 0).all()):
        return index
    aten, value = torch.ops.aten, index.meta["val"]
    with program.graph.inserting_before(user):
        negative = program.graph.call_function(aten.lt.Scalar, (index, 0))
        negative.meta = {**index.meta, "val": value < 0}
        from_first = program.graph.call_function(aten.add.Tensor, (index, int(extent)))
        counted = program.graph.call_function(aten.where.self, (negative, from_first, index))
        from_first.meta, counted.meta = dict(index.meta), dict(index.meta)
    return counted


def _stored(program: Any, node: Any) -> Any:
    """The values of a weight, also of a view of it; ``None`` of what a call computes."""
    while str(node.target).rpartition(".")[0] in _VIEWS:
        node = node.args[0]
    signature = program.graph_signature
    stored = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    name = stored.get(node.name)
    return program.state_dict.get(name, program.constants.get(name))


def _check_resize(node: Any, kind: str) -> None:
    """Refuse sizes for which the importer takes other elements than PyTorch does.

    Raises:
        NetworkError: this is such a size.
    """
    extents, sizes = (map(int, each.meta["val"].shape[2:]) for each in (node.args[0], node))
    *_, factors = node.args
    factors = factors if isinstance(factors, list | tuple) else (None, None)
    by_factor = node.args[1] is None and not (kind != "nearest" and node.args[2])
    for extent, size, factor in zip(extents, sizes, factors, strict=True):
        uneven = factor is not None and abs(extent * float(factor) - size) > 1e-6
        if (
            (kind == "nearest" and size % extent)
            or (kind == "antialiased" and size < extent)
            or (by_factor and uneven)
        ):
            raise NetworkError(
                f"interpolate: {extent} elements to {size}, {kind}, are not supported: the "
                "engine's importer would take other elements than PyTorch"
            )
