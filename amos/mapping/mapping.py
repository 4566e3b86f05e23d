"""One mapping: the loops that an intrinsic call covers, and those that enclose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from amos._display import Shown
from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.ir import Affine, Operator
from amos.mapping.physical import PhysicalMapping, VirtualMapping
from amos.validate.naming import matching_name
from amos.validate.pairing import Pairing
from amos.validate.verdict import assignment_of, check_matching


@dataclass(frozen=True)
class Mapping(Shown):
    """A matching that a rule accepts (AMOS, Definition 4.3).

    Attributes:
        assignment: for each software iteration, in loop order, the index of its
            intrinsic iteration, or -1.
        order: for each source of the intrinsic the index of the operator's
            source that feeds it.
        rule: the rule that accepts it; equality ignores it.
    """

    operator: Operator
    intrinsic: Intrinsic
    assignment: tuple[int, ...]
    order: tuple[int, ...]
    rule: str = field(default="access", compare=False)

    @staticmethod
    def of(
        op: Operator,
        intrinsic: Intrinsic,
        matrix: Any,
        rule: str = "access",
        order: Sequence[int] | None = None,
    ) -> Mapping:
        """Make the mapping of a matching matrix (intrinsic × software iterations).

        Raises:
            MappingError: the rule refuses the matching; the message says why.
        """
        verdict = check_matching(op, intrinsic, matrix, rule, order=order)
        if not verdict:
            raise MappingError(f"{op.name} on {intrinsic.name}: {verdict}")
        assert verdict.pairing is not None and verdict.matching is not None
        return Mapping.from_pairing(verdict.pairing, assignment_of(verdict.matching), rule)

    @staticmethod
    def from_pairing(pairing: Pairing, assignment: tuple[int, ...], rule: str) -> Mapping:
        """Make the mapping of an assignment that the rule is known to accept."""
        return Mapping(pairing.typed, pairing.intrinsic, assignment, pairing.order, rule)

    @cached_property
    def pairing(self) -> Pairing:
        """The operator paired with the intrinsic, sources in this mapping's order."""
        return Pairing.of(self.operator, self.intrinsic, self.order)

    @cached_property
    def matching(self) -> np.ndarray:
        """Matching matrix Y: read-only bool, intrinsic × software iterations."""
        matrix = np.equal.outer(np.arange(len(self.intrinsic.iterations)), self.assignment)
        matrix.setflags(write=False)
        return matrix

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The software iterations fused into each intrinsic iteration, in loop order."""
        pairs = list(zip(self.operator.iterations, self.assignment, strict=True))
        return {
            step.name: tuple(it.name for it, at in pairs if at == t)
            for t, step in enumerate(self.intrinsic.iterations)
        }

    @cached_property
    def outer(self) -> tuple[str, ...]:
        """Software iterations that stay loops around the call, in loop order."""
        pairs = zip(self.operator.iterations, self.assignment, strict=True)
        return tuple(it.name for it, at in pairs if at < 0)

    @cached_property
    def fused(self) -> dict[str, Affine]:
        """For each intrinsic iteration its fused index, in mixed radix over the group."""
        extents = self.operator.extents

        def radix(names: Sequence[str]) -> int:
            return prod(extents[n] for n in names)

        return {
            step: Affine(tuple((n, radix(group[i + 1 :])) for i, n in enumerate(group)))
            for step, group in self.groups.items()
        }

    @cached_property
    def fused_extents(self) -> dict[str, int]:
        """For each intrinsic iteration the extent of its fused index; 1 if empty."""
        extents = self.operator.extents
        return {step: prod([extents[n] for n in group]) for step, group in self.groups.items()}

    @cached_property
    def name(self) -> str:
        """Short and stable, for example ``npq-k-crs``.

        Groups in the intrinsic's order, ``_`` for an empty one, and the order of
        the sources after ``~`` if it is not the given one. Iterations with longer
        names are joined by dots.
        """
        loops = {it.name for it in self.operator.iterations}
        return matching_name(self.groups.values(), self.order, loops)

    def virtual(self) -> VirtualMapping:
        """Map onto an accelerator of unlimited size (Figure 3 e and f)."""
        return VirtualMapping(self)

    def physical(self) -> PhysicalMapping:
        """Map onto calls of the intrinsic's problem size (Figure 3 g and h)."""
        return PhysicalMapping(self)

    def __str__(self) -> str:
        parts = []
        for step in self.intrinsic.iterations:
            fused = self.fused[step.name]
            text = f"({fused})" if len(fused.terms) > 1 else str(fused)
            parts.append(f"{text} mod {step.extent}" if fused.terms else text)
        steps = ", ".join(it.name for it in self.intrinsic.iterations)
        return f"[{steps}] ← [{', '.join(parts)}]"

    @property
    def title(self) -> str:
        """Label among mappings of other operators: ``m-n-k of gemm on UNIT``."""
        return f"{self.name} of {self.operator.name} on {self.intrinsic.name}"

    def __repr__(self) -> str:
        return f"<Mapping {self.title}>"
