"""Compiled kernels of tasks, and the calls of them in a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.codegen.tir.arrays import container_dtype, from_tensor, to_tensor
from amos.codegen.tir.program import Argument
from amos.ir import dtype
from amos.network.external.straight_line import Call
from amos.network.graph import Constant, Operand
from amos.network.groups import CallSite, Computation

if TYPE_CHECKING:
    from amos.network.lowerings.base import Lowering


@dataclass(frozen=True, eq=False)
class TaskKernel:
    """The compiled kernel of a task.

    Attributes:
        symbol: name of its function.
        lowering: that it was built from.
        arguments: of the function, the output last.
        tiled: whether it uses tile registers, which a process has to ask for.
        object_code: of its object file.
        library: TVM's module that holds it; ``None`` if another process has built it.
    """

    symbol: str
    lowering: Lowering
    arguments: tuple[Argument, ...]
    tiled: bool
    object_code: bytes = field(repr=False)
    library: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the loaded module, for another process."""
        return {**vars(self), "library": None}

    @property
    def operator(self) -> Computation:
        """The operator or cascade that it computes."""
        return self.lowering.operator

    def run(self, inputs: Mapping[str, np.ndarray | Constant]) -> np.ndarray:
        """Run it on the operator's inputs."""
        tensors = self.tensors(inputs)
        self.library[self.symbol](*tensors)
        result = self.operator.result
        return from_tensor(tensors[-1], str(result.dtype)).reshape(result.shape)

    def tensors(self, inputs: Mapping[str, np.ndarray | Constant]) -> list[Any]:
        """Return packed inputs and a buffer of the result, as arguments of a call."""
        *sources, out = self.arguments
        packed = [self._pack(each, inputs[each.tensor]) for each in sources]
        return [*packed, to_tensor(np.zeros(out.shape, dtype(out.dtype).numpy), out.dtype)]

    def call(self, site: CallSite) -> Call:
        """Return the call that computes a group or a cascade."""
        *sources, out = self.arguments
        arguments = [
            (self._pack_constant(each, site.arguments[each.tensor]), each.shape) for each in sources
        ]
        return Call(self.symbol, tuple(arguments), site.result, out.shape, container_dtype)

    def _pack(self, argument: Argument, value: np.ndarray | Constant) -> Any:
        constant = value if isinstance(value, Constant) else Constant(value)
        return to_tensor(self.lowering.pack(argument, constant), argument.dtype)

    def _pack_constant(self, argument: Argument, operand: Operand) -> Operand:
        """Pack a constant once, ahead of all calls; other operands stay."""
        if not isinstance(operand, Constant):
            return operand
        return Constant(self._pack(argument, operand).numpy())
