"""Kernels of tasks as libraries that the engine calls, and their arguments at each place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduled import scheduled
from amos.codegen.tir.arrays import from_tensor, to_tensor
from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.network.candidates import Choice
from amos.network.cascades import CascadePlace
from amos.network.channels import by_channels
from amos.network.cuts import BY_CHANNELS, CascadeChoice
from amos.network.engine import code_of
from amos.network.external.straight_line import Call
from amos.network.graph import Constant, Operand
from amos.network.groups import Group
from amos.network.strips import Layer, by_rows
from amos.network.tiles import convolution, read_behind
from amos.operators.cascade import Cascade
from amos.operators.winograd import Winograd
from amos.plan.staging import stage_array
from amos.runtime.kernel import compile_module, implementation_of

#: How a layer of a cascade is implemented: all of them are compiled as one module.
_NATIVE = "native"


@dataclass(frozen=True, eq=False)
class TaskKernel:
    """The compiled kernel of a task.

    Attributes:
        symbol: name of its function.
        operator: what it computes.
        choice: what it was made from.
        arguments: of the function, the output last.
        tiled: whether it uses tile registers, which a process has to ask for.
        object_code: of its object file.
        library: TVM's module that holds it; ``None`` if another process has built it.
    """

    symbol: str
    operator: Operator | Cascade
    choice: Choice | CascadeChoice
    arguments: tuple[Argument, ...]
    tiled: bool
    object_code: bytes = field(repr=False)
    library: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets."""
        return {**vars(self), "library": None}

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Its result for the operator's inputs."""
        tensors = self.tensors(inputs)
        self.library[self.symbol](*tensors)
        result = self.operator.result
        return from_tensor(tensors[-1], str(result.dtype)).reshape(result.shape)

    def tensors(self, inputs: dict[str, np.ndarray]) -> list[Any]:
        """Arguments for a call of its own."""
        *sources, out = self.arguments
        made = [to_tensor(self._formed(a, inputs[a.tensor]), a.dtype) for a in sources]
        return [*made, to_tensor(np.zeros(out.shape, _container(out.dtype)), out.dtype)]

    def call(self, group: Group | CascadePlace) -> Call:
        """The call that computes a group."""
        *sources, out = self.arguments
        arguments = [
            (self._passed(argument, group.arguments[argument.tensor]), argument.shape)
            for argument in sources
        ]
        return Call(self.symbol, tuple(arguments), group.result, out.shape)

    def _formed(self, argument: Argument, array: np.ndarray) -> np.ndarray:
        """An array in the form in which the kernel takes it."""
        choice = self.choice
        if isinstance(choice, CascadeChoice):
            parts = choice.parts(argument.tensor, array)
        elif choice.winograd is not None and argument.packed is not None:
            parts = [choice.winograd.windows(array)]
        else:
            parts = [array]
        if argument.packed is not None:
            shape = argument.packed.source_shape
            parts = [stage_array(argument.packed, each.reshape(shape)) for each in parts]
        whole = np.stack(parts) if len(parts) > 1 else parts[0]
        return whole.reshape(argument.shape)

    def _passed(self, argument: Argument, operand: Operand) -> Operand:
        """What a call passes for an argument: constants are packed here, once."""
        if not isinstance(operand, Constant):
            return operand
        packed = to_tensor(self._formed(argument, operand.array), argument.dtype)
        return Constant(packed.numpy())


def _container(kind: str) -> Any:
    from amos.ir import dtype

    return dtype(kind).numpy


def build_kernel(choice: Choice, operator: Operator, symbol: str) -> TaskKernel:
    """Compile the kernel of a task.

    Args:
        choice: what computes it, or the product of it by tiles.
        operator: of the task.
        symbol: what to call its function.

    Raises:
        BuildError: TVM refuses it.
        ScheduleError: the schedule is not one of its mapping's space.
    """
    import tvm

    kind = implementation_of(choice.candidate, choice.implementation)
    program, module = scheduled(choice.candidate, kind, CpuLimits.here())
    ((_, function),) = module.functions.items()
    arguments = program.arguments
    if choice.winograd is not None:
        function = convolution(choice.winograd, operator, program, function)
        arguments = _around(arguments, choice.winograd, operator)
    named = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    library = compile_module(choice.candidate, program, kind, named)
    if program.plan.tiled:
        ask_for_tiles()
    code = code_of(library.mod)
    return TaskKernel(symbol, operator, choice, arguments, program.plan.tiled, code, library)


def build_cascade(choice: CascadeChoice, symbol: str) -> TaskKernel:
    """Compile the kernel of a cascade.

    Args:
        choice: what its convolutions are computed by.
        symbol: what to call its function.

    Raises:
        BuildError: TVM refuses it, or this CPU lacks an instruction of it.
        ScheduleError: a schedule is not one of its mapping's space.
    """
    import tvm

    layers = []
    for each in choice.layers:
        implementation_of(each.candidate, _NATIVE)
        program, module = scheduled(each.candidate, _NATIVE, CpuLimits.here())
        ((_, function),) = module.functions.items()
        layers.append(Layer(program, function))
    cascade = choice.cascade
    write = by_channels if choice.by == BY_CHANNELS else by_rows
    arguments, function = write(cascade, choice.size, choice.cores, layers)
    named = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    # In one piece of memory with what another layer stages, accumulators are in no registers.
    library = compile_module(
        choice.layers[0].candidate, layers[0].program, _NATIVE, named, shared=False
    )
    return TaskKernel(symbol, cascade, choice, arguments, False, code_of(library.mod), library)


def _around(
    product: Sequence[Argument], form: Winograd, operator: Operator
) -> tuple[Argument, ...]:
    """The arguments of a convolution by tiles, of which the product's are known."""
    (weight,) = (argument for argument in product if argument.packed is not None)
    behind = [Argument(x.name, str(x.dtype), x.shape) for x in read_behind(operator)]
    result = Argument(operator.result.name, str(operator.result_dtype), form.result)
    return (Argument("image", form.dtype, form.image), weight, *behind, result)
