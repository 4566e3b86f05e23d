"""What all ways to compute a task have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduled import scheduled
from amos.codegen.tir.program import Argument, Program
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.measure.reference import References
from amos.network.candidates import Product
from amos.network.engine import code_of
from amos.network.groups import Computation
from amos.network.kernels import TaskKernel
from amos.plan.staging import stage_array
from amos.runtime.kernel import compile_module, implementation_of

#: Another way to compute, by tiles or by rows, has to be faster by a tenth to be chosen.
WORTH = 0.9
#: Inputs, NumPy's result of them, and by how much others may differ from it: by the first limit,
#: or by the next one, which is computed only for those that differ by more.
Example = tuple[dict[str, np.ndarray], np.ndarray, Iterable[float]]


@dataclass(frozen=True)
class Scheduled:
    """A product with its loops in order.

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

    @property
    def result(self) -> Any:
        """The buffer of the results."""
        return self.function.params[-1]


@dataclass(frozen=True)
class Lowering(ABC):
    """How a task is computed, before its kernel is built.

    Attributes:
        operator: what is computed.
        products: what multiplies and adds, in order, the one that multiplies most first.
        by_tiles: whether that is on Winograd's tiles.
        shared: whether buffers may have the same memory, one after the other.
        spreads: whether an element that is NaN or infinite spoils results that do not read it.
    """

    operator: Computation
    products: tuple[Product, ...]
    by_tiles: ClassVar[bool] = False
    shared: ClassVar[bool] = True

    @abstractmethod
    def total(self, seconds: Sequence[float]) -> float:
        """Seconds of the task, of those of each of its products."""

    @property
    @abstractmethod
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """Operators whose records say how fast it is, and how often it computes each."""

    @abstractmethod
    def write(self, parts: Sequence[Scheduled]) -> tuple[Sequence[Argument], Any]:
        """The arguments of the kernel, the output last, and its function around its products."""

    @abstractmethod
    def example(self, references: References) -> Example:
        """What its kernel is held against; ``references`` are shared by those of an operator."""

    def parts(self, argument: Argument, array: np.ndarray) -> Sequence[np.ndarray]:
        """What an argument is put together of, each part packed alone."""
        return [array]

    @property
    def spreads(self) -> bool:
        """See the attributes."""
        return False

    @property
    def predicted(self) -> float:
        """Seconds of the task by the model."""
        return self.total([each.prediction.seconds for each in self.products])

    @property
    def measured(self) -> float | None:
        """The same with what was measured of the products; ``None`` if one of them was not."""
        seconds = [each.seconds for each in self.products if each.seconds is not None]
        return self.total(seconds) if len(seconds) == len(self.products) else None

    @property
    def expected(self) -> float:
        """Seconds: what was measured, or else what is predicted."""
        return self.predicted if self.measured is None else self.measured

    @property
    def instruction(self) -> str:
        """Names of the products' instructions."""
        return " + ".join(each.mapping.intrinsic.name for each in self.products)

    @property
    def mappings(self) -> int:
        """How many mappings of the products go together."""
        return prod(each.mappings for each in self.products)

    @property
    def bound(self) -> str:
        """What limits the first product, by the model."""
        return self.products[0].prediction.bound

    def pack(self, argument: Argument, array: np.ndarray) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it."""
        parts = self.parts(argument, array)
        if argument.packed is not None:
            shape = argument.packed.source_shape
            parts = [stage_array(argument.packed, each.reshape(shape)) for each in parts]
        whole = np.stack(parts) if len(parts) > 1 else parts[0]
        return whole.reshape(argument.shape)

    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel.

        Args:
            symbol: what to call its function.

        Raises:
            BuildError: TVM refuses it, or this CPU lacks an instruction of it.
            ScheduleError: a schedule is not one of its mapping's space.
        """
        parts = [_schedule(each) for each in self.products]
        arguments, function = self.write(parts)
        import tvm

        named = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
        candidate, (first, *_) = self.products[0].candidate, parts
        library = compile_module(candidate, first.program, first.kind, named, shared=self.shared)
        tiled = first.program.plan.tiled
        if tiled:
            ask_for_tiles()
        return TaskKernel(symbol, self, tuple(arguments), tiled, code_of(library.mod), library)

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


def _schedule(product: Product) -> Scheduled:
    kind = implementation_of(product.candidate, product.implementation)
    program, module = scheduled(product.candidate, kind, CpuLimits.here())
    ((_, function),) = module.functions.items()
    return Scheduled(program, function, kind)
