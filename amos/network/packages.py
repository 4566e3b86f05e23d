"""Packages beside TVM that networks need, each imported when it is used first."""

from __future__ import annotations

from amos._toolchain import LazyModule

onnx, torch = LazyModule("onnx"), LazyModule("torch")
helper, numpy_helper = LazyModule("onnx.helper"), LazyModule("onnx.numpy_helper")
