"""Quantizing a network of floats to 8 bits, by onnxruntime's quantizer."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.machine.cpu import cpu
from amos.network.external.partition import PartitionedNetwork, load_partition
from amos.network.network import Port
from amos.network.packages import onnx
from amos.network.sessions import load_onnx, save_model

#: The first opset in which DequantizeLinear has an axis.
_PER_CHANNEL = 13
#: The first version of ONNX in which weights are no inputs.
_CONSTANTS = 4
#: Operators that sum products.
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


class Quantizer:
    """Puts pairs of QuantizeLinear and DequantizeLinear around operators of a network.

    Ranges are the least and largest values that the samples have, activations are unsigned bytes,
    weights signed ones with a scale for each channel; of 7 bits where the CPU lacks VNNI.

    Args:
        samples: inputs of calls in order.

    Raises:
        NetworkError: the quantizer does not take the model, or its packages are missing.
    """

    def __init__(
        self, network: PartitionedNetwork, samples: Sequence[Sequence[np.ndarray]]
    ) -> None:
        self._network, self._lock = network, Lock()
        names = [port.name for port in network.inputs]
        calls = (dict(zip(names, values, strict=True)) for values in samples)
        with self._explain(), tempfile.TemporaryDirectory() as folder:
            self._model = _prepare(network.source, network.inputs, Path(folder))
            self._ranges = _measure_ranges(self._model, calls, Path(folder))

    @cached_property
    def products(self) -> dict[str, float]:
        """Multiplications of each product of activations and weights, in the model's order.

        Where ONNX infers no shape of a result, each weight counts once.
        """
        graph = self._model.graph
        weights = {tensor.name: tensor.dims for tensor in graph.initializer}
        sizes = {
            each.name: math.prod(dim.dim_value for dim in each.type.tensor_type.shape.dim)
            for each in (*graph.value_info, *graph.output)
        }
        products = {}
        for node in graph.node:
            if node.op_type in _PRODUCTS and (dims := weights.get(node.input[1])):
                transposed = any(x.name == "transB" and x.i for x in node.attribute)
                channels = dims[0] if node.op_type == "Conv" or transposed else dims[-1]
                uses = sizes.get(node.output[0], 0) / channels
                products[node.name] = math.prod(dims) * max(uses, 1.0)
        return products

    def quantize(self, names: Collection[str] | None = None) -> PartitionedNetwork:
        """Quantize all operators that the quantizer takes, or only products of these names.

        Raises:
            NetworkError: the quantizer does not take the model.
        """
        network = self._network
        with self._explain():
            model = self.model_of(names)
        shapes = {port.name: port.shape for port in network.inputs}
        return replace(load_partition(model, shapes, network.name), source=model)

    def model_of(self, names: Collection[str] | None = None) -> Any:
        """Return the model of ONNX that :meth:`quantize` reads."""
        from onnxruntime.quantization import QDQQuantizer, QuantType

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        with self._lock, _without_advice():  # what it suppresses is the process's
            quantizer = QDQQuantizer(
                model,
                per_channel=True,
                reduce_range=not cpu().has_int8_dot_products,
                weight_qType=QuantType.QInt8,
                activation_qType=QuantType.QUInt8,
                tensors_range=self._ranges,
                nodes_to_quantize=[] if names is None else [*names],
                nodes_to_exclude=[],
                op_types_to_quantize=_list_operators(),
                extra_options={},
            )
            quantizer.quantize_model()
        return quantizer.model.model

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        """Say whose errors these are."""
        try:
            yield
        except Exception as error:  # onnxruntime and onnx raise errors of their own
            raise NetworkError(
                f"{self._network.name}: onnxruntime cannot quantize it: {last_line(error)}"
            ) from error


def _list_operators() -> list[str]:
    """List the operators that the quantizer takes by default."""
    from onnxruntime.quantization.registry import QDQRegistry

    return [*QDQRegistry]


def _prepare(source: Any, ports: Sequence[Port], folder: Path) -> Any:
    """Return a model with shapes, whose constants are folded and whose nodes have names."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.ModelProto()
    model.CopyFrom(_update_opset(load_onnx(source, all_weights=True)))
    shapes = {port.name: port.shape for port in ports}
    for entry in model.graph.input:
        dims = entry.type.tensor_type.shape.dim
        for dim, size in zip(dims, shapes.get(entry.name, ()), strict=False):
            dim.dim_value = size
    read, ready = save_model(model, folder), folder / "ready.onnx"
    with _without_advice():
        try:  # it does not take every model
            quant_pre_process(read, ready, skip_symbolic_shape=True)
        except Exception:
            ready = read
    model = _flatten_biases(_drop_declared_weights(onnx.load(ready)))
    names = Counter(node.name for node in model.graph.node)
    for number, node in enumerate(model.graph.node):
        if not node.name or names[node.name] > 1:
            node.name = f"{node.op_type}_amos{number}"
    return onnx.shape_inference.infer_shapes(model)


def _measure_ranges(model: Any, calls: Iterator[dict[str, np.ndarray]], folder: Path) -> Any:
    """Run a model on samples, and return the ranges of its tensors."""
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization.calibrate import create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        """Hands the samples to the quantizer."""

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(calls, None)

    path = save_model(model, folder, "calibrated.onnx")
    with _without_advice():
        calibrator = create_calibrator(
            path, _list_operators(), augmented_model_path=str(folder / "augmented.onnx")
        )
        calibrator.collect_data(Reader())
        return calibrator.compute_data()


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
    products = (node for node in model.graph.node if node.op_type == "Gemm")
    biases = {name for node in products for name in node.input[2:]}
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
