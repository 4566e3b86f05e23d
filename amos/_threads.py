"""Work on threads of Python, where NumPy and compilers leave the interpreter free."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


def map_in_threads(function: Callable[..., _T], *arguments: Iterable[Any]) -> Iterator[_T]:
    """Call a function on each of its arguments, as ``map`` does, on as many threads as cores.

    An error, or an interrupt, ends it without the calls that have not begun.

    Yields:
        the results in order.
    """
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        yield from pool.map(function, *arguments)
    finally:
        pool.shutdown(cancel_futures=True)
