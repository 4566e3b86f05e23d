"""Building the kernels of a task, and checking them against NumPy.

Requests and results are plain values, so that another process can build the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from amos._toolchain import load_tvm
from amos.errors import BuildError, MappingError, NetworkError, ScheduleError
from amos.explore.choosing import Chooser
from amos.measure.helpers import LEAST_CALLS, start_helpers
from amos.measure.reference import References, compare_arrays
from amos.network.checks import Check
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Lowering
from amos.network.lowerings.choosing import TaskLowerings


@dataclass(frozen=True)
class BuiltKernels:
    """The kernels of a task.

    Attributes:
        kernels: that were built and are right, with their checks.
        failures: why others were wrong, in sentences.
        reason: why there is no kernel; empty if there is one.
    """

    kernels: Mapping[TaskKernel, tuple[Check, ...]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    reason: str = ""


def load_builders() -> None:
    """Import all modules that building needs."""
    load_tvm()
    Chooser("host").target(())


def start_builders(calls: int = LEAST_CALLS) -> None:
    """Start processes for some calls that build kernels; each imports the modules it needs."""
    start_helpers(calls, load_builders)


def predict_seconds(chooser: Chooser, lowerings: TaskLowerings) -> float:
    """Predict the seconds of one call of a task; infinite where no instruction can be used."""
    try:
        return lowerings.predict(chooser).predicted
    except MappingError:
        return math.inf


def build_kernels(
    chooser: Chooser,
    lowerings: TaskLowerings | Sequence[Lowering],
    symbol: str,
    count: int,
    verify: bool,
) -> BuiltKernels:
    """Build the first right kernel of a task, or with a count above 1 all right ones.

    Args:
        lowerings: of the task, ranked or not.
        symbol: name of the function, or its beginning.
        count: of lowerings to rank.
        verify: compare each kernel with NumPy.
    """
    ranked = lowerings.rank(count, chooser) if isinstance(lowerings, TaskLowerings) else lowerings
    references = References()
    kernels: dict[TaskKernel, tuple[Check, ...]] = {}
    failures: list[str] = []
    reason = ""
    try:
        for lowering in ranked:
            try:
                kernel = lowering.build(symbol if count == 1 else f"{symbol}_{len(kernels)}")
                kernels[kernel] = (check_kernel(kernel, references),) if verify else ()
            except NetworkError as error:
                failures.append(str(error))
                reason = reason or failures[-1]
            except (BuildError, ScheduleError) as error:
                reason = reason or str(error).splitlines()[0]
            if kernels and count == 1:
                break  # before the search for further candidates
    except MappingError as error:
        reason = str(error).splitlines()[0]
    return BuiltKernels(kernels, tuple(failures), "" if kernels else reason)


def check_kernel(kernel: TaskKernel, references: References) -> Check:
    """Compare a kernel with NumPy on random inputs; raise NetworkError if results differ.

    Args:
        references: results of NumPy, which kernels of the same operator share.
    """
    operator = kernel.operator
    with np.errstate(all="ignore"):  # a sigmoid of a large sum overflows, as it does in the kernel
        inputs, expected, limits = kernel.lowering.example(references)
        difference, strange = compare_arrays(kernel.run(inputs), expected)
        for allowed in limits:
            if strange or difference <= allowed:
                break
    if strange or not difference <= allowed:
        raise NetworkError(
            f"the kernel of {operator} on {kernel.lowering.instruction} is wrong: it differs "
            f"from NumPy by {difference:g}, {allowed:g} is allowed"
        )
    return Check(f"{operator.name} {operator}", "NumPy", difference, allowed)
