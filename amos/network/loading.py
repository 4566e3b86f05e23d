"""``amos.load_network``: a model of ONNX or PyTorch, divided between AMOS and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from amos.errors import NetworkError
from amos.network.buckets import BucketedNetwork, Buckets, load_buckets
from amos.network.external.partition import PartitionedNetwork, load_partition
from amos.network.frontend import Shapes, title_of
from amos.network.pytorch.programs import is_torch, translate


@overload
def load_network(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    buckets: None = None,
    name: str | None = None,
) -> PartitionedNetwork: ...


@overload
def load_network(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    buckets: Buckets,
    name: str | None = None,
) -> BucketedNetwork: ...


def load_network(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    buckets: Buckets | None = None,
    name: str | None = None,
) -> BucketedNetwork | PartitionedNetwork:
    """Read a model and divide it into groups.

    Args:
        model: path of an ONNX file, an ``onnx.ModelProto``, a ``torch.nn.Module`` or a
            ``torch.export.ExportedProgram``.
        inputs: example inputs of a ``torch.nn.Module``.
        shapes: extents of inputs that the model leaves open, by name.
        buckets: sizes of dimensions that the model leaves open, by name: of ONNX a
            ``dim_param``, of PyTorch a ``torch.export.Dim``. There is a network for each
            combination of them.
        name: what to call it; by default as its file, its graph or the module's class.

    Raises:
        NetworkError: this is no model, or one with something that is not supported.
    """
    if is_torch(model):
        return _load_torch(model, inputs, shapes, buckets, name or title_of(model))
    if inputs is not None:
        raise NetworkError(
            f"model {title_of(model)!r}: inputs are for a torch.nn.Module; what another model "
            "leaves open is stated by shapes or buckets"
        )
    if buckets is not None:
        return load_buckets(model, {} if shapes is None else shapes, name, buckets)
    return load_partition(model, shapes, name)


def _load_torch(
    source: Any, inputs: Any, shapes: Shapes | None, buckets: Buckets | None, title: str
) -> BucketedNetwork | PartitionedNetwork:
    """Load a module or a program of PyTorch as an ONNX model that is compared with PyTorch."""
    if inputs is not None and not hasattr(source, "forward"):
        raise NetworkError(f"model {title!r}: inputs are for a torch.nn.Module")
    from amos.network.pytorch.check import check_translation

    translation = translate(source, inputs, title)
    check_translation(translation, title)
    reference = translation.reference
    if buckets is not None:
        return load_buckets(translation.model, shapes or {}, title, buckets, reference)
    return load_partition(translation.model, shapes, title, reference)
