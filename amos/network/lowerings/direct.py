"""An operator as it is, by an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduled import scheduled
from amos.codegen.tir.program import Argument, Program
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.measure.reference import References, tolerance
from amos.network.engine import code_of
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Example, Lowering
from amos.perfmodel import Prediction
from amos.plan import Candidate
from amos.runtime.kernel import compile_module, implementation_of


@dataclass(frozen=True)
class Direct(Lowering):
    """A kernel of an operator.

    Attributes:
        operator: what is computed.
        candidate: mapping and schedule.
        space: how many mappings the instruction has.
        prediction: the model's account of it.
        seconds: what it took when it was measured; ``None`` if it was not.
        implementation: ``"native"`` or ``"generic"``; ``None`` for what the CPU has.
    """

    operator: Operator
    candidate: Candidate
    space: int
    prediction: Prediction
    seconds: float | None = None
    implementation: str | None = None

    @property
    def products(self) -> tuple[Direct, ...]:
        """Itself."""
        return (self,)

    @property
    def key(self) -> tuple[str, object]:
        """Identity among the kernels of an operator."""
        return self.instruction, self.candidate.key

    @property
    def predicted(self) -> float:
        """Seconds by the model."""
        return self.prediction.seconds

    @property
    def measured(self) -> float | None:
        """Seconds by a record."""
        return self.seconds

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The operator."""
        return ((self.operator, 1),)

    @property
    def kind(self) -> str:
        """``"native"`` or ``"generic"`` on this CPU.

        Raises:
            BuildError: the CPU lacks the instruction, which has to be native.
        """
        return implementation_of(self.candidate, self.implementation)

    def schedule_function(self) -> tuple[Program, Any]:
        """The program, and its scheduled function.

        Raises:
            BuildError, ScheduleError: as of :meth:`build`.
        """
        program, module = scheduled(self.candidate, self.kind, CpuLimits.here())
        ((_, function),) = module.functions.items()
        return program, function

    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel; errors as of all lowerings."""
        program, function = self.schedule_function()
        return self.compile(self, symbol, program, program.arguments, function)

    def compile(
        self,
        lowering: Lowering,
        symbol: str,
        program: Program,
        arguments: Sequence[Argument],
        function: Any,
        *,
        shared: bool = True,
    ) -> TaskKernel:
        """Compile a function that this kernel is, or is a part of.

        Args:
            lowering: that the function is of.
            symbol: what to call it.
            program: of this kernel.
            arguments: of the function, the output last.
            function: its TensorIR.
            shared: whether its buffers may have the same memory, one after the other.

        Raises:
            BuildError: TVM refuses it.
        """
        import tvm

        named = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
        library = compile_module(self.candidate, program, self.kind, named, shared=shared)
        tiled = program.plan.tiled
        if tiled:
            ask_for_tiles()
        return TaskKernel(symbol, lowering, tuple(arguments), tiled, code_of(library.mod), library)

    def example(self, references: References) -> Example:
        """Random inputs and results."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, (tolerance(self.operator, expected),)
