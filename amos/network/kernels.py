"""Compiled kernels of tasks and of regions, and the calls of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.codegen.c.compiler import INSTALL, compiler_command, complaint
from amos.codegen.tir.arrays import container_dtype, from_tensor, to_tensor
from amos.codegen.tir.program import Argument
from amos.errors import NetworkError, ToolchainError
from amos.ir import Chain, Operator, dtype
from amos.network.external.straight_line import Call
from amos.network.graph import Constant
from amos.network.groups import CallSite, Job

if TYPE_CHECKING:
    from amos.network.checks import Check
    from amos.network.comparison import Comparison
    from amos.network.lowerings.base import Lowering
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
