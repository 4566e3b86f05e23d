"""Integer formulas in descriptions: ``m*n*k == 4096``, ``lane // 4 + 8*(e // 2 % 2)``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amos.errors import IntrinsicError, quote
from amos.ir.limits import DEPTH, TEXT, depth_of, fits

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _parse(text: str) -> ast.expr:
    if not isinstance(text, str) or len(text) > TEXT:
        raise IntrinsicError(f"formula {quote(text)}: expected a text of at most {TEXT} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise IntrinsicError(f"formula {quote(text)}: not a formula ({error})") from None
    if depth_of(tree) > DEPTH:
        raise IntrinsicError(f"formula {quote(text)}: expected at most {DEPTH} levels")
    numbers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    if beyond := [n for n in numbers if isinstance(n, int) and not fits(n)]:
        raise IntrinsicError(f"formula {quote(text)}: {quote(beyond[0])} does not fit 64 bits")
    return tree


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Evaluate a formula: integers, ``+ - * // %`` and one comparison.

    Args:
        values: an integer or a NumPy array of integers for each name.

    Raises:
        IntrinsicError: the text is no such formula, or a name is unknown.

    >>> evaluate("m*n*k == 4096", dict(m=16, n=16, k=16))
    True
    """

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in values:
                raise IntrinsicError(
                    f"formula {quote(text)}: unknown name {quote(node.id)}; "
                    f"known are {', '.join(values)}"
                )
            return values[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        if (
            isinstance(node, ast.Compare)
            and len(node.ops) == 1
            and type(node.ops[0]) in _COMPARISONS
        ):
            return _COMPARISONS[type(node.ops[0])](value(node.left), value(node.comparators[0]))
        raise IntrinsicError(
            f"formula {quote(text)}: expected integers, names, + - * // % and one comparison"
        )

    try:
        with np.errstate(divide="raise"):
            return value(_parse(text))
    except (ZeroDivisionError, FloatingPointError):
        raise IntrinsicError(f"formula {quote(text)}: division by zero") from None


def to_c(text: str) -> str:
    """Translate a formula to C, for names that are not negative.

    >>> to_c("lane // 4 + 8*(e // 2 % 2)")
    'lane / 4 + 8 * (e / 2 % 2)'
    """
    return ast.unparse(_parse(text)).replace("//", "/")
