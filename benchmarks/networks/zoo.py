"""Networks by name, dtype and batch, as files that are made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from networks.convolutional import CONVOLUTIONAL
from networks.graph import build, feeds
from networks.sequences import SEQUENCES

__all__ = ["DTYPES", "NETWORKS", "model_file"]

NETWORKS = CONVOLUTIONAL | SEQUENCES
DTYPES = ("f32", "int8", "int8_reduced")
#: Samples that the quantizer takes its ranges from.
_CALIBRATION = 16


def model_file(folder: Path, name: str, dtype: str, batch: int) -> Path:
    """The ONNX file of a network, made if it is not there.

    ``int8`` is onnxruntime's static quantization: u8 activations, s8 weights with a scale
    for each channel, as DequantizeLinear and QuantizeLinear around float operators.
    ``int8_reduced`` is the same with weights in [-64, 64], for CPUs without VNNI.
    """
    path = folder / f"{name}_{dtype}_b{batch}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    if dtype != "f32":
        _quantize(model_file(folder, name, "f32", batch), new, reduced=dtype == "int8_reduced")
    else:
        onnx.save(build(name, NETWORKS[name], batch), str(new))
    new.replace(path)
    return path


def _quantize(source: Path, target: Path, *, reduced: bool) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(str(source))

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = (feeds(model, seed) for seed in range(2, 2 + _CALIBRATION))

        def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
            return self.left

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    folded = target.with_suffix(".folded")
    quant_pre_process(str(source), str(folded), skip_symbolic_shape=True)
    quantize_static(
        str(folded),
        str(target),
        Samples(),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        reduce_range=reduced,
    )
    folded.unlink()
