"""The protocol of lowerings: predictions, writing, packing and building of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from amos._toolchain import tvm
from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir.program import Argument, Program
from amos.explore.choosing import Product
from amos.ir import Chain, Operator, Tensor
from amos.machine import Machine
from amos.machine.limits import CpuLimits
from amos.measure.reference import References, tolerance
from amos.network.graph import Constant, Node
from amos.network.kernels import TaskKernel
from amos.network.loops.scheduling import code_of
from amos.network.shapes import count_bytes
from amos.plan.staging import stage_array
from amos.runtime.compiling import compile_function
from amos.runtime.kernel import implementation_of

#: Share of the direct lowering's predicted time that tiles or bands may take: predictions err.
SAFETY_FACTOR = 0.9
#: Inputs, NumPy's result of them, and tolerances in rising order, each computed when it is needed.
Example = tuple[Mapping[str, np.ndarray | Constant], np.ndarray, Iterable[float]]


@dataclass(frozen=True)
class Lowering(ABC):
    """The lowering of a task, before its kernel is built.

    Attributes:
        by_tiles: whether that is on Winograd's tiles.
        shared: whether buffers may have the same memory, one after the other.
        views: whether buffers begin within others.
    """

    operator: Operator | Chain
    by_tiles: ClassVar[bool] = False
    shared: ClassVar[bool] = True
    views: ClassVar[bool] = False

    @property
    @abstractmethod
    def predicted(self) -> float:
        """Predicted seconds of the task."""

    @property
    @abstractmethod
    def instruction(self) -> str:
        """Name of the instruction that multiplies; names of several."""

    @property
    @abstractmethod
    def bound(self) -> str:
        """The bottleneck, by the model."""

    @abstractmethod
    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel.

        Raises:
            BuildError: TVM refuses it, or this CPU lacks an instruction of it.
            ScheduleError: a schedule is not one of its mapping's space.
        """

    @abstractmethod
    def example(self, references: References) -> Example:
        """Draw inputs and compute the result; kernels of an operator share ``references``."""

    @property
    def measured(self) -> float | None:
        """Measured seconds of the task; ``None`` without a record."""
        return None

    @property
    def expected(self) -> float:
        """Measured seconds, or else predicted ones."""
        return self.predicted if self.measured is None else self.measured

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """Operators whose records give its time; none by default."""
        return ()

    @property
    def mappings(self) -> int:
        """Number of mappings that it was chosen from."""
        return 1

    @property
    def spreads(self) -> bool:
        """Whether an element that is NaN or infinite spoils results that do not read it."""
        return False

    def pack(self, argument: Argument, value: Constant) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it."""
        array = value.array
        if argument.packed is not None:
            array = stage_array(argument.packed, array.reshape(argument.packed.source_shape))
        return array.reshape(argument.shape)

    def compile(
        self,
        symbol: str,
        arguments: Sequence[Argument],
        function: Any,
        *,
        kind: str,
        tiled: bool = False,
    ) -> TaskKernel:
        """Compile a scheduled function of TensorIR.

        Args:
            kind: ``"native"`` or ``"generic"``.
            tiled: whether it uses tile registers.
        """
        module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
        larger = tiled or not self.shared
        title = str(self.operator)
        library = compile_function(
            title,
            kind,
            module,
            larger=larger,
            shared=self.shared,
            views=self.views,
            checked=False,
        )
        if tiled:
            ask_for_tiles()
        return TaskKernel(symbol, self, tuple(arguments), tiled, code_of(library.mod))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        return {
            "instruction": self.instruction,
            "mapping": "",
            "schedule": {},
            "winograd": self.by_tiles,
            "predicted_seconds": self.predicted,
            "measured_seconds": self.measured,
        }


@dataclass(frozen=True)
class ProductLowering(Lowering):
    """The lowering of a task whose sums of products are one kernel of an instruction.

    Attributes:
        product: what multiplies and adds.
    """

    operator: Operator
    product: Product

    @abstractmethod
    def total(self, seconds: float) -> float:
        """Return the seconds of the task from those of its product."""

    @abstractmethod
    def write(self, program: Program, function: Any) -> tuple[Sequence[Argument], Any]:
        """Write the kernel around its scheduled product: arguments, output last, and function."""

    @property
    def limits(self) -> CpuLimits:
        """Limits of the cores that compute the product together; by default of all."""
        return CpuLimits.here()

    @property
    def predicted(self) -> float:
        """See :class:`Lowering`."""
        return self.total(self.product.prediction.seconds)

    @property
    def measured(self) -> float | None:
        """See :class:`Lowering`."""
        seconds = self.product.seconds
        return None if seconds is None else self.total(seconds)

    @property
    def instruction(self) -> str:
        """See :class:`Lowering`."""
        return self.product.mapping.intrinsic.name

    @property
    def mappings(self) -> int:
        """See :class:`Lowering`."""
        return self.product.mappings

    @property
    def bound(self) -> str:
        """See :class:`Lowering`."""
        return self.product.prediction.bound

    def build(self, symbol: str) -> TaskKernel:
        """See :class:`Lowering`."""
        candidate = self.product.candidate
        kind = implementation_of(candidate, self.product.implementation)
        program, module = schedule_candidate(candidate, kind, self.limits)
        ((_, product),) = module.functions.items()
        arguments, function = self.write(program, product)
        return self.compile(symbol, arguments, function, kind=kind, tiled=program.plan.tiled)

    def to_dict(self) -> dict[str, Any]:
        """See :class:`Lowering`."""
        candidate = self.product.candidate
        own = {"mapping": candidate.mapping.name, "schedule": candidate.schedule.as_dict()}
        return super().to_dict() | own


@dataclass(frozen=True)
class Direct(ProductLowering):
    """An operator that is its own product."""

    def total(self, seconds: float) -> float:
        """Return the seconds of the product."""
        return seconds

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """The operator."""
        return (self.operator,)

    def write(self, program: Program, function: Any) -> tuple[Sequence[Argument], Any]:
        """Return arguments and function of the product."""
        return program.arguments, function

    def example(self, references: References) -> Example:
        """Draw inputs and compute the result."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, (tolerance(self.operator, expected),)


def list_epilogue_tensors(operator: Operator) -> list[Tensor]:
    """Return the tensors that an epilogue reads."""
    sources = {load.tensor.name for load in operator.sources}
    return [each for each in operator.inputs if each.name not in sources]


def predict_transfer(machine: Machine, read_bytes: int, written_bytes: int) -> float:
    """Predict the seconds to read and write some bytes at the first level that holds all."""
    level = next(
        each
        for each in machine.levels
        if not each.capacity or each.capacity * each.units >= read_bytes + written_bytes
    )
    moved = read_bytes / level.read_bandwidth + written_bytes / level.write_bandwidth
    return machine.launch + moved / level.units


def predict_node(machine: Machine, node: Node) -> float:
    """Predict the seconds of a node as those of moving its operands and its result."""
    return predict_transfer(machine, sum(map(count_bytes, node.operands)), count_bytes(node))
