"""``amos.predict``: the model's prediction for a mapping, candidate or trial on a machine."""

from __future__ import annotations

from amos import machines
from amos.machine import Machine
from amos.mapping import Mapping
from amos.perfmodel import Prediction
from amos.perfmodel import predict as predict_mapping
from amos.plan import Candidate, Schedule
from amos.plan.target import target_of
from amos.records import Trial
from amos.schedule import candidate_of


def predict(
    kernel: Mapping | Candidate | Trial,
    machine: str | Machine,
    schedule: Schedule | None = None,
    *,
    model: str = "amos+",
) -> Prediction:
    """Predict the latency of a mapping under a schedule, of a candidate, or of a trial.

    Args:
        kernel: a kernel to predict; a mapping may come with a schedule, and without
            one takes the simplest of its space.
        machine: where it runs, by name or as a description.
        schedule: schedule of a bare mapping.
        model: ``"amos+"``, or ``"amos"`` for the paper's equation with warm caches.

    Raises:
        BuildError: a unit's streams cannot compute the operator.
        MachineError: the machine has no rate for the intrinsic, or only one of loops that
            stand for it; a memory that the schedule places data in overflows, or there is
            no such model.
        MappingError: this is no mapping, candidate or trial.
        UnknownNameError: there is no such machine.
    """
    candidate = candidate_of(kernel, schedule)
    target = machines.get(machine, [candidate.mapping.intrinsic])
    operator, unit = candidate.mapping.operator, candidate.mapping.intrinsic
    target_of(target).check_operator(operator, unit, target)
    return predict_mapping(candidate.mapping, target, candidate.schedule, model=model)
