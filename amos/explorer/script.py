"""The Python that reproduces what the explorer shows."""

from __future__ import annotations

import re

from amos.explorer.state import State
from amos.explorer.subject import Offer, Subject

__all__ = ["SAMPLES", "script"]

#: Schedules that are drawn for a prediction.
SAMPLES = 32


def script(state: State, subject: Subject, offer: Offer, name: str | None) -> str:
    """A program that judges the matching and, if it is a mapping, predicts it.

    Args:
        state: what the page is set to; every text goes in as a literal.
        subject: what it stands for.
        offer: files that intrinsics come from.
        name: the mapping's name, or ``None`` if the matching is none.
    """
    unit = subject.intrinsic
    lines = ["import amos", ""]
    if name is not None and subject.machine is not None:
        lines = ["import numpy as np", "", *lines[:1], "from amos.schedule import best_sampled", ""]
    arguments = [repr(state.operator)]
    if subject.extents:
        arguments.append(f"extents={dict(subject.extents)!r}")
    arguments += [f"{k}={v!r}" for k in ("dtype", "layout") if (v := getattr(state, k))]
    lines.append(f"op = amos.operators.resolve({', '.join(arguments)})")
    if unit.name in offer.files:
        lines.append(f"intrinsic = amos.intrinsics.load({offer.files[unit.name]!r})")
    else:
        lines.append(f"intrinsic = amos.intrinsics.get({unit.name!r})")
    loops = [it.name for it in subject.operator.iterations]
    lines.append(f"matching = [  # {', '.join(loops)}")
    for t, step in enumerate(unit.iterations):
        row = [int(a == t) for a in subject.assignment]
        lines.append(f"    {row},  # {step.name}")
    lines += ["]", ""]
    lines.append(f"print(amos.check_matching(op, intrinsic, matching, rule={subject.rule!r}))")
    if name is not None:
        lines += _mapping(subject, name)
    return "\n".join(lines) + "\n"


def _mapping(subject: Subject, name: str) -> list[str]:
    lines = [
        "",
        f"mapping = amos.enumerate_mappings(op, intrinsic, rule={subject.rule!r}).find({name!r})",
        "physical = mapping.physical()",
        "print(mapping)",
        "print(physical)",
        'print(f"{physical.calls} calls, utilization {physical.utilization:.1%}")',
    ]
    machine = subject.machine
    if machine is None:
        return lines
    if not re.fullmatch(r"\w+", machine.name) or subject.intrinsic.name not in machine.peaks:
        return lines
    return [
        *lines,
        "",
        f"machine = amos.machines.get({machine.name!r}, [intrinsic])",
        f"best = best_sampled(mapping, machine, {SAMPLES}, np.random.default_rng(0))",
        "if best is not None:",
        "    prediction, candidate = best",
        '    print(f"{prediction.seconds * 1e6:.4g} us: {prediction.bound}")',
        "    print(candidate.schedule)",
    ]
