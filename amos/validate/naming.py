"""The short name of a matching, such as ``npq-k-crs``: written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.ir import Operator


def matching_name(
    groups: Iterable[Sequence[str]], order: Sequence[int], iterations: set[str]
) -> str:
    """Name a matching by its groups, and by the order of its sources if they are reordered.

    Iterations are run together, or joined by dots where one has a longer name or
    the letters would read as another of the ``iterations`` iterations. ``_`` is an empty group.

    >>> matching_name([("n", "p"), (), ("row",)], (1, 0), {"n", "p", "row"})
    'np-_-row~10'
    """

    def text(group: Sequence[str]) -> str:
        joined = "".join(group)
        if not group or (len(group) == 1 and joined != "_"):
            return joined or "_"
        if all(len(n) == 1 for n in group) and len(group) > 1 and joined not in iterations:
            return joined
        return ".".join(group) + ("." if len(group) == 1 else "")

    in_order = tuple(order) == tuple(range(len(order)))
    return "-".join(map(text, groups)) + ("" if in_order else "~" + "".join(map(str, order)))


def read_name(
    name: str, op: Operator, intrinsic: Intrinsic
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read the assignment and the order of the sources from a matching's name.

    Raises:
        MappingError: the name has another number of groups, or mentions an
            iteration that the operator lacks, or one of them twice.
    """
    where = f"{name!r} is no mapping of {op.name} on {intrinsic.name}"
    body, _, suffix = name.partition("~")
    steps = [it.name for it in intrinsic.iterations]
    names = [it.name for it in op.iterations]
    parts = body.split("-")
    if len(parts) != len(steps):
        raise MappingError(
            f"{where}: expected {len(steps)} groups joined by '-', for {', '.join(steps)}; "
            f"got {len(parts)}"
        )
    if "" in parts:
        raise MappingError(f"{where}: write '_' for a group that is empty")
    groups = [_read_group(text, names) for text in parts]
    members = [n for group in groups for n in group]
    if strange := [n for n in members if n not in names]:
        raise MappingError(
            f"{where}: {op.name} has no iteration {', '.join(map(repr, dict.fromkeys(strange)))}; "
            f"it has {', '.join(names)}"
        )
    if twice := [n for n in dict.fromkeys(members) if members.count(n) > 1]:
        raise MappingError(f"{where}: `{twice[0]}` occurs twice")
    place = {n: t for t, group in enumerate(groups) for n in group}
    order = tuple(map(int, suffix)) if suffix.isdecimal() else tuple(range(len(op.sources)))
    if (suffix and not suffix.isdecimal()) or sorted(order) != list(range(len(op.sources))):
        raise MappingError(
            f"{where}: after '~' it gives the order of the {len(op.sources)} sources, "
            f"each once; got {suffix!r}"
        )
    return tuple(place.get(n, -1) for n in names), order


def _read_group(text: str, names: Collection[str]) -> tuple[str, ...]:
    if text == "_":
        return ()
    if "." in text:
        return tuple(text.rstrip(".").split("."))
    return (text,) if text in names or not text else tuple(text)
