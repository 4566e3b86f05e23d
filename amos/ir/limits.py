"""Limits on texts, numbers and sizes, checked where they enter.

Beyond them an answer would take too long, or 64-bit arithmetic would overflow further inside,
where no message could name the input at fault.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import TypeVar

from amos.errors import OperatorError, quote

#: Characters of one line of math, an epilogue, or a formula of a description.
TEXT = 10_000
#: Levels of an expression; deeper ones could exhaust Python's stack.
DEPTH = 64
#: Bound of numbers and of products of extents.
WORD = 2**63
#: Elements of a tensor, so that its bits can be counted in a word.
TENSOR = 2**56
_Value = TypeVar("_Value")
#: Iterations of a statement (NumPy's arrays have no more axes), and sources of an
#: intrinsic (all their orders may be tried).
LOOPS, SOURCES = 32, 6


def fits(number: int) -> bool:
    """Return whether a number and its negative fit a word of 64 bits."""
    return -WORD < number < WORD


def whole_number(value: object, what: str, least: int = 1) -> int:
    """Convert a value to an integer of 64 bits from ``least`` on; refuse booleans.

    Raises:
        OperatorError: it is something else; the message names it as ``what``.
    """
    expected = "a positive integer" if least else "an integer that is not negative"
    try:
        number = operator.index(value) if not isinstance(value, bool) else -1  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number >= WORD:
        expected = "an integer below 2**63"
    if not least <= number < WORD:
        raise OperatorError(f"{what}: expected {expected}, got {quote(value)}")
    return number


def dictionary(value: Mapping[str, _Value] | None, what: str) -> dict[str, _Value]:
    """Convert a caller's mapping to a dictionary, or raise OperatorError; empty for ``None``."""
    if value is not None and not isinstance(value, Mapping):
        raise OperatorError(f"{what}: expected a dictionary, got {quote(value)}")
    return dict(value or {})


def depth_of(tree: ast.AST) -> int:
    """Count the levels of a syntax tree without recursion."""
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth
