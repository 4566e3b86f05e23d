"""One message in, one answer out: what both front ends of the explorer are.

The engine keeps nothing between messages but caches: a message holds the whole state,
so that any number of pages can ask, and one that asks nonsense keeps what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from amos import intrinsics, operators
from amos.errors import AmosError
from amos.explore.sampled import best_sampled
from amos.explorer.listing import RANKED, Listing
from amos.explorer.script import SAMPLES, script
from amos.explorer.state import FieldError, State
from amos.explorer.subject import Offer, Subject
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping import Mapping as Placement
from amos.operators.tables import layers
from amos.perfmodel import Prediction
from amos.plan import Candidate
from amos.validate import RULES, Pairing, Verdict
from amos.validate.naming import read_name

__all__ = ["Engine"]

_OTHERS = (
    ("staging", "staging"),
    ("parallel regions", "launch"),
)


class Engine:
    """Answers messages of an explorer's page.

    Args:
        files: descriptions of further intrinsics, already loaded, by name.
        machines: machines besides the described ones.
        initial: what the page begins with.
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
            message: decoded JSON with a ``kind``: ``choices``, ``judge`` with a
                ``state``, or ``rows`` with a ``state`` and what to list.

        Returns:
            Plain values. ``ok`` is false if the message cannot be used, and then
            ``errors`` says by field what is wrong, as the command line would.
        """
        try:
            if not isinstance(message, Mapping):
                raise FieldError("", f"expected an object, got {type(message).__name__}")
            match message.get("kind"):
                case "choices":
                    return {"ok": True, **self._choices()}
                case "judge":
                    return {"ok": True, **self._judge(State.read(message.get("state")))}
                case "rows":
                    return {"ok": True, **self._rows(message)}
                case other:
                    raise FieldError("", f"unknown message {str(other)[:40]!r}")
        except FieldError as error:
            return {"ok": False, "errors": {error.field: str(error)}}
        except AmosError as error:
            return {"ok": False, "errors": {"": str(error)}}

    def check(self) -> None:
        """Answer for what the page begins with, so that the first click waits for nothing.

        Raises:
            FieldError: it cannot be used.
        """
        self._judge(self.initial)

    def judged(self, state: Mapping[str, Any]) -> tuple[Verdict, Placement | None]:
        """The verdict on a state, and its mapping if the rule accepts it.

        Raises:
            FieldError: the state cannot be used.
        """
        subject = Subject.of(State.read(dict(state)), self.offer)
        verdict = subject.judged(subject.rule)
        return verdict, subject.placed(subject.rule) if verdict else None

    def _choices(self) -> dict[str, Any]:
        return {
            "operators": [*operators.names(), *layers()],
            "intrinsics": list(intrinsics.names()),
            "machines": self.offer.machine_names(),
            "rules": list(RULES),
            "state": self.initial.as_dict(),
        }

    def _rows(self, message: Mapping[str, Any]) -> dict[str, Any]:
        subject = Subject.of(State.read(message.get("state")), self.offer)
        numbers = {}
        for name, most in (("first", 2**53), ("count", 400)):
            value = message.get(name, 0)
            if type(value) is not int or not 0 <= value <= most:
                raise FieldError("filter", f"{name}: expected a whole number up to {most}")
            numbers[name] = value
        words, order = message.get("words", ""), message.get("order", "")
        least = message.get("least", 0)
        if not isinstance(words, str) or not isinstance(order, str) or len(words) > 200:
            raise FieldError("filter", "expected a text of at most 200 characters")
        if type(least) not in (int, float) or not 0 <= least <= 1:
            raise FieldError("least", f"expected a share from 0 to 1, got {str(least)[:40]}")
        down = message.get("down") is True
        known = subject.machine is not None and subject.space.count <= RANKED
        return self._listing(subject.space).rows(
            **numbers, words=words, least=least, order=order, down=down,
            predict=partial(self._seconds, subject) if known else None,
        )  # fmt: skip

    def _seconds(self, subject: Subject, found: Placement) -> float | None:
        """What the model says of a mapping; nothing where it cannot say anything."""
        assert subject.machine is not None
        try:
            best = self._predicted(found, subject.machine.name)
        except AmosError:
            return None
        return None if best is None else best[0].seconds

    def _judge(self, state: State) -> dict[str, Any]:
        subject = Subject.of(state, self.offer)
        op, unit = subject.operator, subject.intrinsic
        verdict = subject.judged(subject.rule)
        pairing = Pairing.of(op, unit, subject.order)
        # What one rule accepts, all wider ones do: the narrowest is the one to look at.
        accepted = [rule for rule in RULES if subject.judged(rule)]
        by = subject.rule if verdict else next(iter(accepted), "")
        others = [] if verdict else subject.accepting()
        found = subject.placed(by) if by else None
        shown = replace(state, assignment=subject.assignment, order=subject.order)
        return {
            "state": shown.as_dict(),
            "operator": {"name": op.name, "text": str(op), "loops": _iterations(op)},
            "intrinsic": {"name": unit.name, "text": str(unit), "steps": _iterations(unit)},
            "orders": [[list(one), subject.sources(one)] for one in subject.space.orders],
            "x": _accesses(pairing),
            "z": _fragments(pairing),
            "verdict": _verdict(verdict) | {"accepted_by": accepted, "accepted_in": others},
            "count": f"{subject.space.count:,}",
            "mapping": None if found is None else _physical(found) | {"refused": not verdict},
            "prediction": self._prediction(subject, found),
            "code": script(state, subject, self.offer, found),
        }

    def _prediction(self, subject: Subject, found: Placement | None) -> dict[str, Any] | None:
        if found is None or subject.machine is None:
            return None
        try:
            best = self._predicted(found, subject.machine.name)
        except AmosError as error:
            return {"error": str(error)}
        if best is None:
            return {"error": f"no schedule that was drawn fits {subject.machine.name}"}
        prediction, candidate = best
        bars = [{"name": "compute", "seconds": prediction.rows[0].compute, "kind": "compute"}]
        for row in prediction.rows[1:]:
            bars.append({"name": f"{row.level} read", "seconds": row.read, "kind": "read"})
            bars.append({"name": f"{row.level} write", "seconds": row.write, "kind": "write"})
        for name, key in _OTHERS:
            bars.append({"name": name, "seconds": getattr(prediction, key), "kind": "other"})
        return {
            "seconds": prediction.seconds,
            "bound": "; ".join(filter(None, (prediction.bound, prediction.note))),
            "bars": bars,
            "schedule": str(candidate.schedule),
            "machine": subject.machine.name,
        }

    def _predict(self, found: Placement, machine: str) -> tuple[Prediction, Candidate] | None:
        target = self.offer.machine(machine, found.intrinsic)
        return best_sampled(found, target, SAMPLES, np.random.default_rng(0))


def _verdict(verdict: Verdict) -> dict[str, Any]:
    kind = "valid" if verdict else "wrong" if verdict.wrong else "idle"
    return {
        "kind": kind,
        "rule": verdict.rule,
        "reasons": list(verdict.reasons),
        "cells": [list(cell) for cell in verdict.cells],
        "rows": list(verdict.rows),
        "nearest": [_near(verdict, name) for name in verdict.nearest],
    }


def _near(verdict: Verdict, name: str) -> dict[str, Any]:
    """One of the nearest right matchings, as the page asks for it."""
    assert verdict.pairing is not None
    assignment, _ = read_name(name, verdict.pairing.operator, verdict.pairing.intrinsic)
    return {"name": name, "assignment": list(assignment)}


def _physical(found: Placement) -> dict[str, Any]:
    physical = found.physical()
    return {
        "name": found.name,
        "rule": found.rule,
        "expression": str(found),
        "groups": {step: list(group) for step, group in found.groups.items()},
        "outer": list(found.outer),
        "tiles": {step: f"{count:,}" for step, count in physical.tiles.items()},
        "calls": f"{physical.calls:,}",
        "utilization": physical.utilization,
        "physical": str(physical),
    }


def _iterations(thing: Operator | Intrinsic) -> list[dict[str, Any]]:
    return [{"name": it.name, "kind": it.kind, "extent": it.extent} for it in thing.iterations]


def _accesses(pairing: Pairing) -> dict[str, Any]:
    """X, its rows in the order in which the intrinsic's operands are fed."""
    names = [it.name for it in pairing.operator.iterations]
    values = [[int(name in load.names) for name in names] for load in pairing.loads]
    return {"rows": list(pairing.labels), "values": values}


def _fragments(pairing: Pairing) -> dict[str, Any]:
    """Z, and which tensor feeds each operand."""
    unit = pairing.intrinsic
    rows = [
        f"{operand.tensor.name} = {load.tensor.name}"
        for operand, load in zip(unit.operands, pairing.loads, strict=True)
    ]
    return {"rows": rows, "values": unit.access_matrix.astype(int).tolist()}
