"""The head of a kernel of a parallel device: names, parameters, what it computes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from amos.codegen.device.arithmetic import Dialect
from amos.codegen.device.reductions import count_elements, end_elements, start_elements
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

    @cached_property
    def start(self) -> str:
        """Name of the function that is launched before; empty if there is none."""
        return f"{self.function}_start" if count_elements(self.plan.mapping.operator) else ""

    @cached_property
    def end(self) -> str:
        """Name of the function that is launched behind; empty if there is none."""
        elements = count_elements(self.plan.mapping.operator, ends=True)
        return f"{self.function}_end" if elements else ""

    def _extra_functions(self, head: str, dialect: Dialect) -> list[str]:
        """Write the functions that are launched before and behind, with the same arguments."""
        lines = []
        for name, when, write in (
            (self.start, "before", start_elements),
            (self.end, "behind", end_elements),
        ):
            if name:
                lines += [
                    "",
                    f"// What is launched {when}, with the same arguments.",
                    head,
                    f"{name}({self.parameters}) {{",
                    *write(self._spelled_plan, dialect),
                    "}",
                ]
        return lines

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
