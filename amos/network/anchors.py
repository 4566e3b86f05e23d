"""Anchors: which nodes are sums of products, and their line of math."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from amos.errors import OperatorError
from amos.ir import Operator
from amos.network.blocked import BlockedWeight
from amos.network.graph import Constant, Node, Operand
from amos.operators.transposed import TransposedAxis, transposed_axis, transposed_text


@dataclass(frozen=True)
class Anchor:
    """A node as a statement of the operator language.

    Attributes:
        kind: its name, for example ``"conv2d"``.
        extents: of each iteration.
        sources: the network's value that each source stands for.
        shapes: of each source as the statement indexes it; as many elements as the value has.
        axes: for each axis of the node's result the iterations that walk it, outermost first.
        refused: why no kernel takes it; the other fields are then empty.
    """

    kind: str
    text: str = ""
    extents: dict[str, int] | None = None
    sources: dict[str, Operand] | None = None
    shapes: dict[str, tuple[int, ...]] | None = None
    axes: tuple[tuple[str, ...], ...] = ()
    refused: str = ""


#: Names of the axes of a window by how many there are: of the output, and of the kernel.
_WINDOWS = {1: ("q", "s"), 2: ("pq", "rs"), 3: ("dpq", "trs")}
#: Names of the phases of a transposed convolution, by the number of axes.
_PHASES = {1: "b", 2: "ab"}
#: Names of the leading axes of a matrix product.
BATCHES = "abefgh"


def anchor_of(node: Node) -> Anchor | None:
    """Return a node as an anchor, refused or not; ``None`` if it adds up no products."""
    make = _ANCHORS.get(node.operation)
    return make(node) if make else None


def count_products(node: Node) -> int:
    """Return how many products a node adds up; 0 if it multiplies no matrices or windows."""
    if node.operation not in _ANCHORS:
        return 0
    first, second = node.operands[:2]
    if node.operation == "MatMul":
        return prod(node.shape) * first.shape[-1]
    if node.operation == "ConvTranspose":
        return prod(first.shape) * prod(second.shape[1:])
    return prod(node.shape) * prod(second.shape[1:])


def _convolution(node: Node) -> Anchor:
    image, weight = node.operands
    dimensions, attributes = len(image.shape) - 2, node.attributes
    kind = f"conv{dimensions}d"
    if not attributes["channels_last"]:
        return Anchor(kind, refused="channels are not the last axis")
    outputs, taps = _WINDOWS[dimensions]
    groups = attributes["group"]
    channels, features = image.shape[-1], weight.shape[0]
    extents = {"n": image.shape[0], "g": groups, "k": features // groups}
    extents |= {"c": channels // groups}
    reads = []
    strides, dilation, padding = attributes["strides"], attributes["dilations"], attributes["pads"]
    padded = False
    for d, (out, tap) in enumerate(zip(outputs, taps, strict=True)):
        extents |= {out: node.shape[1 + d], tap: weight.shape[2 + d]}
        reads.append(_index(out, strides[d], tap, dilation[d], padding[d]))
        last = (node.shape[1 + d] - 1) * strides[d] + (weight.shape[2 + d] - 1) * dilation[d]
        padded |= padding[d] > 0 or last - padding[d] >= image.shape[1 + d]
    return _write_convolution(
        _name_grouped(kind, groups, extents), node, extents, ",".join(outputs), reads, taps, padded
    )


def _name_grouped(kind: str, groups: int, extents: dict[str, int]) -> str:
    if groups == 1:
        return kind
    return f"depthwise_{kind}" if extents["c"] == 1 and extents["k"] == 1 else f"grouped_{kind}"


def _index(out: str, stride: int, tap: str, dilation: int, padding: int) -> str:
    first = out if stride == 1 else f"{out}*{stride}"
    second = tap if dilation == 1 else f"{tap}*{dilation}"
    return f"{first}+{second}-{padding}" if padding else f"{first}+{second}"


def _write_convolution(
    kind: str,
    node: Node,
    extents: dict[str, int],
    outputs: str,
    reads: list[str],
    taps: str,
    padded: bool,
) -> Anchor:
    """Write a convolution, without iterations that a group of its kind lacks."""
    image, weight = node.operands
    # Channels of the image, of the weight and of the output.
    depthwise, grouped = kind.startswith("depthwise"), kind.startswith("grouped")
    inner = "g" if depthwise else "g,c" if grouped else "c"
    outer = "g" if depthwise else "g,k" if grouped else "k"
    of_weight = "g" if depthwise else "g,k,c" if grouped else "k,c"
    extents = {name: extents[name] for name in extents if name not in "gck"} | {
        name: extents[name] for name in dict.fromkeys((*outer.split(","), *inner.split(",")))
    }
    access = f"image[n,{','.join(reads)},{inner}]"
    access = f"pad({access})" if padded else access
    window = ",".join(taps)
    shapes = {
        "image": (*image.shape[:-1], *(extents[name] for name in inner.split(","))),
        "weight": (*(extents[name] for name in of_weight.split(",")), *weight.shape[2:]),
    }
    return Anchor(
        kind=kind,
        text=f"out[n,{outputs},{outer}] += {access} * weight[{of_weight},{window}]",
        extents=extents,
        sources={"image": image, "weight": weight},
        shapes=shapes,
        axes=(("n",), *((name,) for name in outputs.split(",")), tuple(outer.split(","))),
    )


def _matmul(node: Node) -> Anchor:
    """Write a matrix product, whose factors have the batches (leading axes) that move them."""
    x, y = node.operands
    if len(x.shape) < 2 or len(y.shape) < 2:
        return Anchor("matmul", refused="a factor is a vector")
    lead = node.shape[:-2]
    if len(lead) > len(BATCHES):
        return Anchor("matmul", refused=f"{len(node.shape)} axes")
    # An axis of extent 1 moves no factor.
    batches = [n if extent > 1 else "" for n, extent in zip(BATCHES, lead, strict=False)]
    extents = {n: extent for n, extent in zip(batches, lead, strict=True) if n}
    of_x, of_y = _select_moving(batches, x), _select_moving(batches, y)
    kind = "batched_matmul" if of_y else "matmul"
    kind += f"_{y.format}" if isinstance(y, BlockedWeight) else ""
    outer, of_x, of_y = [*extents, "m", "n"], [*of_x, "m", "k"], [*of_y, "k", "n"]
    extents |= {"m": x.shape[-2], "n": y.shape[-1], "k": x.shape[-1]}
    name = "weight" if isinstance(y, Constant) else "y"
    return Anchor(
        kind=kind,
        text=f"out[{','.join(outer)}] += x[{','.join(of_x)}] * {name}[{','.join(of_y)}]",
        extents=extents,
        sources={"x": x, name: y},
        shapes={
            "x": tuple(extents[each] for each in of_x),
            name: tuple(extents[each] for each in of_y),
        },
        axes=(*((each,) if each else () for each in batches), ("m",), ("n",)),
    )


def _select_moving(batches: Sequence[str], factor: Operand) -> list[str]:
    """Select the batches that move a factor; its axes are the last ones of the result."""
    lead = factor.shape[:-2]
    own = batches[len(batches) - len(lead) :]
    return [name for name, extent in zip(own, lead, strict=True) if extent > 1]


def _write_transposed(node: Node) -> Anchor:
    """Write a transposed convolution by phases, which read no inserted zeros."""
    image, weight = node.operands
    attributes = node.attributes
    dimensions = len(image.shape) - 2
    kind = f"transposed_conv{dimensions}d"
    if dimensions not in _PHASES or not attributes["channels_last"]:
        return Anchor(
            kind, refused="channels are not the last axis, or images have three dimensions"
        )
    before, after = attributes["pads"][:dimensions], attributes["pads"][dimensions:]
    plain = {*attributes["dilations"], attributes["group"]} == {1}
    if not plain or before != after or any(attributes["output_padding"]):
        return Anchor(kind, refused="groups, dilation, or sides that differ")
    names = zip(*_WINDOWS[dimensions], _PHASES[dimensions], strict=True)
    sizes = zip(node.shape[1:-1], weight.shape[2:], strict=True)
    steps = zip(attributes["strides"], before, strict=True)
    try:
        axes = [
            transposed_axis(letters, size, stride, padding, phases=True)
            for letters, size, (stride, padding) in zip(names, sizes, steps, strict=True)
        ]
        op = _write_by_phases(node, axes)
    except OperatorError as error:
        return Anchor(kind, refused=str(error))
    text = str(op.compute)
    if isinstance(weight, Constant):
        order, weight = _order_by_phases(op, weight)
        text = f"{op.compute.dst} += {op.sources[0]} * weight[{','.join(order)}]"
    return Anchor(
        kind=kind,
        text=text,
        extents=op.extents,
        sources={"image": image, "weight": weight},
        shapes={"image": image.shape, "weight": weight.shape},
        axes=tuple(index.names for index in op.output.indices),
    )


def _write_by_phases(node: Node, axes: Sequence[TransposedAxis]) -> Operator:
    """Write a transposed convolution along these axes."""
    image, weight = node.operands
    extents = dict(n=node.shape[0], c=weight.shape[0], k=weight.shape[1])
    extents |= {name: extent for axis in axes for name, extent in axis.extents.items()}
    text = transposed_text(axes, "NHWC" if len(axes) > 1 else "NWC")
    return Operator.parse(text, extents, shapes={"image": image.shape, "weight": weight.shape})


def _order_by_phases(op: Operator, weight: Constant) -> tuple[tuple[str, ...], Constant]:
    """Return the iterations that index weights in the order of phases, and these weights.

    In the order of frameworks a phase would read one in ``stride**2`` adjacent elements.
    """
    order = (*sorted(set(op.extents).intersection("abkrs")), "c")
    steps = np.ix_(*(np.arange(op.extents[name]) for name in order))
    values: dict[str, Any] = dict(zip(order, steps, strict=True))
    indices = op.sources[1].indices
    at = [index.evaluate({name: values[name] for name in index.names}) for index in indices]
    pairs = [*zip(at, weight.shape, strict=True)]
    is_valid = reduce(np.logical_and, [(x >= 0) & (x < extent) for x, extent in pairs])
    places = tuple(np.clip(x, 0, extent - 1) for x, extent in pairs)
    array = np.where(is_valid, weight.array[places], np.zeros((), weight.array.dtype))
    return order, Constant(array)


_ANCHORS: dict[str, Callable[[Node], Anchor]] = {
    "Conv": _convolution,
    "ConvTranspose": _write_transposed,
    "MatMul": _matmul,
}
