"""Heron, Table 5: variables and constraints that describe a space on Tensor Core."""

from __future__ import annotations

from dataclasses import dataclass

from amos import intrinsics, machines, operators
from amos.mapping import enumerate_mappings
from amos.schedule import ScheduleSpace

__all__ = ["HeronTable5Row", "heron_table5"]

#: The paper's figures: variables, constraints.
_PAPER = {
    "GEMM": (173, 372),
    "BMM": (236, 529),
    "C1D": (236, 547),
    "C2D": (304, 702),
    "C3D": (363, 861),
}
_OURS = {
    "GEMM": "gemm",
    "BMM": "bmm",
    "C1D": "conv1d",
    "C2D": "conv2d",
    "C3D": "conv3d",
}
_INTRINSIC, _MACHINE = "wmma_m16n16k16_f16_f32", "v100"


@dataclass(frozen=True)
class HeronTable5Row:
    """One operator.

    Attributes:
        code: the paper's name.
        paper: its variables and constraints.
        mappings: how many mappings we search; each is a problem of its own.
        variables: of one mapping, the fewest and the most.
        constraints: the same.
        by_role: variables of the largest problem, by role (Heron, Table 4).
        by_type: its constraints by type.
        size: assignments over all mappings.
    """

    code: str
    paper: tuple[int, int]
    mappings: int
    variables: tuple[int, int]
    constraints: tuple[int, int]
    by_role: dict[str, int]
    by_type: dict[str, int]
    size: int


def heron_table5(rule: str = "access") -> list[HeronTable5Row]:
    """One row for each operator of the table, in library shapes, on V100.

    Heron has one problem in which the intrinsic's problem size and five stages of
    data movement are variables; here the mapping settles these first, so that each
    mapping has a smaller problem of its own.
    """
    return [_row(code, rule) for code in _PAPER]


def _row(code: str, rule: str) -> HeronTable5Row:
    op = operators.resolve(_OURS[code])
    found = enumerate_mappings(op, intrinsics.get(_INTRINSIC), rule=rule)
    spaces = [ScheduleSpace(mapping, machines.get(_MACHINE)) for mapping in found]
    variables = [len(space.csp.variables) for space in spaces]
    constraints = [len(space.csp.constraints) for space in spaces]
    largest = spaces[constraints.index(max(constraints))].csp
    return HeronTable5Row(
        code,
        _PAPER[code],
        len(spaces),
        (min(variables), max(variables)),
        (min(constraints), max(constraints)),
        largest.by_role(),
        largest.by_type(),
        sum(space.size for space in spaces),
    )
