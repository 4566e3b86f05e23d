"""What a user writes beside an operator: ``k=64``, ``image=1,56,56,64``."""

from __future__ import annotations

from collections.abc import Iterable

from amos.errors import OperatorError

__all__ = ["read_extents", "read_pair", "read_shapes"]


def read_pair(item: str, form: str) -> tuple[str, str]:
    """Both sides of an equals sign.

    Raises:
        OperatorError: a side is missing.
    """
    name, _, value = (part.strip() for part in item.partition("="))
    if not name or not value:
        raise OperatorError(f"{item!r} is not {form}")
    return name, value


def read_extents(items: Iterable[str]) -> dict[str, int]:
    """Extent by iteration, from texts such as ``k=64``.

    Raises:
        OperatorError: a text is not of that form.

    >>> read_extents(["k=64", "c = 3"])
    {'k': 64, 'c': 3}
    """
    pairs = [(item, *read_pair(item, "NAME=SIZE")) for item in items]
    return {name: _whole(value, item) for item, name, value in pairs}


def read_shapes(items: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shape by tensor, from texts such as ``image=1,56,56,64``.

    Raises:
        OperatorError: a text is not of that form.
    """
    pairs = [(item, *read_pair(item, "TENSOR=SIZES")) for item in items]
    return {
        name: tuple(_whole(size, item) for size in value.split(",")) for item, name, value in pairs
    }


def _whole(text: str, item: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OperatorError(f"{item!r}: {text.strip()!r} is not a whole number") from None
