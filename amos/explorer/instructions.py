"""The instructions of a machine, with the mappings that each has for an operator."""

from __future__ import annotations

import math
from typing import Any

from amos.errors import UnknownNameError
from amos.explore import SearchOptions
from amos.explore.contenders import (
    Contender,
    contenders,
    predict_contender,
    reasons,
    select_intrinsics,
)
from amos.explorer.state import FieldError, State
from amos.explorer.subject import AUTO, HOST, Offer, field, operator_of
from amos.machine import catalogue
from amos.validate.pairing import check_rule


def instructions(state: State, offer: Offer) -> dict[str, Any]:
    """List the instructions of the chosen machine, fastest first by the model.

    Returns:
        ``machine``, ``rows`` of those with mappings, and ``others``: lines on why the rest
        has none. Seconds are ``None`` where nothing is predicted, as on this computer, whose
        rates are measured when an instruction is picked.
    """
    with field("rule"):
        check_rule(state.rule)
    op = operator_of(state)
    if state.machine in ("", AUTO):
        raise FieldError("machine", "choose one: its instructions are listed")
    with field("machine"):
        if state.machine not in offer.machine_names():
            raise UnknownNameError("machine", state.machine, offer.machine_names())
        machine = offer.machines.get(state.machine, state.machine)
        units = select_intrinsics(None, machine)
    search = SearchOptions(commute=state.commute)
    with field("dtype"):
        all_contenders = contenders(op, units, state.rule, search)
    if state.machine != HOST:
        target = catalogue.get(machine, units)
        all_contenders = [
            each if each.reason else predict_contender(op, each, target, state.rule, search)
            for each in all_contenders
        ]
    all_contenders.sort(key=lambda contender: (contender.predicted, bool(contender.reason)))
    return {
        "machine": state.machine,
        "rows": [_row(each) for each in all_contenders if each.mappings],
        "others": reasons([each for each in all_contenders if not each.mappings]),
    }


def _row(contender: Contender) -> dict[str, Any]:
    return {
        "name": contender.intrinsic.name,
        "mappings": contender.mappings,
        "utilization": contender.utilization,
        "seconds": contender.predicted if math.isfinite(contender.predicted) else None,
        "reason": contender.reason,
    }
