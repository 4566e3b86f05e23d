"""Reasons against a matching, in the user's own names (section 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amos.validate.pairing import Pairing

#: An intrinsic and a software iteration: a one of the matching matrix.
Cell = tuple[int, int]

#: The software iterations of each intrinsic iteration.
Groups = Sequence[Sequence[int]]


def wrong_reasons(pairing: Pairing, groups: Groups, rule: str) -> dict[str, list[Cell]]:
    """Return the reasons why a matching is wrong, with the cells at fault."""
    reasons: dict[str, list[Cell]] = {}
    for t, group in enumerate(groups):
        reasons |= _find_misplaced(pairing, t, group, exact=rule != "gather")
    if rule != "paper" or reasons:
        return reasons
    at = {s: t for t, group in enumerate(groups) for s in group}
    for cause, members in find_outside_base_matches(pairing, groups).items():
        names = " or ".join(f"`{pairing.operator.iterations[s].name}`" for s in members)
        reasons[f"no base match contains {names}: {cause}"] = [(at[s], s) for s in members]
    return reasons


def _find_misplaced(
    pairing: Pairing, t: int, group: Sequence[int], *, exact: bool
) -> dict[str, list[Cell]]:
    """Find the members of a group whose column of X does not fit the column of Z."""
    iterations, step = pairing.operator.iterations, pairing.intrinsic.iterations[t]
    slot = pairing.slots[t]
    dst = 1 << len(pairing.order)

    def find_misfit(s: int) -> int:
        column = pairing.columns[s]
        return column ^ slot if exact else column & ~slot | (column ^ slot) & dst

    reasons = {}
    for s in group:
        bits, column, name = find_misfit(s), pairing.columns[s], iterations[s].name
        members = [iterations[o].name for o in group if o == s or not find_misfit(o)]
        all_of_them = f" {'both' if len(members) == 2 else 'all'} go" if members[1:] else " goes"
        start = f"{quote_names(members)}{all_of_them} to `{step.name}`, but `{name}`"
        if bits & dst:
            # The destination's entry is the kind, which is clearer to the reader.
            kind = iterations[s].kind
            reasons[f"{start} is {kind} and `{step.name}` is {step.kind}"] = [(t, s)]
        # Sources that the intrinsic cannot address come first: they are wrong by every rule.
        for m in sorted(range(len(pairing.order)), key=lambda m: not column >> m & 1):
            if bits >> m & 1:
                does, lacks = ("indexes", "does not index")[:: 1 if column >> m & 1 else -1]
                operand = pairing.intrinsic.operands[m].tensor.name
                text = f"{start} {does} `{pairing.labels[m]}` and `{step.name}` {lacks} `{operand}`"
                reasons[text] = [(t, s)]
    return reasons


def find_outside_base_matches(pairing: Pairing, groups: Groups) -> dict[str, list[int]]:
    """Find software iterations that no base match inside a matching contains, by cause."""
    filled = [t for t, group in enumerate(groups) if group]
    obstacles = {
        s: text for t in filled for s in groups[t] if (text := pairing.obstacle(s, t)) is not None
    }
    usable = [[s for s in groups[t] if s not in obstacles] for t in filled]
    # Text of the cause → iterations: a pair that excludes each other is reported once.
    causes: dict[str, list[int]] = {}
    indirect: list[int] = []
    for at, t in enumerate(filled):
        for s in groups[t]:
            if s in obstacles:
                causes.setdefault(obstacles[s], []).append(s)
                continue
            options = [[s] if i == at else usable[i] for i in range(len(filled))]
            if next(_choose(options, pairing.conflicts), None) is None:
                why = _explain_exclusion(pairing, s, options)
                (indirect if why is None else causes.setdefault(why, [])).append(s)
    if indirect and not causes:
        causes["their possible partners share dimensions with one another"] = indirect
    return causes


def _choose(
    options: Sequence[Sequence[int]], conflicts: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Yield every choice of one software iteration per entry without conflicts."""

    def extend(at: int, barred: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if at == len(options):
            yield chosen
            return
        for s in options[at]:
            if not barred >> s & 1:
                yield from extend(at + 1, barred | conflicts[s], (*chosen, s))

    return extend(0, 0, ())


def _explain_exclusion(pairing: Pairing, s: int, options: Sequence[Sequence[int]]) -> str | None:
    """Explain which group shares a dimension with ``s`` in every member; None if none does."""
    for group in options:
        if group and list(group) != [s] and all(pairing.conflicts[s] >> o & 1 for o in group):
            return ", ".join(_explain_conflict(pairing, *sorted((s, member))) for member in group)
    return None


def _explain_conflict(pairing: Pairing, first: int, second: int) -> str:
    a, b = (pairing.operator.iterations[i].name for i in (first, second))
    return next(
        f"`{a}` and `{b}` share dimension {d} of `{label}`"
        for load, label in zip(pairing.loads, pairing.labels, strict=True)
        for d, index in enumerate(load.indices)
        if a in index.names and b in index.names
    )


def idle_reasons(pairing: Pairing, groups: Groups) -> dict[str, str]:
    """Explain which intrinsic iterations are empty without need; an empty name means all."""
    filled = sum(map(bool, groups))
    if not pairing.rank and not filled:
        return {"": "nothing is matched: no iteration of the operator could go anywhere"}
    if filled >= pairing.rank:
        return {}
    names = [it.name for it in pairing.operator.iterations]
    options = pairing.candidates("gather")
    reasons = {}
    for t, it in enumerate(pairing.intrinsic.iterations):
        could = [names[s] for s, targets in enumerate(options) if t in targets]
        if could and not groups[t]:
            shown = ", ".join(f"`{name}`" for name in could)
            reasons[it.name] = f"`{it.name}` stays empty though {shown} could go there"
    return reasons


def quote_names(names: Sequence[str]) -> str:
    """Quote names in a sentence: `a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
