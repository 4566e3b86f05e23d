"""The kernels of a task: which ones are tried, built, and right.

Requests and results are plain values, so that another process can build the kernels.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from amos._toolchain import load_tvm
from amos.errors import BuildError, MappingError, NetworkError, ScheduleError
from amos.intrinsics import adopt
from amos.measure.reference import References, compared
from amos.network.candidates import Chooser
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Lowering
from amos.network.lowerings.choosing import Ways
from amos.network.model import Check


@dataclass(frozen=True)
class BuiltKernels:
    """The kernels of a task.

    Attributes:
        kernels: that can be built and are right, with what they were compared with.
        failures: what was wrong with others, in sentences.
        reason: why there is no kernel; empty where there is one.
    """

    kernels: Mapping[TaskKernel, tuple[Check, ...]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    reason: str = ""


def load_builders() -> None:
    """Import ahead what building takes."""
    load_tvm()
    Chooser("host").target(())


def build_elsewhere(
    ways: Ways, symbol: str, count: int, verify: bool, added: bytes
) -> BuiltKernels:
    """Do the same as :func:`build_kernels` in a process for another one.

    Args:
        ways, symbol, count, verify: the same.
        added: pickled, what the other one registered beside built-in intrinsics.
    """
    return build_kernels(_host_with(added), ways, symbol, count, verify)


@lru_cache(maxsize=1)
def _host_with(added: bytes) -> Chooser:
    """The chooser for this machine, as long as intrinsics stay the same."""
    adopt(pickle.loads(added))
    return Chooser("host")


def build_kernels(
    chooser: Chooser, ways: Ways, symbol: str, count: int, verify: bool
) -> BuiltKernels:
    """Build the kernels of a task; those that are wrong give way to the next candidate.

    Args:
        chooser: of the machine.
        ways: to compute it.
        symbol: what to call the function.
        count: how many kernels, the one that seems best first.
        verify: compare each kernel with NumPy.
    """
    return build_lowerings(ways.rank(count, chooser), symbol, count, verify=verify)


def build_lowerings(
    lowerings: Iterable[Lowering], symbol: str, count: int = 1, *, verify: bool
) -> BuiltKernels:
    """Build kernels of what computes the same, the first that is right or all that are."""
    references = References()
    kernels: dict[TaskKernel, tuple[Check, ...]] = {}
    failures: list[str] = []
    reason = ""
    try:
        for lowering in lowerings:
            try:
                kernel = lowering.build(symbol)
                kernels[kernel] = (check_kernel(kernel, references),) if verify else ()
            except NetworkError as error:
                failures.append(str(error))
                reason = reason or failures[-1]
            except (BuildError, ScheduleError) as error:
                reason = reason or str(error).splitlines()[0]
            if kernels and count == 1:
                break  # before more are searched for
    except MappingError as error:
        reason = str(error).splitlines()[0]
    return BuiltKernels(kernels, tuple(failures), "" if kernels else reason)


def check_kernel(kernel: TaskKernel, references: References) -> Check:
    """Hold a kernel against NumPy on random inputs.

    Args:
        kernel: the kernel.
        references: of earlier ones, which those of the same operator share.

    Raises:
        NetworkError: it computes something else.
    """
    operator = kernel.operator
    with np.errstate(all="ignore"):  # a sigmoid of a large sum overflows, as it does in the kernel
        inputs, expected, limits = kernel.lowering.example(references)
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
