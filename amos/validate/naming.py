"""The short name of a matching, such as ``npq-k-crs``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["matching_name"]


def matching_name(groups: Iterable[Sequence[str]], order: Sequence[int], known: set[str]) -> str:
    """Groups in the intrinsic's order, and the order of the sources if it is another.

    Iterations are run together, or joined by dots where one has a longer name or
    the letters would read as another iteration. ``_`` is an empty group.

    Args:
        groups: software iterations of each intrinsic iteration.
        order: the order of the sources.
        known: names of all software iterations.

    >>> matching_name([("n", "p"), (), ("row",)], (1, 0), {"n", "p", "row"})
    'np-_-row~10'
    """

    def text(group: Sequence[str]) -> str:
        joined = "".join(group)
        if not group or (len(group) == 1 and joined != "_"):
            return joined or "_"
        if all(len(n) == 1 for n in group) and len(group) > 1 and joined not in known:
            return joined
        return ".".join(group) + ("." if len(group) == 1 else "")

    given = tuple(order) == tuple(range(len(order)))
    return "-".join(map(text, groups)) + ("" if given else "~" + "".join(map(str, order)))
