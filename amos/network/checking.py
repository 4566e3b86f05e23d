"""Kernels held against NumPy."""

from __future__ import annotations

import numpy as np

from amos.errors import NetworkError
from amos.measure.reference import References, compared
from amos.network.kernels import TaskKernel
from amos.network.model import Check


def checked_kernel(kernel: TaskKernel, references: References | None = None) -> Check:
    """A kernel held against NumPy on random inputs.

    Args:
        kernel: the kernel.
        references: of earlier ones, which those of the same operator share.

    Raises:
        NetworkError: it computes something else.
    """
    operator = kernel.operator
    with np.errstate(all="ignore"):  # a sigmoid of a large sum overflows, as it does in the kernel
        inputs, expected, limits = kernel.lowering.example(references or References())
        difference, strange = compared(kernel.run(inputs), expected)
        for allowed in limits:
            if strange or difference <= allowed:
                break
    if strange or not difference <= allowed:
        raise NetworkError(
            f"the kernel of {operator} on {kernel.lowering.instruction} is wrong: it differs "
            f"from NumPy by {difference:g}, {allowed:g} is allowed"
        )
    return Check(f"{operator.name} {operator}", "NumPy", difference, allowed)
