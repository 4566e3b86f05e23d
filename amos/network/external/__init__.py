"""Networks inside onnxruntime: kernels as custom operators, in a library of their own."""

__all__ = ()
