"""What is made plain before layouts are chosen: batch norms, taps, constants of fewer axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from math import isfinite
from typing import Any

import numpy as np

from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.products import read_once
from amos.network.program import Rewrite, Writer, const, read, rebuilt, renewed

#: Operations whose first axis of the weights is the channel that a norm scales.
_SCALED = ("nn.conv1d", "nn.conv2d", "nn.conv3d")

#: Operations that repeat an operand along the axes that it lacks.
_BROADCASTING = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def counted(module: Any) -> Any:
    """The module with axes and constant indices counted from the first.

    The engine reads beside the tensor at an index below 0, and fails at layouts of such axes. An
    index of a call that is beyond the end means the last place.
    """
    graph = read(module)
    rewrite: dict[int, Rewrite] = {}
    for node in graph.nodes:
        make = _COUNTED[node.operation](node) if node.operation in _COUNTED else None
        if make is not None:
            rewrite[node.number] = make
    return rebuilt(graph, rewrite) if rewrite else module


def _squeezed(node: Node) -> Rewrite | None:
    from tvm import relax

    shape = node.operands[0].shape
    axes = range(-len(shape), 0) if node.attributes.axis is None else node.integers("axis")
    if min(axes, default=0) >= 0:
        return None
    ones = sorted({axis % len(shape) for axis in axes if shape[axis] == 1})
    return lambda writer: relax.op.squeeze(writer.value(node.operands[0]), ones)


def _permuted(node: Node) -> Rewrite | None:
    from tvm import relax

    if node.attributes.axes is None or min(node.integers("axes"), default=0) >= 0:
        return None
    axes = [axis % len(node.shape) for axis in node.integers("axes")]
    return lambda writer: relax.op.permute_dims(writer.value(node.operands[0]), axes)


def _taken(node: Node) -> Rewrite | None:
    from tvm import relax

    source, indices = node.operands[0], node.operands[-1]
    axis = node.attributes.axis
    if isinstance(indices, Node):
        return lambda writer: relax.op.take(
            writer.value(source), writer.value(indices), axis, "clip"
        )
    if not (indices.array < 0).any():
        return None
    size = int(np.prod(source.shape)) if axis is None else source.shape[int(axis)]
    places = np.where(indices.array < 0, indices.array + size, indices.array)
    values = const(places.astype(indices.dtype))
    return lambda writer: relax.op.take(writer.value(source), values, axis, "clip")


_COUNTED: dict[str, Callable[[Node], Rewrite | None]] = {
    "squeeze": _squeezed,
    "permute_dims": _permuted,
    "take": _taken,
}


def slices_of_splits(graph: Graph, called: Set[int]) -> dict[int, Rewrite]:
    """A slice for each part of the splits of which kernels read one part at the most.

    The engine computes a slice where its own functions read it; of a split it copies all parts.

    Args:
        graph: what is computed.
        called: numbers of the nodes that kernels compute.
    """
    slices: dict[int, Rewrite] = {}
    for node in graph.nodes:
        parts = graph.users[node.number] if node.operation == "split" else ()
        copied = [p for p in parts if any(user.number in called for user in graph.users[p.number])]
        if len(copied) <= 1 and all(part.operation == "item" for part in parts):
            slices |= {part.number: _slice(node, part) for part in parts}
    return slices


def _slice(node: Node, part: Node) -> Rewrite:
    from tvm import relax

    source, axis = node.operands[0], int(node.attributes.axis) % len(part.shape)
    places, index = node.attributes.indices_or_sections, part.expression.index
    if isinstance(getattr(places, "value", places), int):  # the last of as many is the shortest
        begin = index * -(-source.shape[axis] // int(places))
    else:
        begin = (0, *map(int, places))[index]
    end = begin + part.shape[axis]
    return lambda writer: relax.op.strided_slice(writer.value(source), [axis], [begin], [end])


def without_idle_taps(module: Any) -> Any:
    """The module with convolutions that lack the first and last taps that read only padding.

    Where images have become smaller than a window, most of its taps are such. Layouts are as
    frameworks write them, channels second.
    """
    graph = read(module)
    rewrite: dict[int, Rewrite] = {}
    for node in graph.nodes:
        if node.operation not in _SCALED:
            continue
        idle = [_idle_taps(node, axis) for axis in range(len(node.shape) - 2)]
        weight = _constant_of(graph, node.operands[1])
        if weight is None or not any(map(any, idle)):
            continue
        sizes = weight.shape[2:]
        taps = (slice(first, n - last) for (first, last), n in zip(idle, sizes, strict=True))
        fewer = const(weight.array[:, :, *taps])
        rewrite[node.number] = _unpadded(node, idle, fewer)
        if isinstance(node.operands[1], Node):
            rewrite[node.operands[1].number] = _dequantized(node.operands[1], fewer)
    return rebuilt(graph, rewrite) if rewrite else module


def _idle_taps(node: Node, axis: int) -> tuple[int, int]:
    """How many of the first and of the last taps along an axis read nothing but padding."""
    image, weight = node.operands
    size, taps, results = (x.shape[axis + 2] for x in (image, weight, node))
    stride, step = (node.integers(name)[axis] for name in ("strides", "dilation"))
    padding = node.integers("padding")
    before, after = padding[axis], padding[axis + len(padding) // 2]
    # A tap that is left out takes its step of padding along, of which there has to be as much.
    outside, inside = before - (results - 1) * stride, size + before
    first = min(max(-(-outside // step), 0), before // step)
    last = min(max(taps - -(-inside // step), 0), after // step)
    return (first, last) if first + last < taps else (0, 0)


def _constant_of(graph: Graph, weight: Operand) -> Constant | None:
    """Constant weights, or those that are dequantized for one operator alone."""
    if isinstance(weight, Constant):
        return weight
    alone = weight.operation == "dequantize" and read_once(graph, weight)
    stored = weight.operands[0] if alone else None
    return stored if isinstance(stored, Constant) else None


def _unpadded(node: Node, idle: Sequence[tuple[int, int]], fewer: Any) -> Rewrite:
    """A convolution with fewer taps, and with less padding."""
    from tvm import relax

    image, weight = node.operands
    told = node.attributes
    steps = node.integers("dilation")
    lost = [first * step for (first, _), step in zip(idle, steps, strict=True)]
    lost += [last * step for (_, last), step in zip(idle, steps, strict=True)]
    padding = [each - less for each, less in zip(node.integers("padding"), lost, strict=True)]
    make = getattr(relax.op.nn, node.operation.removeprefix("nn."))
    return lambda writer: make(
        writer.value(image),
        writer.value(weight) if isinstance(weight, Node) else fewer,
        node.integers("strides"),
        padding,
        steps,
        int(told.groups),
        told.data_layout,
        told.kernel_layout,
        told.out_layout,
        told.out_dtype,
    )


def _dequantized(node: Node, fewer: Any) -> Rewrite:
    """A dequantization of fewer weights."""
    levels = node.operands[1:]
    return lambda writer: renewed(node, [fewer, *map(writer.value, levels)])


def simplified(module: Any) -> Any:
    """The module with every batch norm of constants as a product and a sum.

    Behind a convolution of which nothing else reads the result, the product becomes part of
    its weights. A clip becomes two comparisons, and constants that are repeated get all the
    axes of what they are combined with, without which the engine changes no layout. Layouts
    are as frameworks write them, channels second.
    """
    graph = read(module)
    rewrite: dict[int, Rewrite] = {}
    skip: set[int] = set()
    for node in graph.nodes:
        if node.operation == "nn.batch_norm":
            _without_norm(graph, node, rewrite, skip)
        elif node.operation in _BROADCASTING and _lacks_axes(node):
            rewrite[node.number] = _with_axes(node)
        elif node.operation == "clip":
            rewrite[node.number] = _clamped(node)
    return rebuilt(graph, rewrite, frozenset(skip)) if rewrite else module


def _lacks_axes(node: Node) -> bool:
    return any(
        isinstance(operand, Constant) and len(operand.shape) < len(node.shape)
        for operand in node.operands
    )


def _with_axes(node: Node) -> Rewrite:
    def shaped(operand: Operand, writer: Writer) -> Any:
        if not isinstance(operand, Constant):
            return writer.value(operand)
        axes = [1] * (len(node.shape) - len(operand.shape))
        return const(operand.array.reshape(*axes, *operand.shape))

    def make(writer: Writer) -> Any:
        from tvm import ir

        arguments = [shaped(operand, writer) for operand in node.operands]
        return ir.Call(node.expression.op, arguments, node.attributes, node.expression.ty_args)

    return make


def _clamped(node: Node) -> Rewrite:
    """A clip as two comparisons, which the engine takes from one layout to another."""

    def make(writer: Writer) -> Any:
        from tvm import relax

        value = writer.value(node.operands[0])
        compare = relax.op.maximum, relax.op.minimum
        for operation, bound in zip(compare, node.expression.args[1:], strict=True):
            if isfinite(bound.value):
                limit = const(np.full([1] * len(node.shape), bound.value, node.dtype))
                value = writer.emit(operation(value, limit))
        return value

    return make


def _without_norm(graph: Graph, node: Node, rewrite: dict[int, Rewrite], skip: set[int]) -> None:
    """What makes a norm plain, if that is possible."""
    items = graph.users[node.number]
    if not _plain(graph, node, items):
        return
    skip |= {node.number, *(item.number for item in items)}
    (first,) = (item for item in items if item.expression.index == 0)
    skip.remove(first.number)
    source = node.operands[0]
    scale, shift = _scale_and_shift(node)
    if isinstance(source, Node) and _foldable(graph, source):
        rewrite[source.number] = _scaled_convolution(source, scale)
        rewrite[first.number] = _affine(node, None, shift)
    else:
        rewrite[first.number] = _affine(node, scale, shift)


def _plain(graph: Graph, node: Node, items: tuple[Node, ...]) -> bool:
    """Whether only the result of a norm is read, and its parameters are constants."""
    constant = all(isinstance(operand, Constant) for operand in node.operands[1:])
    read_ = [item for item in items if graph.users[item.number] or item.number in graph.kept]
    return constant and [item.expression.index for item in read_] == [0]


def _foldable(graph: Graph, node: Node) -> bool:
    weight = node.operands[1] if node.operation in _SCALED else None
    return isinstance(weight, Constant) and read_once(graph, node)


def _scale_and_shift(node: Node) -> tuple[np.ndarray, np.ndarray]:
    """What a norm multiplies each channel by, and adds to it, in double precision."""
    gamma, beta, mean, variance = (
        operand.array.astype(np.float64)
        for operand in node.operands[1:]
        if isinstance(operand, Constant)
    )
    scale = 1 / np.sqrt(variance + float(node.attributes.epsilon))
    scale = scale * gamma if node.attributes.scale else scale
    shift = -mean * scale
    return scale, shift + beta if node.attributes.center else shift


def _scaled_convolution(node: Node, scale: np.ndarray) -> Rewrite:
    def make(writer: Writer) -> Any:
        from tvm import ir

        image, weight = node.operands
        assert isinstance(weight, Constant)
        each = scale.reshape(-1, *[1] * (weight.array.ndim - 1))
        scaled = (weight.array * each).astype(weight.array.dtype)
        arguments = [writer.value(image), const(scaled)]
        return ir.Call(node.expression.op, arguments, node.attributes, node.expression.ty_args)

    return make


def _affine(node: Node, scale: np.ndarray | None, shift: np.ndarray) -> Rewrite:
    """The source of a norm times ``scale``, plus ``shift``."""
    source = node.operands[0]
    axis = int(node.attributes.axis)

    def constant(values: np.ndarray) -> Any:
        rank = len(source.shape)
        shaped = values.reshape([-1 if d == axis % rank else 1 for d in range(rank)])
        return const(shaped.astype(source.dtype))

    def make(writer: Writer) -> Any:
        from tvm import relax

        value = writer.value(source)
        if scale is not None:
            value = writer.emit(relax.op.multiply(value, constant(scale)))
        return relax.op.add(value, constant(shift))

    return make
