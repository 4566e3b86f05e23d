"""The head of a kernel of a parallel device: names, parameters, what it computes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from amos.codegen.naming import Names, spell
from amos.ir.tasks import TaskMapping
from amos.plan.device_plan import DevicePlan

PlanT = TypeVar("PlanT", bound=DevicePlan)


@dataclass(frozen=True)
class DeviceText(ABC, Generic[PlanT]):
    """The parts of a kernel's file.

    Attributes:
        name: of the function; by default the operator's and the mapping's.
        grid: which group computes which tile, along the spatial loops of more than one step in
            the schedule's order; by default as its ``raster`` says.

    Raises:
        TaskMappingError: the grid is of other tiles, or groups do not compute one each.
    """

    #: Names that an operator must not have.
    own: ClassVar[re.Pattern[str]]

    plan: PlanT
    name: str = ""
    grid: TaskMapping | None = None

    def __post_init__(self) -> None:
        self.plan.check_grid(self.grid)

    @classmethod
    def name_of(cls, plan: PlanT) -> str:
        """Name of the function by default: the operator's and the mapping's."""
        return spell(f"{plan.mapping.operator.name}_{plan.mapping.name}", cls.own)

    @cached_property
    def function(self) -> str:
        """Name of the function."""
        return self.name or self.name_of(self.plan)

    @cached_property
    def names(self) -> Names:
        """Names of the operator's tensors and loops in the text."""
        return Names.of(self.plan.mapping.operator, self.own)

    @cached_property
    def _spelled_plan(self) -> PlanT:
        return self.names.rename(self.plan)

    @cached_property
    def parameters(self) -> str:
        """The function's parameters: each input once, then the results."""
        results = {tensor.name for tensor in self._spelled_plan.results}
        return ", ".join(
            self._parameter("" if name in results else "const ", kind, name)
            for name, kind in self._spelled_plan.arguments.items()
        )

    @abstractmethod
    def _parameter(self, qualifier: str, kind: str, name: str) -> str:
        """Write a pointer to the elements of a tensor."""

    def _comment(self, device: str, launch: str, layout: str) -> str:
        """Describe as comments what the kernel computes, and how."""
        mapping = self.plan.mapping
        lines = [
            str(mapping.operator),
            f"mapping {mapping.name}: {mapping}",
            f"{mapping.intrinsic.name}, {device}",
            launch,
            layout + " The output must be zero at the start." * self.plan.zeroed,
        ]
        return "".join(f"// {line}\n" for line in lines)
