"""The protocol of lowerings: predictions, writing, packing and building of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduled import scheduled
from amos.codegen.tir.program import Argument, Program
from amos.explore.choosing import Product
from amos.ir import Chain, Operator
from amos.machine.limits import CpuLimits
from amos.measure.reference import References
from amos.network.graph import Constant
from amos.network.kernels import TaskKernel
from amos.network.loops.scheduling import code_of
from amos.plan.staging import stage_array
from amos.runtime.compiling import compile_function
from amos.runtime.kernel import implementation_of

#: Share of the direct lowering's predicted time that tiles or bands may take: predictions err.
SAFETY_FACTOR = 0.9
#: Inputs, NumPy's result of them, and tolerances in rising order, each computed when it is needed.
Example = tuple[Mapping[str, np.ndarray | Constant], np.ndarray, Iterable[float]]


@dataclass(frozen=True)
class ScheduledProduct:
    """A product as scheduled TensorIR.

    Attributes:
        program: its arguments.
        function: its TensorIR.
        kind: ``"native"`` or ``"generic"``.
    """

    program: Program
    function: Any
    kind: str

    @property
    def parameters(self) -> dict[str, Any]:
        """Buffers of the function by the names of the operator's tensors."""
        names = [each.tensor for each in self.program.arguments]
        return dict(zip(names, self.function.params, strict=True))


@dataclass(frozen=True)
class Lowering(ABC):
    """The lowering of a task, before its kernel is built.

    Attributes:
        operator: what is computed.
        products: what multiplies and adds, in order, the one that multiplies most first.
        by_tiles: whether that is on Winograd's tiles.
        shared: whether buffers may have the same memory, one after the other.
        views: whether buffers begin within others.
        spreads: whether an element that is NaN or infinite spoils results that do not read it.
    """

    operator: Operator | Chain
    products: tuple[Product, ...]
    by_tiles: ClassVar[bool] = False
    shared: ClassVar[bool] = True
    views: ClassVar[bool] = False

    @abstractmethod
    def total(self, seconds: Sequence[float]) -> float:
        """Return the seconds of the task from those of each of its products."""

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """Operators whose records give its time; none by default."""
        return ()

    @abstractmethod
    def write(self, products: Sequence[ScheduledProduct]) -> tuple[Sequence[Argument], Any]:
        """Write the kernel of scheduled products: its arguments, output last, and its function."""

    @abstractmethod
    def example(self, references: References) -> Example:
        """Draw inputs and compute the result; kernels of an operator share ``references``."""

    @property
    def spreads(self) -> bool:
        """See the attributes."""
        return False

    @property
    def limits(self) -> CpuLimits:
        """Limits of the cores that compute a product together; by default of all."""
        return CpuLimits.here()

    @property
    def predicted(self) -> float:
        """Predicted seconds of the task."""
        return self.total([each.prediction.seconds for each in self.products])

    @property
    def measured(self) -> float | None:
        """Seconds of the task from measured products; ``None`` without one for each of them."""
        seconds = [each.seconds for each in self.products if each.seconds is not None]
        return self.total(seconds) if seconds and len(seconds) == len(self.products) else None

    @property
    def expected(self) -> float:
        """Measured seconds, or else predicted ones."""
        return self.predicted if self.measured is None else self.measured

    @property
    def instruction(self) -> str:
        """Names of the products' instructions."""
        return " + ".join(each.mapping.intrinsic.name for each in self.products)

    @property
    def mappings(self) -> int:
        """Number of combinations of mappings of the products."""
        return prod(each.mappings for each in self.products)

    @property
    def bound(self) -> str:
        """The bottleneck of the first product, by the model."""
        return self.products[0].prediction.bound

    def pack(self, argument: Argument, value: Constant) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it."""
        array = value.array
        if argument.packed is not None:
            array = stage_array(argument.packed, array.reshape(argument.packed.source_shape))
        return array.reshape(argument.shape)

    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel.

        Raises:
            BuildError: TVM refuses it, or this CPU lacks an instruction of it.
            ScheduleError: a schedule is not one of its mapping's space.
        """
        products = [_schedule(each, self.limits) for each in self.products]
        arguments, function = self.write(products)
        first = products[0]
        tiled = first.program.plan.tiled
        return self.compile(symbol, arguments, function, kind=first.kind, tiled=tiled)

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

        Raises:
            BuildError: TVM refuses it.
        """
        import tvm

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
            compact=self.by_tiles,
            checked=False,
        )
        if tiled:
            ask_for_tiles()
        return TaskKernel(symbol, self, tuple(arguments), tiled, code_of(library.mod))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        schedules = [each.candidate.schedule.as_dict() for each in self.products]
        return {
            "instruction": self.instruction,
            "mapping": " + ".join(each.mapping.name for each in self.products),
            "schedule": schedules[0] if len(schedules) == 1 else {},
            "winograd": self.by_tiles,
            "predicted_seconds": self.predicted,
            "measured_seconds": self.measured,
        }


def _schedule(product: Product, limits: CpuLimits) -> ScheduledProduct:
    kind = implementation_of(product.candidate, product.implementation)
    program, module = scheduled(product.candidate, kind, limits)
    ((_, function),) = module.functions.items()
    return ScheduledProduct(program, function, kind)
