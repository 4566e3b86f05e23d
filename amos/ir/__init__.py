"""Iterations, affine indices, tensors, and the operators built from them."""

from amos.ir.affine import Affine
from amos.ir.aligned import aligned, aligned_copy
from amos.ir.dtypes import DType, dtype, resolve_dtypes
from amos.ir.epilogue import Epilogue
from amos.ir.nodes import BufferLoad, Compute, Iteration, Kind, Tensor
from amos.ir.operator import Operator, access_matrix

__all__ = [
    "Affine",
    "BufferLoad",
    "Compute",
    "DType",
    "Epilogue",
    "Iteration",
    "Kind",
    "Operator",
    "Tensor",
    "access_matrix",
    "aligned",
    "aligned_copy",
    "dtype",
    "resolve_dtypes",
]
