"""AMOS, Figure 9: two fixed mappings beside the whole space, by the model.

The paper measured an A100; here a described machine is predicted, and CuDNN is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import NamedTuple

from amos import intrinsics, operators
from amos.errors import UnknownNameError
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.ranking import rank_candidates
from amos.machine import catalogue
from amos.mapping import Mapping, enumerate_mappings
from amos.reproduce.table5 import PRINTED

_INTRINSIC = "wmma_m16n16k16_f16_f32"
#: The paper's fixed mappings: software iterations of i1 and r1; i2 has k.
FIXED = {"fixM1": ({"n", "p", "q"}, {"c", "r", "s"}), "fixM2": ({"p", "q"}, {"c"})}
#: Section 7.5: by how much performance drops with each.
PAPER = {"fixM1": 0.368, "fixM2": 0.319}
_BATCH = 16


@dataclass(frozen=True)
class Fig9Row:
    """A layer of ResNet-18.

    Attributes:
        seconds: predicted for the best candidate of all mappings.
        fixed: predicted seconds of the best schedule of each fixed mapping.
    """

    layer: str
    seconds: float
    mapping: str
    fixed: dict[str, float]

    def drop(self, name: str) -> float:
        """Return the share of the performance that a fixed mapping loses."""
        return 1 - self.seconds / self.fixed[name]


def fig9(machine: str = "a100", layers: Sequence[str] = tuple(PRINTED)) -> list[Fig9Row]:
    """Compare fixed mappings with the whole space on layers of Table 5, batch 16, a row a layer."""
    for layer in layers:
        if layer not in PRINTED:
            raise UnknownNameError("layer of Table 5", layer, PRINTED)
    return [_row(layer, machine) for layer in layers]


def mean_drop(rows: Sequence[Fig9Row], name: str) -> float:
    """Return the share of the performance that a fixed mapping loses, by the geometric mean."""
    return 1 - geometric_mean(1 - row.drop(name) for row in rows)


def _row(layer: str, machine: str) -> Fig9Row:
    op = operators.layer(f"resnet18:{layer}", layout="NCHW", n=_BATCH)
    unit = intrinsics.get(_INTRINSIC)
    mappings = list(enumerate_mappings(op, unit, "paper"))
    target = catalogue.get(machine, [unit])
    best = {
        name: _least(Problem([_match(mappings, *groups)], target)) for name, groups in FIXED.items()
    }
    # The whole space has the fixed mappings, too, and chance may favour either search.
    fastest = min(_least(Problem(mappings, target)), *best.values())
    fixed = {
        name: fastest.seconds if each.mapping == fastest.mapping else each.seconds
        for name, each in best.items()
    }
    return Fig9Row(layer, fastest.seconds, fastest.mapping, fixed)


def _match(mappings: Sequence[Mapping], spatial: set[str], reduce: set[str]) -> Mapping:
    return next(m for m in mappings if {*m.groups["i1"]} == spatial and {*m.groups["r1"]} == reduce)


class _Best(NamedTuple):
    """The best candidate of a search."""

    seconds: float
    mapping: str


def _least(problem: Problem) -> _Best:
    (best,) = rank_candidates(problem, 1, GeneticSearch)
    return _Best(float(problem.seconds([best])[0]), best.mapping.name)
