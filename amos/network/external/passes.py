"""An ONNX model after each pass over it, as files that onnxruntime runs and Netron shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos.errors import NetworkError, check_path
from amos.network.external.partition import PartitionedNetwork
from amos.network.external.regions import contract_regions
from amos.network.external.writing import (
    DOMAIN,
    IR_VERSION,
    OPSET,
    write_function,
    write_group_functions,
)
from amos.network.graph import Graph
from amos.network.packages import onnx
from amos.network.passes.sequence import PASSES, list_passes
from amos.network.sessions import save_model

if TYPE_CHECKING:
    from amos.network.buckets import Loaded


def write_passes(network: Loaded, folder: str | Path) -> tuple[Path, ...]:
    """Write the models that a network goes through.

    Returns:
        the files. In each a region is a call of a function of the domain ``amos``, whose body is
        the result of the pass in the file's name. In the last one groups are functions as well.

    Raises:
        NetworkError: it has buckets, or nothing can be written there.
    """
    target = check_path("passes", folder, NetworkError)
    if not isinstance(network, PartitionedNetwork):
        raise NetworkError("passes: expected an ONNX model, without buckets")
    try:
        target.mkdir(parents=True, exist_ok=True)
        return tuple(
            save_model(model, target, f"{number}-{name}.onnx")
            for number, (name, model) in enumerate(_models(network), 1)
        )
    except OSError as error:
        raise NetworkError(f"passes: {str(target)!r}: {error.strerror or error}") from error


def _models(network: PartitionedNetwork) -> Iterator[tuple[str, Any]]:
    """Return the model after each pass, by name."""
    graphs = {name: region.read() for name, region in network.regions.items()}
    yield "read", with_functions(network, write_region_functions(network, graphs))
    passes = {name: list_passes(network.roundings.get(name)) for name in graphs}
    for title in next(iter(passes.values()), PASSES):
        graphs = {name: passes[name][title](graph) for name, graph in graphs.items()}
        yield title, with_functions(network, write_region_functions(network, graphs))
    functions = [
        function
        for name, region in network.regions.items()
        for function in write_group_functions(
            region.network.graph, region.network.grouping.groups, name, region.outputs
        )
    ]
    yield "groups", with_functions(network, functions)


def write_region_functions(network: PartitionedNetwork, graphs: Mapping[str, Graph]) -> list[Any]:
    """Write a function for each region, whose body is the region's graph."""
    return [
        write_function(graph, name, network.regions[name].outputs) for name, graph in graphs.items()
    ]


def with_functions(network: PartitionedNetwork, functions: Sequence[Any]) -> Any:
    """Return the model with functions for its regions."""
    model = contract_regions(network.graph, network.regions, DOMAIN)
    if any(each.version < OPSET for each in model.opset_import if each.domain in ("", "ai.onnx")):
        model = onnx.version_converter.convert_version(model, OPSET)
    model.functions.extend(functions)
    model.ir_version = max(model.ir_version, IR_VERSION)
    return model
