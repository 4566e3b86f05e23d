"""The instructions of a machine, and what each could do for an operator."""

from __future__ import annotations

import math
from typing import Any

from amos.errors import UnknownNameError
from amos.explore import SearchOptions
from amos.explore.contenders import Contender, chosen_intrinsics, contenders, predicted, reasons
from amos.explorer.state import FieldError, State
from amos.explorer.subject import AUTO, HOST, Offer, field, operator_of
from amos.machine import catalogue
from amos.validate.pairing import check_rule


def instructions(state: State, offer: Offer) -> dict[str, Any]:
    """Instructions of the machine that is chosen, fastest first by the model.

    Args:
        state: what is chosen; its intrinsic does not count.
        offer: what can be chosen.

    Returns:
        ``machine``, ``rows`` of those with mappings, and ``others``: lines on why the rest
        has none. Seconds are ``None`` where nothing is predicted, as on this computer, whose
        rates are measured when an instruction is picked.

    Raises:
        FieldError: a field is at fault.
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
        units = chosen_intrinsics(None, machine)
    search = SearchOptions(commute=state.commute)
    with field("dtype"):
        every = contenders(op, units, state.rule, search)
    if state.machine != HOST:
        target = catalogue.get(machine, units)
        every = [
            each if each.reason else predicted(op, each, target, state.rule, search)
            for each in every
        ]
    every.sort(key=lambda each: (each.predicted, bool(each.reason)))
    return {
        "machine": state.machine,
        "rows": [_row(each) for each in every if each.mappings],
        "others": reasons([each for each in every if not each.mappings]),
    }


def _row(each: Contender) -> dict[str, Any]:
    return {
        "name": each.intrinsic.name,
        "mappings": each.mappings,
        "utilization": each.utilization,
        "seconds": each.predicted if math.isfinite(each.predicted) else None,
        "reason": each.reason,
    }
