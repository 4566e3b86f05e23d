"""One message in, one answer out: the engine of both front ends of the explorer.

The engine keeps nothing between messages but caches: a message holds the whole state,
so that any number of pages can ask, and an invalid message leaves a page as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from amos import intrinsics, operators
from amos.errors import AmosError
from amos.explore.sampled import best_sampled
from amos.explorer.instructions import instructions
from amos.explorer.listing import RANKED, Listing, Query
from amos.explorer.script import SAMPLES, script
from amos.explorer.sizes import sliders
from amos.explorer.state import FieldError, State, read_fields
from amos.explorer.subject import Offer, Subject
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.mapping import Mapping as Placement
from amos.operators.tables import layers
from amos.perfmodel import Prediction
from amos.plan import Candidate
from amos.validate import RULES, Pairing, Verdict
from amos.validate.naming import read_name


@dataclass(frozen=True)
class _Target:
    """A machine in some sizes, identified by its name and them."""

    name: str
    sizes: str
    machine: Machine = field(compare=False)


class Engine:
    """Answers messages of an explorer's page.

    Args:
        files: descriptions of further intrinsics, already loaded, by name.
        machines: machines besides the described ones.
        host: measures how fast this computer executes an intrinsic, if the page may ask
            for that.
    """

    def __init__(
        self,
        files: Mapping[str, Path] | None = None,
        machines: Iterable[Machine] = (),
        initial: State | None = None,
        host: Callable[[Intrinsic], Machine] | None = None,
    ) -> None:
        named = {name: str(path) for name, path in (files or {}).items()}
        self.offer = Offer(named, {machine.name: machine for machine in machines}, host)
        self.initial = initial or State()
        self._listing = lru_cache(maxsize=4)(Listing)
        self._predicted = lru_cache(maxsize=4 * RANKED)(self._predict)

    def answer(self, message: object) -> dict[str, Any]:
        """Answer one message.

        Args:
            message: decoded JSON with a ``kind``: ``choices``, ``judge`` or ``instructions``
                with a ``state``, or ``rows`` with a ``state`` and what to list.

        Returns:
            Plain values. ``ok`` is false if the message cannot be used, and then
            ``errors`` says by field what is wrong, as the command line would.
        """
        try:
            if not isinstance(message, Mapping):
                raise FieldError("", f"expected an object, got {type(message).__name__}")
            match message.get("kind"):
                case "choices":
                    answer = self._choices()
                case "judge":
                    answer = self._judge(State.read(message.get("state")))
                case "rows":
                    answer = self._rows(message)
                case "instructions":
                    answer = instructions(State.read(message.get("state")), self.offer)
                case kind:
                    raise FieldError("", f"unknown message {str(kind)[:40]!r}")
            return {"ok": True, **answer}
        except FieldError as error:
            return {"ok": False, "errors": {error.field: str(error)}}
        except AmosError as error:
            return {"ok": False, "errors": {"": str(error)}}

    def check(self) -> None:
        """Answer for the page's first state ahead, so that the first click does not wait."""
        self._judge(self.initial)

    def judge(self, state: Mapping[str, Any]) -> tuple[Verdict, Placement | None]:
        """Judge a state; return the verdict, and the mapping if the rule accepts it."""
        subject = Subject.of(State.read(dict(state)), self.offer)
        rule = subject.space.rule
        verdict = subject.judge(rule)
        return verdict, subject.place(rule) if verdict else None

    def _choices(self) -> dict[str, Any]:
        return {
            "operators": [*operators.names(), *layers()],
            "intrinsics": list(intrinsics.names()),
            "machines": self.offer.machine_names(),
            "rules": list(RULES),
            "state": asdict(self.initial),
        }

    def _rows(self, message: Mapping[str, Any]) -> dict[str, Any]:
        state = State.read(message.get("state"))
        subject = Subject.of(state, self.offer)
        predict = None
        if subject.machine is not None and subject.space.count <= RANKED:
            target = _Target(subject.machine.name, state.sizes, subject.machine)
            predict = partial(self._seconds, target)
        return self._listing(subject.space).rows(read_fields(Query, message), predict)

    def _seconds(self, target: _Target, mapping: Placement) -> float | None:
        """Predict a mapping's seconds; ``None`` where the model cannot."""
        best = self._predicted(mapping, target)
        return None if isinstance(best, str) else best[0].seconds

    def _judge(self, state: State) -> dict[str, Any]:
        subject = Subject.of(state, self.offer)
        op, unit, rule = subject.space.operator, subject.space.intrinsic, subject.space.rule
        verdict = subject.judge(rule)
        pairing = Pairing.of(op, unit, subject.order)
        # Wider rules accept all that a narrower one does: show the narrowest that accepts.
        accepted = [each for each in RULES if subject.judge(each)]
        by = rule if verdict else next(iter(accepted), "")
        mapping = subject.place(by) if by else None
        return {
            "state": asdict(replace(state, assignment=subject.assignment, order=subject.order)),
            "operator": {"text": str(op), "loops": list(map(asdict, op.iterations))},
            "intrinsic": {"text": str(unit), "steps": list(map(asdict, unit.iterations))},
            "orders": [[list(order), subject.sources(order)] for order in subject.space.orders],
            "x": _matrix(pairing.labels, pairing.access_matrix),
            "z": _matrix(pairing.fed, unit.access_matrix),
            "verdict": _verdict(verdict)
            | {
                "accepted_by": accepted,
                "accepted_in": [] if verdict else subject.accepting_orders(),
            },
            "count": f"{subject.space.count:,}",
            "mapping": None if mapping is None else _physical(mapping) | {"refused": not verdict},
            "prediction": self._prediction(subject.machine, state, mapping),
            "sizes": list(sliders(intrinsics.get(state.intrinsic), state.sizes)),
            "code": script(state, subject, self.offer, mapping),
        }

    def _prediction(
        self, machine: Machine | None, state: State, mapping: Placement | None
    ) -> dict[str, Any] | None:
        if mapping is None or machine is None:
            return None
        best = self._predicted(mapping, _Target(machine.name, state.sizes, machine))
        if isinstance(best, str):
            return {"error": best}
        prediction, candidate = best
        return {
            "seconds": prediction.seconds,
            "bound": prediction.bound,
            "bars": list(map(asdict, prediction.terms)),
            "schedule": str(candidate.schedule),
            "machine": machine.name,
        }

    def _predict(self, mapping: Placement, target: _Target) -> tuple[Prediction, Candidate] | str:
        """Return the best of some schedules, or why there is none."""
        try:
            best = best_sampled(mapping, target.machine, SAMPLES, np.random.default_rng(0))
        except AmosError as error:
            return str(error)
        return best or f"no schedule that was drawn fits {target.name}"


def _matrix(rows: tuple[str, ...], values: np.ndarray) -> dict[str, Any]:
    return {"rows": list(rows), "values": values.astype(int).tolist()}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    pairing, nearest = verdict.pairing, []
    for name in verdict.nearest:
        assert pairing is not None
        assignment, _ = read_name(name, pairing.operator, pairing.intrinsic)
        nearest.append({"name": name, "assignment": list(assignment)})
    return {
        "kind": "valid" if verdict else "wrong" if verdict.wrong else "idle",
        "rule": verdict.rule,
        "reasons": list(verdict.reasons),
        "cells": [list(cell) for cell in verdict.cells],
        "rows": list(verdict.rows),
        "nearest": nearest,
    }


def _physical(mapping: Placement) -> dict[str, Any]:
    physical = mapping.physical()
    return {
        "name": mapping.name,
        "rule": mapping.rule,
        "expression": str(mapping),
        "outer": list(mapping.outer),
        "calls": f"{physical.calls:,}",
        "utilization": physical.utilization,
        "physical": str(physical),
    }
