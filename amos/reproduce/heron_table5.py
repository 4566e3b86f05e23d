"""Heron, Table 5: variables and constraints that describe a space on Tensor Core."""

from __future__ import annotations

from dataclasses import dataclass

from amos import machines, operators
from amos.mapping import enumerate_mappings
from amos.schedule import ScheduleSpace

#: For each of the paper's operators: ours, and the paper's variables and constraints.
_OPERATORS = {
    "GEMM": ("gemm", (173, 372)),
    "BMM": ("bmm", (236, 529)),
    "C1D": ("conv1d", (236, 547)),
    "C2D": ("conv2d", (304, 702)),
    "C3D": ("conv3d", (363, 861)),
}


@dataclass(frozen=True)
class HeronTable5Row:
    """One operator.

    Attributes:
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


def heron_table5() -> list[HeronTable5Row]:
    """Count variables and constraints of each operator in library shapes, on V100.

    Heron has one problem in which the intrinsic's problem size and five stages of data movement are
    variables; here the mapping decides these first, so that each mapping has a smaller problem of
    its own.
    """
    return [_row(code, name, paper) for code, (name, paper) in _OPERATORS.items()]


def _row(code: str, name: str, paper: tuple[int, int]) -> HeronTable5Row:
    mappings = enumerate_mappings(operators.resolve(name), "wmma_m16n16k16_f16_f32")
    spaces = [ScheduleSpace(mapping, machines.get("v100")) for mapping in mappings]
    variables = [len(space.csp.variables) for space in spaces]
    constraints = [len(space.csp.constraints) for space in spaces]
    largest = spaces[constraints.index(max(constraints))].csp
    return HeronTable5Row(
        code,
        paper,
        len(spaces),
        (min(variables), max(variables)),
        (min(constraints), max(constraints)),
        largest.by_role(),
        largest.by_type(),
        sum(space.size for space in spaces),
    )
