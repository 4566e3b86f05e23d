"""Quantizing a network of floats to 8 bits, by onnxruntime's quantizer."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
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

    read, ready, written = (folder / f"{name}.onnx" for name in ("read", "ready", "written"))
    path = Path(source) if isinstance(source, str | os.PathLike) else read
    if path is read:
        onnx.save(source, read)
    with _without_advice():
        try:  # it folds constants and infers shapes, and does not take every model
            quant_pre_process(path, ready, skip_symbolic_shape=True)
        except Exception:
            ready = path
        quantize_static(
            ready,
            written,
            Reader(),
            per_channel=True,
            reduce_range=not cpu().has_int8_dot_products,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return onnx.load(written)


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
