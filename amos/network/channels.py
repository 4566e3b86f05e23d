"""A cascade of two convolutions as one function, by strips of channels.

A depthwise convolution reads of each channel only that channel. So a core makes some channels of
the first convolution's results, for a whole image, and goes on with these: nothing is computed
twice, and what is between stays in the caches near the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.network.strips import Layer, loads_of, view
from amos.operators.cascade import IMAGES, SOURCE, Cascade, argument, axis_of, channel_of


def _arguments(cascade: Cascade, channels: int, layers: Sequence[Layer]) -> tuple[Argument, ...]:
    """What layers read, and the result."""
    every = []
    for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True)):
        for each in layer.program.inputs:
            if number and each.tensor == SOURCE:
                continue
            if each.tensor in operator.constants:
                shape = (cascade.channels // channels, *each.shape)
            else:
                shape = loads_of(operator, each.tensor)[0].tensor.shape
            name = argument(number, each.tensor)
            every.append(Argument(name, each.dtype, shape, each.packed))
    result = cascade.result
    return (*every, Argument("result", str(result.dtype), result.shape))


def by_channels(
    cascade: Cascade, channels: int, cores: int, layers: Sequence[Layer]
) -> tuple[tuple[Argument, ...], Any]:
    """The function of a cascade.

    Args:
        cascade: what it computes.
        channels: of a strip.
        cores: how many there are.
        layers: the convolutions of a strip.

    Returns:
        Its arguments, the output last, and the function.
    """
    load_tvm()
    from tvm import tirx

    arguments = _arguments(cascade, channels, layers)
    buffers = {
        each.tensor: tirx.decl_buffer(each.shape, each.dtype, each.tensor.replace(".", "_"))
        for each in arguments
    }
    core, step = tirx.Var("core", "int32"), tirx.Var("strip", "int32")
    strips = cascade.channels // channels
    first, end = (each * (cascade.images * strips) // cores for each in (core, core + 1))
    image, strip = (first + step) // strips, (first + step) % strips
    one, other = layers
    between = tirx.decl_buffer(one.result.shape, one.result.dtype, "between")
    views = [view(one.result, between), view(other.parameters[SOURCE], between)]
    views.append(view(other.result, buffers["result"], [image, 0, 0, strip * channels]))
    for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True)):
        for tensor, own in layer.parameters.items():
            whole = buffers.get(argument(number, tensor))
            if whole is not None:
                at = _start(operator, tensor, len(whole.shape), image, strip, channels)
                views.append(view(own, whole, at))
    steps = tirx.SeqStmt([*views, one.body, other.body])
    loop = tirx.For(step, 0, end - first, tirx.ForKind.SERIAL, steps)
    body = tirx.SeqStmt([tirx.AllocBuffer(between), loop])
    parallel = tirx.For(core, 0, cores, tirx.ForKind.PARALLEL, body)
    return arguments, tirx.PrimFunc([*buffers.values()], parallel).with_attr("s_tir", True)


def _start(
    operator: Operator, tensor: str, axes: int, image: Any, strip: Any, channels: int
) -> list[Any]:
    """The element of a whole tensor with which a strip begins."""
    if tensor in operator.constants:
        return [strip, *(0 for _ in range(axes - 1))]
    (load, *_) = loads_of(operator, tensor)
    at = [image if IMAGES in index.names else 0 for index in load.indices]
    axis = axis_of(load, channel_of(operator))
    return at if axis < 0 else [*at[:axis], strip * channels, *at[axis + 1 :]]
