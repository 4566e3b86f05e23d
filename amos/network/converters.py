"""ONNX nodes that are imported our way.

The engine makes loops of some that are elementwise, before anything can see what they are, and
has no recurrent layers; its importer takes no converters of others. So its table has ours in it
while a model is imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.recurrent import LAYERS

#: Makes a Relax expression from a builder, the inputs of a node and its attributes.
Convert = Callable[[Any, list[Any], Mapping[str, Any]], Any]

_LOCK = Lock()


@contextlib.contextmanager
def own_converters() -> Iterator[None]:
    """Let TVM's importer use the converters of this file."""
    from tvm.relax.frontend.onnx import onnx_frontend

    theirs = onnx_frontend._get_convert_map
    with _LOCK:
        onnx_frontend._get_convert_map = lambda: {**theirs(), **_CONVERTERS}
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


def _clip(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Bounds were attributes once and are inputs now; each may be missing."""
    from tvm import relax

    value, *bounds = inputs
    kind = value.ty.dtype
    for name, bound in zip(("min", "max"), [*bounds, None, None], strict=False):
        if bound is None and name in attributes:
            bound = relax.const(attributes[name], kind)
        if bound is not None:
            apply = relax.op.maximum if name == "min" else relax.op.minimum
            value = builder.emit(apply(value, bound))
    return value


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


_CONVERTERS = {
    "Clip": _Converter(_clip),
    "Dropout": _Converter(_dropout),
    "Max": _Converter(_pairwise("maximum")),
    "Min": _Converter(_pairwise("minimum")),
    "Sum": _Converter(_pairwise("add")),
    **{kind: _Converter(layer) for kind, layer in LAYERS.items()},
}
