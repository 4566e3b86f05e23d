"""Mapping and schedule → TensorIR → compiled kernel, on the stock TVM wheel."""

from amos.codegen.kernel import Kernel, build

__all__ = ["Kernel", "build"]
