"""From the text of an epilogue to its expression; see :mod:`amos.ir.expression_parser`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.ir.epilogue import ACC, Epilogue
from amos.ir.expression_parser import ExpressionReader


def parse_epilogue(
    text: str,
    extents: Mapping[str, int],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> Epilogue:
    """Read an epilogue whose tensors iterations with these extents may index.

    See :meth:`Operator.with_epilogue <amos.ir.Operator.with_epilogue>`.

    >>> print(parse_epilogue("s8(acc*scale[k] + 3)", {"k": 4}, {}, {}))
    s8(acc * scale[k] + 3)
    """
    what = "iteration of the output"
    reader = ExpressionReader(text, extents, dtypes, shapes, what, variables=(ACC,))
    expression, cast = reader.expression()
    reader.check_given("epilogue")
    return Epilogue(expression, cast)
