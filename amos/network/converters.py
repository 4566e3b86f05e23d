"""ONNX nodes that are imported our way.

The engine makes loops of some that are elementwise, before anything can see what they are; its
importer takes no converters of others. So its table has ours in it while a model is imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import floordiv
from threading import Lock
from typing import Any

import numpy as np

from amos.errors import NetworkError, shown
from amos.network.activations import ACTIVATIONS, Convert
from amos.network.program import const
from amos.network.resizing import by_indices

_LOCK = Lock()


@contextlib.contextmanager
def own_converters() -> Iterator[None]:
    """Let TVM's importer use the converters of this file."""
    from tvm.relax.frontend.onnx import onnx_frontend

    with _LOCK:
        theirs = onnx_frontend._get_convert_map
        stated = {kind: _Adjusted(theirs()[kind], adjust) for kind, adjust in _ADJUSTED.items()}
        stated["Resize"] = _Resize(theirs()["Resize"], _resized)
        onnx_frontend._get_convert_map = lambda: {**theirs(), **_CONVERTERS, **stated}
        try:
            yield
        finally:
            onnx_frontend._get_convert_map = theirs


@dataclass(frozen=True)
class _Converter:
    """What the importer asks for a conversion."""

    convert: Convert

    def get_converter(self, _: int) -> Callable[..., Any]:
        """The conversion, whatever the version of the operator set."""

        def converted(builder: Any, inputs: Any, attributes: Any, _: Any) -> Any:
            return self.convert(builder, list(inputs), attributes)

        return converted


@dataclass(frozen=True)
class _Adjusted:
    """The importer's own conversion, of a node that is stated so that it reads it rightly."""

    theirs: Any
    adjust: Callable[[list[Any], dict[str, Any]], None]

    def get_converter(self, opset: int) -> Callable[..., Any]:
        """The conversion for a version of the operator set."""
        convert = self.theirs.get_converter(opset)

        def converted(builder: Any, inputs: Any, attributes: dict[str, Any], params: Any) -> Any:
            self.adjust(inputs, attributes)
            return convert(builder, inputs, attributes, params)

        return converted


class _Resize(_Adjusted):
    """Resizes, of which some are indices."""

    def get_converter(self, opset: int) -> Callable[..., Any]:
        convert = super().get_converter(opset)

        def converted(builder: Any, inputs: Any, attributes: dict[str, Any], params: Any) -> Any:
            value = by_indices(builder, inputs, attributes)
            return convert(builder, inputs, attributes, params) if value is None else value

        return converted


def _window(inputs: list[Any], attributes: Mapping[str, Any], extents: Any) -> Iterator[_Axis]:
    """What a node says of each axis of its window."""
    sizes = [int(size) for size in inputs[0].ty.shape.values[2:]]
    ones, zeros = [1] * len(sizes), [0] * len(sizes)
    columns = (
        attributes.get("strides", ones),
        attributes.get("dilations", ones),
        attributes.get("output_padding", zeros),
    )
    for size, extent, stride, dilation, more in zip(sizes, extents, *columns, strict=True):
        yield _Axis(size, stride, (int(extent) - 1) * dilation + 1, more)


@dataclass(frozen=True)
class _Axis:
    """An axis of a window: size of the input, stride, what the window spans, output padding."""

    size: int
    stride: int
    span: int
    more: int


def _padded_pool(inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Write ``SAME`` out: results are as many as strides, rounded up."""
    mode = attributes.get("auto_pad", b"NOTSET")
    if not mode.startswith(b"SAME"):
        return
    totals = [
        max((-(-axis.size // axis.stride) - 1) * axis.stride + axis.span - axis.size, 0)
        for axis in _window(inputs, attributes, attributes["kernel_shape"])
    ]
    attributes["auto_pad"] = b"NOTSET"
    attributes["pads"] = _divided(totals, mode == b"SAME_UPPER")


def _divided(totals: list[int], upper: bool) -> list[int]:
    """Padding before and behind each axis; of what is odd, one more on one of the sides."""
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*less, *more] if upper else [*more, *less]


def _sized(inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Write the output shape of a transposed convolution as padding."""
    if not (shape := attributes.pop("output_shape", None)):
        return
    extents = inputs[1].ty.shape.values[2:]
    axes = list(_window(inputs, attributes, extents))
    totals = [
        axis.stride * (axis.size - 1) + axis.more + axis.span - size
        for axis, size in zip(axes, shape[-len(axes) :], strict=True)
    ]
    upper = attributes.pop("auto_pad", b"NOTSET") == b"SAME_UPPER"
    attributes["pads"] = _divided([max(total, 0) for total in totals], upper)
    attributes["output_padding"] = [
        axis.more + max(-total, 0) for axis, total in zip(axes, totals, strict=True)
    ]


def _resized(inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Write scales as sizes of all axes; refuse what the importer overlooks."""
    from tvm import ir

    mode = attributes.get("coordinate_transformation_mode")
    if "axes" in attributes and mode == b"tf_crop_and_resize":
        raise NetworkError("Resize: tf_crop_and_resize of some axes is not supported")
    for name, plain in (("antialias", 0), ("keep_aspect_ratio_policy", b"stretch")):
        if (said := attributes.get(name, plain)) != plain:
            raise NetworkError(f"Resize: {name} {shown(said)} is not supported")
    shape = np.array([int(size) for size in inputs[0].ty.shape.values])
    axes = list(attributes.pop("axes", range(len(shape))))
    sizes = shape.astype(np.float64)
    for place, units in ((2, shape), (3, np.ones_like(shape))):
        each = inputs[place] if len(inputs) > place else None
        if each is None:
            continue
        if not isinstance(each, ir.GenericConst):
            return  # what is computed, the importer refuses or knows
        if values := each.value.numpy().tolist():
            sizes[axes] = np.array(values, np.float32) * units[axes]
        inputs[place] = None
    whole = np.rint(sizes)
    if (uneven := np.flatnonzero(np.abs(sizes - whole) > 1e-3)).size:
        axis = uneven[0]
        raise NetworkError(
            f"Resize: {shape[axis]} elements by a scale to {sizes[axis]:g} are not supported; "
            "state sizes"
        )
    inputs[2:] = [None, const(whole.astype(np.int64))]


def _averaged(_: list[Any], attributes: dict[str, Any]) -> None:
    """Refuse maxima, of which the importer weighs other elements."""
    if attributes.get("mode", b"avg") != b"avg":
        raise NetworkError("RoiAlign: mode 'max' is not supported")


def _leveled(inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Refuse scales that are neither one nor one for each step of an axis."""
    shape, scales = ([int(n) for n in each.ty.shape.values] for each in inputs[:2])
    axis = attributes.get("axis", 1)
    steps = shape[axis] if -len(shape) <= axis < len(shape) else 1
    if (
        attributes.get("block_size", 0)
        or len(scales) > 1
        or (scales and scales[0] not in (1, steps))
    ):
        raise NetworkError(
            f"scales of shape {tuple(scales)} for a tensor of shape {tuple(shape)} are not "
            "supported: expected one, or one for each step of an axis"
        )


def _cast(inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Make a float of a size of a shape by way of a tensor: as a scalar no layout holds it."""
    from onnx import TensorProto
    from tvm import relax, tirx

    kinds = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16
    if isinstance(inputs[0], tirx.IntImm) and attributes["to"] in kinds:
        inputs[0] = relax.const(inputs[0].value, "int64")


def _powered(inputs: list[Any], _: dict[str, Any]) -> None:
    """Write exponents in the dtype of the base; refuse integers, which the engine does not raise.

    Of constants, and of what shapes are computed from, the importer computes powers itself.
    """
    from tvm import ir, relax

    base, exponent = inputs
    tensors = all(isinstance(each.ty, relax.TensorType) for each in inputs)
    if not tensors or isinstance(base, ir.GenericConst):
        return
    if "float" not in (kind := str(base.ty.dtype)):
        raise NetworkError(f"Pow of {kind} is not supported; cast it to floats")
    if str(exponent.ty.dtype) == kind:
        return
    if isinstance(exponent, ir.GenericConst):
        inputs[1] = relax.const(exponent.value.numpy(), kind)
    else:
        inputs[1] = relax.op.astype(exponent, kind)


def _valued(_: list[Any], attributes: dict[str, Any]) -> None:
    """Write the other forms of a constant as a tensor."""
    from onnx import numpy_helper

    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in attributes:
            kind = np.float32 if "float" in name else np.int64
            attributes["value"] = numpy_helper.from_array(np.asarray(attributes[name], kind))


def _one_hot(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """In the dtype of its values, which the importer's has lost."""
    from tvm import relax
    from tvm.relax.frontend.onnx import onnx_frontend

    wide = onnx_frontend.OneHot._impl_v11(builder, inputs, attributes, ({}, {}))
    return relax.op.astype(wide, inputs[2].ty.dtype)


def _infinite(_: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Of the signs that are asked for, which the importer overlooks."""
    from tvm import relax

    value = inputs[0]
    signs = {"detect_positive": np.inf, "detect_negative": -np.inf}
    bounds = [bound if attributes.get(name, 1) else np.nan for name, bound in signs.items()]
    # Nothing equals the bound that is no number.
    equal = (relax.op.equal(value, relax.const(bound, value.ty.dtype)) for bound in bounds)
    return relax.op.logical_or(*equal)


def _reduced_mean(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Of integers in their dtype, which the engine's has lost."""
    from tvm import relax
    from tvm.relax.frontend.onnx import onnx_frontend

    theirs = onnx_frontend.ReduceMean  # axes were an attribute once and are an input now
    convert = theirs._impl_v13 if "axes" in attributes else theirs._impl_v18
    value = inputs[0]
    mean = builder.normalize(convert(builder, inputs, attributes, ({}, {})))
    if mean.same_as(value) or "float" in (kind := str(value.ty.dtype)):
        return mean
    sizes = (np.prod([int(n) for n in each.ty.shape.values]) for each in (value, mean))
    total = relax.op.sum(value, mean.attrs.axis, mean.attrs.keepdims)
    return relax.op.divide(total, relax.const(int(floordiv(*sizes)), kind))


def _upsampled(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """As the resizing that replaced it; scales were an attribute once."""
    from tvm.relax.frontend.onnx import onnx_frontend

    value, *scales = inputs
    if not scales:
        scales = [const(np.array(attributes["scales"], np.float32))]
    stated = {
        "mode": attributes.get("mode", b"nearest"),
        "coordinate_transformation_mode": b"asymmetric",
        "nearest_mode": b"floor",
    }
    operands = [value, None, *scales]
    _resized(operands, stated)
    return onnx_frontend.Resize._impl_v18(builder, operands, stated, ({}, {}))


def _dropout(_: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Nothing, and a mask of what was kept, as a model that is not trained has it."""
    from tvm import relax

    training = inputs[2] if len(inputs) > 2 else None
    if training is not None and np.asarray(training.value.numpy()).any():
        raise NetworkError("Dropout in training mode is not supported")
    value = inputs[0]
    return relax.Tuple([value, relax.op.full_like(value, relax.const(True, "bool"), "bool")])


def _pairwise(operation: str) -> Convert:
    def convert(builder: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
        from tvm import relax

        apply = getattr(relax.op, operation)
        return functools.reduce(lambda left, right: builder.normalize(apply(left, right)), inputs)

    return convert


def _mean(builder: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    from tvm import relax

    total = _pairwise("add")(builder, inputs, {})
    return relax.op.multiply(total, relax.const(1 / len(inputs), total.ty.dtype))


_ADJUSTED = {
    "AveragePool": _padded_pool,
    "Cast": _cast,
    "Constant": _valued,
    "ConvTranspose": _sized,
    "DequantizeLinear": _leveled,
    "LpPool": _padded_pool,
    "MaxPool": _padded_pool,
    "Pow": _powered,
    "QuantizeLinear": _leveled,
    "RoiAlign": _averaged,
}
_CONVERTERS = {
    **{name: _Converter(convert) for name, convert in ACTIVATIONS.items()},
    "Dropout": _Converter(_dropout),
    "IsInf": _Converter(_infinite),
    "Max": _Converter(_pairwise("maximum")),
    "Mean": _Converter(_mean),
    "Min": _Converter(_pairwise("minimum")),
    "OneHot": _Converter(_one_hot),
    "ReduceMean": _Converter(_reduced_mean),
    "Sum": _Converter(_pairwise("add")),
    "Upsample": _Converter(_upsampled),
}
