"""Quantizing a network of floats to 8 bits, by onnxruntime's quantizer."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.machine.cpu import cpu
from amos.network.external.partition import PartitionedNetwork, load_partition
from amos.network.packages import onnx
from amos.network.sessions import load_onnx, save_model

#: The first opset in which DequantizeLinear has an axis.
_PER_CHANNEL = 13
#: The first version of ONNX in which weights are no inputs.
_CONSTANTS = 4


def quantize_network(
    network: PartitionedNetwork, samples: Sequence[Sequence[np.ndarray]]
) -> PartitionedNetwork:
    """Return a network with pairs of QuantizeLinear and DequantizeLinear around its operators.

    Ranges are the least and largest values that the samples have, activations are unsigned bytes,
    weights signed ones with a scale for each channel; of 7 bits where the CPU lacks VNNI.

    Raises:
        NetworkError: the quantizer does not take the model, or its packages are missing.
    """
    names = [port.name for port in network.inputs]
    calls = (dict(zip(names, values, strict=True)) for values in samples)
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = _quantize(network.source, calls, Path(folder))
        except Exception as error:  # onnxruntime and onnx raise errors of their own
            raise NetworkError(
                f"{network.name}: onnxruntime cannot quantize it: {last_line(error)}"
            ) from error
        shapes = {port.name: port.shape for port in network.inputs}
        quantized = load_partition(model, shapes, network.name)
    return replace(quantized, source=model)


def _quantize(source: Any, calls: Iterator[dict[str, np.ndarray]], folder: Path) -> Any:
    """Return the quantized model in memory."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        """Hands the samples to the quantizer."""

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(calls, None)

    read = save_model(_update_opset(load_onnx(source, all_weights=True)), folder)
    ready, written = (folder / f"{name}.onnx" for name in ("ready", "written"))
    with _without_advice():
        try:  # it folds constants and infers shapes, and does not take every model
            quant_pre_process(read, ready, skip_symbolic_shape=True)
        except Exception:
            ready = read
        quantize_static(
            _flatten_biases(_drop_declared_weights(onnx.load(ready))),
            written,
            Reader(),
            per_channel=True,
            reduce_range=not cpu().has_int8_dot_products,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return onnx.load(written)


def _update_opset(model: Any) -> Any:
    """Convert a model to the first opset whose weights have a scale for each channel."""
    from onnx import version_converter

    old = any(x.domain in ("", "ai.onnx") and x.version < _PER_CHANNEL for x in model.opset_import)
    return version_converter.convert_version(model, _PER_CHANNEL) if old else model


def _drop_declared_weights(model: Any) -> Any:
    """Take weights out of the inputs, where old models declare them, and out of other values."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    for declared in (graph.input, graph.value_info):
        values = [each for each in declared if each.name not in weights]
        del declared[:]
        declared.extend(values)
    model.ir_version = max(model.ir_version, _CONSTANTS)
    return model


def _flatten_biases(model: Any) -> Any:
    """Give biases of products one dimension in place.

    The quantizer dequantizes a bias along its first dimension, and writes ``x @ weight + bias`` as
    one product whatever the bias's shape.
    """
    used = Counter(name for node in model.graph.node for name in node.input)
    used.update(port.name for port in model.graph.output)
    biases = {
        node.input[2] for node in model.graph.node if node.op_type == "Gemm" and node.input[2:]
    }
    for tensor in model.graph.initializer:
        if tensor.name in biases and used[tensor.name] == 1 and [*tensor.dims[:-1]] == [1]:
            del tensor.dims[0]
    return model


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Suppress what the quantizer prints and logs for its own users."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
