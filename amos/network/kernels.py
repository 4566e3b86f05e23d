"""Kernels of tasks as libraries that the engine calls, and their arguments at each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduled import scheduled
from amos.codegen.tir.arrays import from_tensor, to_tensor
from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.network.candidates import Choice
from amos.network.graph import Constant, Operand
from amos.network.groups import Group
from amos.network.program import Writer
from amos.plan.staging import stage_array
from amos.runtime.kernel import compile_module, implementation_of


@dataclass(frozen=True, eq=False)
class TaskKernel:
    """The compiled kernel of a task.

    Attributes:
        symbol: name of its function.
        choice: what it was made from.
        arguments: of the function, the output last.
        library: TVM's module that holds it.
        tiled: whether it uses tile registers, which a process has to ask for.
    """

    symbol: str
    choice: Choice
    arguments: tuple[Argument, ...]
    library: Any
    tiled: bool

    @property
    def operator(self) -> Operator:
        """What it computes."""
        return self.choice.operator

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of all functions that a call of it calls."""
        return (self.symbol,)

    @property
    def libraries(self) -> tuple[Any, ...]:
        """TVM's modules that hold them."""
        return (self.library.mod,)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Its result for the operator's inputs."""
        tensors = self.tensors(inputs)
        self.library[self.symbol](*tensors)
        result = self.operator.result
        return from_tensor(tensors[-1], str(result.dtype)).reshape(result.shape)

    def tensors(self, inputs: dict[str, np.ndarray]) -> list[Any]:
        """Arguments for a call of its own."""
        *sources, out = self.arguments
        made = [to_tensor(_formed(a, inputs[a.tensor]), a.dtype) for a in sources]
        return [*made, to_tensor(np.zeros(out.shape, _container(out.dtype)), out.dtype)]

    def call(self, group: Group, writer: Writer) -> Any:
        """The engine's expression that calls it for a group."""
        from tvm import relax

        values = {name: value_of(operand, writer) for name, operand in group.arguments.items()}
        shape = group.result.shape
        result = self.applied(values, writer)
        return result if self.arguments[-1].shape == shape else relax.op.reshape(result, shape)

    def applied(self, values: Mapping[str, Any], writer: Writer) -> Any:
        """The engine's call of it, in the shape of its output, on what its inputs are."""
        *sources, out = self.arguments
        passed = [_passed(argument, values[argument.tensor], writer) for argument in sources]
        return called(self.symbol, passed, out.shape, out.dtype, writer)


def value_of(operand: Operand, writer: Writer) -> Any:
    """What a kernel is called with: constants as such, and what stands for all else."""
    return operand if isinstance(operand, Constant) else writer.value(operand)


def called(
    symbol: str, values: Sequence[Any], shape: tuple[int, ...], kind: str, writer: Writer
) -> Any:
    """The result of the engine's call of a function, which stores it."""
    from tvm import relax

    type_ = relax.TensorType(shape, kind)
    return writer.emit(relax.op.call_dps_packed(symbol, relax.Tuple(list(values)), type_))


def reshaped(value: Any, shape: tuple[int, ...], writer: Writer) -> Any:
    """What the engine passes where a function takes a tensor in some shape."""
    from tvm import relax

    if isinstance(value, Constant):
        return relax.const(to_tensor(value.array.reshape(shape), value.dtype))
    if tuple(map(int, value.ty.shape)) == shape:
        return value
    return writer.emit(relax.op.reshape(value, shape))


def _container(kind: str) -> Any:
    from amos.ir import dtype

    return dtype(kind).numpy


def _formed(argument: Argument, array: np.ndarray) -> np.ndarray:
    """An array in the form in which the kernel takes it."""
    if argument.packed is not None:
        return stage_array(argument.packed, array)
    return array.reshape(argument.shape)


def _passed(argument: Argument, value: Any, writer: Writer) -> Any:
    """What the engine passes for an argument: constants are packed here, once."""
    from tvm import relax

    if isinstance(value, Constant) and argument.packed is not None:
        packed = _formed(argument, value.array.reshape(argument.packed.source_shape))
        return relax.const(to_tensor(packed, argument.dtype))
    return reshaped(value, argument.shape, writer)


def build_kernel(choice: Choice, symbol: str) -> TaskKernel:
    """Compile the kernel of a task.

    Raises:
        BuildError: TVM refuses it.
        ScheduleError: the schedule is not one of its mapping's space.
    """
    import tvm

    kind = implementation_of(choice.candidate, choice.implementation)
    program, module = scheduled(choice.candidate, kind, CpuLimits.here())
    ((_, function),) = module.functions.items()
    named = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    library = compile_module(choice.candidate, program, kind, named)
    if program.plan.tiled:
        ask_for_tiles()
    return TaskKernel(symbol, choice, program.arguments, library, program.plan.tiled)
