"""From the text of a prologue to its expression, and to the dimensions that index it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from amos.errors import OperatorError, quote
from amos.ir.affine import Affine
from amos.ir.epilogue import ACC
from amos.ir.expression_parser import ExpressionReader
from amos.ir.grammar import Reader
from amos.ir.nodes import Tensor
from amos.ir.prologue import Prologue


def parse_prologue(
    head: str,
    text: str,
    sources: Mapping[str, Tensor],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> Prologue:
    """Read a prologue of one of these sources.

    See :meth:`Operator.with_prologue <amos.ir.Operator.with_prologue>`.

    >>> print(parse_prologue("b", "relu(x[k,j]) * s[j]", {"b": Tensor("b", (8, 4))}, {}, {}))
    b[k, j] = relu(x[k, j]) * s[j]
    """
    name, dimensions = _read_head(head)
    if name not in sources:
        raise OperatorError(
            f"prologue of {name!r}: it is not a source; sources are {', '.join(sources)}"
        )
    source = sources[name]
    if dimensions is None:
        dimensions = _infer_dimensions(name, text, len(source.shape))
    if len(dimensions) != len(source.shape):
        raise OperatorError(
            f"prologue {head!r}: {len(dimensions)} dimensions are named, "
            f"{name!r} has {len(source.shape)}"
        )
    extents = dict(zip(dimensions, source.shape, strict=True))
    default_dtypes = {name: source.dtype} if source.dtype is not None else {}
    what = f"dimension of {name}"
    # Read so that the prologue can say why it has no accumulator.
    reader = ExpressionReader(text, extents, dtypes, shapes, what, default_dtypes, variables=(ACC,))
    expression, cast = reader.expression()
    reader.check_given("prologue")
    kind = source.dtype or cast or expression.kind({ACC: "float32"})
    if cast not in (None, kind):
        raise OperatorError(
            f"prologue of {name!r}: it gives {cast}, but the statement has it as {kind}"
        )
    return Prologue(expression=expression, tensor=name, dimensions=dimensions, dtype=kind)


def _read_head(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Read the source of a prologue, and the names of its dimensions if they are stated."""
    reader = Reader(text)
    token = reader.next
    if token.kind != "name":
        reader.fail("expected a source, such as 'image' or 'image[n,c,h,w]'")
    reader.take()
    if reader.next.kind == "end":
        return token.text, None
    names = _plain_names(reader.indices(token)) if reader.accept("[") else None
    if names is None or reader.next.kind != "end":
        reader.fail("expected a source with a name for each dimension, such as 'image[n,c,h,w]'")
    return token.text, names


def _plain_names(indices: Sequence[Affine]) -> tuple[str, ...] | None:
    """Return the names of indices if each is a single iteration of its own."""
    names = tuple(name for index in indices for name in index.names)
    is_plain = all(
        index == Affine(((name, 1),)) for index, name in zip(indices, names, strict=False)
    )
    return names if is_plain and len({*names}) == len(indices) == len(names) else None


def _infer_dimensions(name: str, text: str, rank: int) -> tuple[str, ...]:
    """Take the dimensions of a source from the first tensor of the same rank."""
    reader = Reader(text)
    for place, (token, following) in enumerate(pairwise(reader.tokens)):
        if token.kind != "name" or following.text != "[":
            continue
        reader.position = place + 2
        names = _plain_names(reader.indices(token))
        if names is not None and len(names) == rank:
            return names
    sample = ", ".join("nchwabde"[:rank])
    raise OperatorError(
        f"prologue of {name!r}: no tensor of {quote(text)} has {rank} plain names as indices, one "
        f"for each dimension of {name!r}; name these, as in '{name}[{sample}]'"
    )
