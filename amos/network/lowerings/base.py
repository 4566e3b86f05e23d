"""What all ways to compute a task have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from amos.codegen.tir.program import Argument
from amos.ir import Operator
from amos.measure.reference import References
from amos.network.groups import Computation
from amos.plan.staging import stage_array

if TYPE_CHECKING:
    from amos.network.kernels import TaskKernel
    from amos.network.lowerings.direct import Direct

#: Another way to compute, by tiles or by rows, has to be faster by a tenth to be chosen.
WORTH = 0.9
#: Inputs, NumPy's result of them, and by how much others may differ from it. A second limit counts
#: where results exceed the first one, and is computed only then.
Example = tuple[dict[str, np.ndarray], np.ndarray, Iterable[float]]


@dataclass(frozen=True)
class Lowering(ABC):
    """How a task is computed, before its kernel is built.

    Attributes:
        operator: what is computed.
        by_tiles: whether that is by Winograd's tiles.
    """

    operator: Computation
    by_tiles: ClassVar[bool] = False

    @property
    @abstractmethod
    def products(self) -> tuple[Direct, ...]:
        """What multiplies and adds, in order: the task as it is, or parts of it."""

    @property
    @abstractmethod
    def predicted(self) -> float:
        """Seconds of the task by the model."""

    @property
    def measured(self) -> float | None:
        """The same with what was measured of its products; ``None`` if nothing was."""
        return None

    @property
    def expected(self) -> float:
        """Seconds: what was measured, or else what is predicted."""
        return self.predicted if self.measured is None else self.measured

    @property
    def instruction(self) -> str:
        """Names of the products' instructions."""
        return " + ".join(each.candidate.mapping.intrinsic.name for each in self.products)

    @property
    def mapping(self) -> str:
        """Names of their mappings."""
        return " + ".join(each.candidate.mapping.name for each in self.products)

    @property
    def mappings(self) -> int:
        """How many mappings go together."""
        return prod(each.space for each in self.products)

    @property
    def schedule(self) -> dict[str, Any]:
        """Parameters of the schedule, if there is a single product."""
        return self.products[0].candidate.schedule.as_dict() if len(self.products) == 1 else {}

    @property
    def bound(self) -> str:
        """What limits the first product, which multiplies most, by the model."""
        return self.products[0].prediction.bound

    @property
    def spreads(self) -> bool:
        """Whether an element that is NaN or infinite spoils results that do not depend on it."""
        return False

    @property
    @abstractmethod
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """Operators whose records say how fast it is, and how often it computes each."""

    @abstractmethod
    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel.

        Args:
            symbol: what to call its function.

        Raises:
            BuildError: TVM refuses it, or this CPU lacks an instruction of it.
            ScheduleError: a schedule is not one of its mapping's space.
        """

    def pack(self, argument: Argument, array: np.ndarray) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it."""
        parts = self.parts(argument, array)
        if argument.packed is not None:
            shape = argument.packed.source_shape
            parts = [stage_array(argument.packed, each.reshape(shape)) for each in parts]
        whole = np.stack(parts) if len(parts) > 1 else parts[0]
        return whole.reshape(argument.shape)

    def parts(self, argument: Argument, array: np.ndarray) -> Sequence[np.ndarray]:
        """What an argument is put together of, each packed alone."""
        return [array]

    @abstractmethod
    def example(self, references: References) -> Example:
        """What its kernel is held against.

        Args:
            references: of earlier kernels, which those of the same operator share.
        """

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "instruction": self.instruction,
            "mapping": self.mapping,
            "schedule": self.schedule,
            "winograd": self.by_tiles,
            "predicted_seconds": self.predicted,
            "measured_seconds": self.measured,
        }
