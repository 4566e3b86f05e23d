"""Kernels of tasks: built, checked against NumPy, and called; those of a region.

Requests and results are plain values, so that another process can build the kernels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._toolchain import load_tvm
from amos.codegen.c.compiler import INSTALL, compiler_command, complaint
from amos.codegen.tir.arrays import container_dtype, from_tensor, to_tensor
from amos.codegen.tir.program import Argument
from amos.errors import BuildError, MappingError, NetworkError, ScheduleError, ToolchainError
from amos.explore.choosing import Chooser
from amos.ir import Chain, Operator, dtype
from amos.measure.helpers import LEAST_CALLS, start_helpers
from amos.measure.reference import References, compare_arrays
from amos.network.checks import Check
from amos.network.external.straight_line import Call
from amos.network.graph import Constant
from amos.network.groups import CallSite, Job

if TYPE_CHECKING:
    from amos.network.comparison import Comparison
    from amos.network.lowerings.base import Lowering
    from amos.network.lowerings.choosing import TaskLowerings
    from amos.network.network import Network


@dataclass(frozen=True, eq=False)
class TaskKernel:
    """The compiled kernel of a task.

    Attributes:
        symbol: name of its function.
        arguments: of the function, the output last.
        tiled: whether it uses tile registers, which a process has to ask for.
    """

    symbol: str
    lowering: Lowering
    arguments: tuple[Argument, ...]
    tiled: bool
    object_code: bytes = field(repr=False)

    @property
    def operator(self) -> Operator | Chain:
        """The operator or cascade that it computes."""
        return self.lowering.operator

    def run(self, inputs: Mapping[str, np.ndarray | Constant]) -> np.ndarray:
        """Run the object code, as it is linked into a library, on the operator's inputs."""
        *sources, out = self.arguments
        tensors = [self._pack(each, inputs[each.tensor]) for each in sources]
        tensors.append(to_tensor(np.zeros(out.shape, dtype(out.dtype).numpy), out.dtype))
        load_code(self.object_code)[self.symbol](*tensors)
        result = self.operator.result
        return from_tensor(tensors[-1], str(result.dtype)).reshape(result.shape)

    def call(self, site: CallSite) -> Call:
        """Return the call that computes a group or a chain; constants are packed ahead of it."""
        *sources, out = self.arguments
        arguments = []
        for argument in sources:
            operand = site.arguments[argument.tensor]
            if isinstance(operand, Constant):
                operand = Constant(self._pack(argument, operand).numpy())
            arguments.append((operand, argument.shape))
        return Call(self.symbol, tuple(arguments), site.result, out.shape, container_dtype)

    def _pack(self, argument: Argument, value: np.ndarray | Constant) -> Any:
        constant = value if isinstance(value, Constant) else Constant(value)
        return to_tensor(self.lowering.pack(argument, constant), argument.dtype)


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """The kernels of a region, which is one operator of onnxruntime.

    Attributes:
        fallbacks: why tasks are computed by plain loops.
        checks: of kernels, with NumPy.
        comparisons: of kernels of tasks that were timed in the network.
        unused: number of records of its tasks that do not count here, by the reason.
        failures: why kernels were replaced by others or by plain loops.
    """

    network: Network
    kernels: Mapping[Job, TaskKernel]
    fallbacks: Mapping[Job, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    unused: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    function: str = "main"

    @property
    def spreads(self) -> bool:
        """Whether Winograd's tiles of floats may spread NaN and infinities."""
        return any(kernel.lowering.spreads for kernel in self.kernels.values())


def load_code(code: bytes) -> Any:
    """Load an object file as a module of TVM.

    TVM would generate the code a second time, which takes longer than to link it.

    Raises:
        ToolchainError: it fails, or nothing in the folder for temporary files may be executed.
            Every other kernel would fail alike, so that none is tried.
    """
    import tvm_ffi

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        source.write_bytes(code)
        command = [*require_compiler(), "-shared", "-nostdlib", str(source), "-o", str(library)]
        if why := complaint(command):
            raise ToolchainError(f"the C compiler cannot link a kernel: {why}")
        try:
            return tvm_ffi.load_module(str(library), keep_module_alive=False)
        except RuntimeError as error:
            why = str(error).rpartition(": ")[2]
            raise ToolchainError(
                f"kernels cannot be loaded from {tempfile.gettempdir()}: {why}; "
                "TMPDIR names another folder"
            ) from error


def require_compiler() -> list[str]:
    """Return how to call the C compiler; raise NetworkError if there is none."""
    command = compiler_command()
    if command is None:
        raise NetworkError(f"a library of operators needs a C compiler: {INSTALL}")
    return command


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
    ranked = lowerings if isinstance(lowerings, Sequence) else lowerings.rank(count, chooser)
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
