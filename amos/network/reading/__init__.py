"""Models in: ONNX as a graph of :mod:`amos.network.operations`."""

__all__ = ()
