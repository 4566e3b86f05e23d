"""Random assignments by propagation: decide one variable after the other.

A value is taken only if the bounds of everything undecided still allow every
constraint. For capacities, which are monotone in every variable, there are no dead ends. Other
constraints may have some; then the sampler restarts a few times, and finally asks the solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from amos.schedule.csp import CSP, Decisions

#: Attempts at one assignment before the solver is asked.
RESTARTS = 8


def descend(csp: CSP, rng: np.random.Generator) -> dict[str, int] | None:
    """Draw a feasible assignment as positions; ``None`` after too many dead ends."""
    drawn = (decode(csp, {}, rng) for _ in range(RESTARTS))
    return next((each for each in drawn if each is not None), None)


def decode(
    csp: CSP,
    goals: Mapping[str, float],
    rng: np.random.Generator,
    order: Sequence[str] | None = None,
) -> dict[str, int] | None:
    """Find the assignment nearest to a wish: each variable in turn keeps what it can.

    Args:
        goals: position for each tunable, in its domain or not; others are drawn.
        order: every tunable, the one that is decided first before the others.
    """
    allowed, coupled = csp.allowed, csp.coupled
    if not all(allowed.values()):
        return None
    decisions = Decisions(csp)
    names = [name for name, positions in allowed.items() if len(positions) > 1]
    turns = (
        [n for n in order if n in names]
        if order
        else [names[n] for n in rng.permutation(len(names))]
    )
    for name in turns:
        options = list(allowed[name])
        if name in goals:
            goal = goals[name]
            options.sort(key=lambda position: abs(position - goal))
        else:
            rng.shuffle(options)
        if name not in coupled:
            decisions.remaining[name] = (options[0],)
        elif not (decisions.possible and any(decisions.decide(name, p) for p in options)):
            return None
    return {n: p[0] for n, p in decisions.remaining.items()} if decisions.possible else None


def enumerate_assignments(csp: CSP, most: int) -> list[dict[str, int]] | None:
    """List all feasible assignments in order.

    ``None`` where more than ``most`` prefixes, or a thousand times as many assignments, would
    have to be tried. Infeasible prefixes are dropped early, so that far fewer are tried.
    """
    allowed = csp.allowed
    if not all(allowed.values()):
        return []
    assignments: list[dict[str, int]] = []
    names = list(allowed)
    looked = 0

    def walk(depth: int, allowed_now: dict[str, tuple[int, ...]]) -> bool:
        nonlocal looked
        if depth == len(names):
            assignments.append({n: p[0] for n, p in allowed_now.items()})
            return True
        for position in allowed[names[depth]]:
            looked += 1
            if looked > most:
                return False
            allowed_now[names[depth]] = (position,)
            if csp.is_possible(allowed_now) and not walk(depth + 1, allowed_now):
                return False
        allowed_now[names[depth]] = allowed[names[depth]]
        return True

    if not names:
        return [{}] if csp.is_possible(allowed) else []
    if prod(map(len, allowed.values())) > 1000 * most:
        return None
    return assignments if walk(0, dict(allowed)) else None
