"""Models in: ONNX as a graph of :mod:`amos.network.operations`."""

from amos.network.reading.model import read_model

__all__ = ("read_model",)
