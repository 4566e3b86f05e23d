"""An ONNX model after each pass over it, as files that onnxruntime runs and Netron shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos.errors import NetworkError, checked_path
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.regions import Region, contracted
from amos.network.external.sessions import save_model

if TYPE_CHECKING:
    from amos.network.buckets import Loaded

#: Domain of the functions, and the least version of ONNX's format that has functions.
_DOMAIN, _IR_VERSION = "amos", 8


def write_passes(network: Loaded, folder: str | Path) -> tuple[Path, ...]:
    """Write the models that a network goes through.

    Args:
        network: of an ONNX model.
        folder: where to; it is made if it is not there.

    Returns:
        the files: ``1-read.onnx``, in which branches that are always taken stand in place, and
        ``2-regions.onnx``, in which each region is a call of a function of the domain ``amos``
        whose body is the operators that it replaces.

    Raises:
        NetworkError: it has buckets, or nothing can be written there.
    """
    target = checked_path("passes", folder, NetworkError)
    if not isinstance(network, PartitionedNetwork):
        raise NetworkError("passes: expected an ONNX model, without buckets")
    try:
        target.mkdir(parents=True, exist_ok=True)
        return (
            save_model(network.graph.model, target, "1-read.onnx"),
            save_model(_with_functions(network), target, "2-regions.onnx"),
        )
    except OSError as error:
        raise NetworkError(f"passes: {str(target)!r}: {error.strerror or error}") from error


def _with_functions(network: PartitionedNetwork) -> Any:
    """The model with a function for each region."""
    model = contracted(network.graph, network.regions, _DOMAIN)
    model.functions.extend(_functions(network.regions))
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return model


def _functions(regions: Mapping[str, Region]) -> list[Any]:
    """Regions as functions, which hold their weights."""
    from onnx import helper

    return [
        helper.make_function(
            _DOMAIN,
            name,
            region.inputs,
            region.outputs,
            [
                *(
                    helper.make_node("Constant", [], [weight.name], value=weight)
                    for weight in region.model.graph.initializer
                ),
                *region.model.graph.node,
            ],
            region.model.opset_import,
        )
        for name, region in regions.items()
    ]
