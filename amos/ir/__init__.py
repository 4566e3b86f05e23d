"""Iterations, affine indices, tensors, the operators built from them, and task mappings."""

from amos.ir import tasks
from amos.ir.affine import Affine
from amos.ir.aligned import allocate_aligned, copy_aligned
from amos.ir.chain import Assignment, Chain, Statement
from amos.ir.dtypes import DType, dtype, resolve_dtypes
from amos.ir.epilogue import Epilogue
from amos.ir.nodes import BufferLoad, Computation, Compute, Iteration, Kind, Tensor
from amos.ir.operator import Operator
from amos.ir.prologue import Prologue
from amos.ir.result import Result
from amos.ir.store import Digit, Store

__all__ = [
    "Affine",
    "Assignment",
    "BufferLoad",
    "Chain",
    "Computation",
    "Compute",
    "DType",
    "Digit",
    "Epilogue",
    "Iteration",
    "Kind",
    "Operator",
    "Prologue",
    "Result",
    "Statement",
    "Store",
    "Tensor",
    "allocate_aligned",
    "copy_aligned",
    "dtype",
    "resolve_dtypes",
    "tasks",
]
