"""Sources that every call packs, though once would do (``constants=``)."""

from __future__ import annotations

from dataclasses import dataclass

from amos.errors import AmosError
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping import enumerate_mappings
from amos.perfmodel import predict
from amos.plan import Candidate

#: Predicted gains below this share are not mentioned.
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class ConstantSaving:
    """A source, and seconds predicted of a kernel as it is and where the source is a constant."""

    tensor: str
    seconds: float
    constant_seconds: float

    def __str__(self) -> str:
        return (
            f"each call packs `{self.tensor}`; with --constant {self.tensor}, for values that stay "
            f"the same between calls: {self.constant_seconds * 1e3:.4g} ms predicted instead of "
            f"{self.seconds * 1e3:.4g} ms"
        )


def constant_saving(candidate: Candidate, machine: Machine) -> ConstantSaving | None:
    """Find the source of a CPU's kernel whose packing ahead saves most; ``None`` if too little."""
    if not machine.cached:
        return None
    operator = candidate.mapping.operator
    sources = {load.tensor.name for load in operator.operands[:-1]} - {*operator.constants}
    try:
        seconds = predict(candidate.mapping, machine, candidate.schedule).seconds
    except AmosError:
        return None
    savings = []
    for name in sorted(sources):
        constant = operator.with_constants((*operator.constants, name))
        try:
            savings.append(
                ConstantSaving(name, seconds, _predict_seconds(constant, candidate, machine))
            )
        except AmosError:
            continue  # it has no such mapping or schedule
    best = min(savings, key=lambda saving: saving.constant_seconds, default=None)
    if best is None or best.constant_seconds > (1 - _LEAST_GAIN) * seconds:
        return None
    return best


def _predict_seconds(operator: Operator, candidate: Candidate, machine: Machine) -> float:
    """Predict seconds of a candidate's mapping and schedule for an operator of the same loops."""
    unit = candidate.mapping.intrinsic
    space = enumerate_mappings(operator, unit, "gather", commute=True)
    mapping = space.find(candidate.mapping.name)
    return predict(mapping, machine, candidate.schedule).seconds
