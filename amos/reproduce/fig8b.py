"""AMOS, Figure 8b: MobileNet-V2 on the dot products of a Mali GPU, by the model.

The paper measured a Mali G76 and prints no numbers; here a described machine is predicted, and
AutoTVM is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amos import intrinsics, operators
from amos.errors import UnknownNameError
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.ranking import rank_candidates
from amos.ir import Operator
from amos.machine import catalogue
from amos.mapping import enumerate_mappings

_INTRINSIC = "mali_arm_dot_m1k4_s8_s32"
#: Sandler et al., 2018, Table 2: of the first block in each row of bottlenecks the output size,
#: the channels of its depthwise layer and of its result, and its stride.
_BLOCKS = (
    (112, 32, 16, 1),
    (56, 96, 24, 2),
    (28, 144, 32, 2),
    (14, 192, 64, 2),
    (14, 384, 96, 1),
    (7, 576, 160, 2),
    (7, 960, 320, 1),
)


@dataclass(frozen=True)
class Fig8bRow:
    """A layer of MobileNet-V2.

    Attributes:
        layer: ``DEP1`` to ``DEP7``, the depthwise layers, and ``C2D1`` to ``C2D7``, the pointwise
            ones after them.
        seconds: predicted for it.
        gops: operations by the nanosecond at that.
        peak_fraction: share of the dot products that the machine could compute meanwhile.
    """

    layer: str
    mappings: int
    mapping: str
    seconds: float
    gops: float
    peak_fraction: float


def layers() -> dict[str, Operator]:
    """Return the layers of the figure by name, batch 1, NHWC, in bytes."""
    depthwise, pointwise = {}, {}
    for number, (size, channels, result, stride) in enumerate(_BLOCKS, 1):
        common = {"n": 1, "c": channels, "p": size, "q": size, "layout": "NHWC", "dtype": "s8"}
        window = {"r": 3, "s": 3, "stride": stride, "padding": 1, "k": 1}
        point = {"r": 1, "s": 1, "k": result}
        depthwise[f"DEP{number}"] = operators.get("depthwise_conv2d", **common | window)
        pointwise[f"C2D{number}"] = operators.get("conv2d", **common | point)
    return depthwise | pointwise


def fig8b(machine: str = "mali_g76", names: Sequence[str] = ()) -> list[Fig8bRow]:
    """Predict each layer, or those named, on a machine with dot products of bytes, a row each."""
    operators_by_name = layers()
    for name in names:
        if name not in operators_by_name:
            raise UnknownNameError("layer of Figure 8b", name, operators_by_name)
    return [_row(name, operators_by_name[name], machine) for name in names or operators_by_name]


def _row(name: str, operator: Operator, machine: str) -> Fig8bRow:
    unit = intrinsics.get(_INTRINSIC)
    target = catalogue.get(machine, [unit])
    problem = Problem(list(enumerate_mappings(operator, unit)), target)
    (best,) = rank_candidates(problem, 1, GeneticSearch)
    seconds = float(problem.seconds([best])[0])
    gops = operator.operations / seconds / 1e9
    peak = target.cores * unit.operations / target.peak(unit.name).interval / 1e9
    return Fig8bRow(
        layer=name,
        mappings=len(problem.mappings),
        mapping=best.mapping.name,
        seconds=seconds,
        gops=gops,
        peak_fraction=gops / peak,
    )
