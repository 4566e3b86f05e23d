"""The Python that reproduces what the explorer shows."""

from __future__ import annotations

import re

from amos.explorer.state import State
from amos.explorer.subject import Offer, Subject
from amos.mapping import Mapping

__all__ = ["SAMPLES", "script"]

#: Schedules that are drawn for a prediction.
SAMPLES = 32


def script(state: State, subject: Subject, offer: Offer, found: Mapping | None) -> str:
    """A program that judges the matching and, if some rule makes a mapping of it, predicts it.

    Args:
        state: what the page is set to; every text goes in as a literal.
        subject: what it stands for.
        offer: files that intrinsics come from.
        found: the mapping, by the rule of the page or a wider one, or ``None``.
    """
    unit = subject.intrinsic
    lines = ["import amos", ""]
    if found is not None and subject.machine is not None:
        lines = [
            "import numpy as np",
            "",
            *lines[:1],
            "from amos.explore.sampled import best_sampled",
            "",
        ]
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
    fed = "" if subject.as_given else f", order={subject.order}"
    rule = f"rule={subject.rule!r}"
    lines.append(f"print(amos.check_matching(op, intrinsic, matching, {rule}{fed}))")
    if found is not None:
        lines += _mapping(subject, found)
    return "\n".join(lines) + "\n"


def _mapping(subject: Subject, found: Mapping) -> list[str]:
    lines = [""]
    if found.rule != subject.rule:
        lines.append(f"# Refused under rule {subject.rule!r}; {found.rule!r} makes this of it.")
    commute = "" if subject.as_given else ", commute=True"
    lines += [
        f"space = amos.enumerate_mappings(op, intrinsic, rule={found.rule!r}{commute})",
        f"mapping = space.find({found.name!r})",
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
