"""The files of a network for a unit: its model, streams, and contents of DRAM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from amos.errors import NetworkError, check_path
from amos.network.external.passes import with_functions
from amos.network.external.writing import write_group_functions
from amos.network.sessions import save_model

if TYPE_CHECKING:
    from amos.streams.networks.compiled import UnitNetwork


def write_files(compiled: UnitNetwork, folder: str | Path) -> tuple[Path, ...]:
    """Write a network for a unit.

    Returns:
        the files: ``model.onnx``, in which each layer is a function of the domain ``amos`` that
        onnxruntime runs as well; ``report.json``; in ``streams`` a folder for each stream; and in
        ``data`` the constants of each layer as stored in DRAM, and the terms that the host adds
        to its sums.

    Raises:
        NetworkError: nothing can be written there.
    """
    target = check_path("output", folder, NetworkError)
    try:
        target.mkdir(parents=True, exist_ok=True)
        written = [save_model(_model_of(compiled), target)]
        for name, content in _files(compiled):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            written.append(path)
    except OSError as error:
        raise NetworkError(f"output {str(target)!r}: {error.strerror or error}") from error
    return tuple(written)


def _model_of(compiled: UnitNetwork) -> object:
    network = compiled.network
    functions = [
        function
        for name, region in network.regions.items()
        for function in write_group_functions(
            region.network.graph,
            [layer.site for layer in compiled.layers[name]],
            name,
            region.outputs,
        )
    ]
    return with_functions(network, functions)


def _files(compiled: UnitNetwork) -> Iterator[tuple[str, str | bytes]]:
    yield "report.json", json.dumps(compiled.to_dict(), indent=1) + "\n"
    streams = {run.name: run.stream for run in compiled.runs}
    for layer in (layer for each in compiled.layers.values() for layer in each):
        if streams[layer.name] == layer.name:
            for name, content in layer.kernel.files(layer.name).items():
                yield f"streams/{layer.name}/{name}", content
            for name, array in layer.kernel.micro_operations.items():
                yield f"streams/{layer.name}/{name}.bin", np.asarray(array).tobytes()
        for name, array in layer.kernel.prepare(layer.constants).items():
            yield f"data/{layer.name}.{name}.bin", array.tobytes()
        if layer.correction is not None:
            yield f"data/{layer.name}.added.bin", layer.correction.tobytes()
