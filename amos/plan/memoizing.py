"""Per-instance memoization."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def memoize(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Memoize a method in its object, by its arguments.

    Unlike :func:`functools.cache`, it keeps no object alive.
    """

    @wraps(method)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        owner, *arguments = args
        key = method.__name__, *arguments, *named.values()
        results = owner.__dict__.setdefault("_memoized", {})
        if key not in results:
            results[key] = method(*args, **named)
        result: _R = results[key]
        return result

    return call
