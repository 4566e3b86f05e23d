"""One way from what a user writes to an operator: a name, a layer, or math."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.errors import OperatorError, UnknownNameError, shown
from amos.ir import Operator
from amos.operators.registry import Builder, apply_dtype, builder, names
from amos.operators.tables import layer_entry, layers

__all__ = ["resolve", "short_name"]

_LAYOUTS = ("NCHW", "NHWC", "NCH", "NHC", "NCDHW", "NDHWC")
_NO_INTEGERS: Mapping[str, int] = {}
_NO_DTYPES: Mapping[str, str] = {}
_NO_SHAPES: Mapping[str, Sequence[int]] = {}


def resolve(
    text: str,
    extents: Mapping[str, int] = _NO_INTEGERS,
    dtype: str | tuple[str, ...] | None = None,
    dtypes: Mapping[str, str] = _NO_DTYPES,
    shapes: Mapping[str, Sequence[int]] = _NO_SHAPES,
    layout: str | None = None,
) -> Operator:
    """Find or parse an operator, for the command line.

    Args:
        text: a name of the library (``"conv2d"``) or its code (``"C2D"``), a
            layer (``"resnet18:C5"``), or math, recognised by its bracket.
        extents: extents of the math, or parameters of the operator or layer
            that differ from its defaults (``n``, ``stride``, …).
        dtype: one request for all tensors (``"f16"``, ``"u8s8"``), or one name
            for each source and the output, in a tuple or separated by commas.
        dtypes: dtypes by tensor; they win over ``dtype``.
        shapes: shapes by tensor.
        layout: layout of a convolution of the library.

    Raises:
        ParseError: the math cannot be read.
        OperatorError: extents, dtypes or shapes do not fit.
        UnknownNameError: the name is none of the library's or the tables'.

    >>> print(resolve("C[i,j] += A[i,k] * B[k,j]", dict(i=4, j=4, k=8), dtype="f16"))
    C[i, j] += A[i, k] * B[k, j]  with i=4, j=4, k=8  (A: f16, B: f16, C: f32)
    """
    if not isinstance(text, str):
        raise OperatorError(f"expected an operator's name or its math, got {shown(text)}")
    if isinstance(dtype, str) and "," in dtype:
        dtype = tuple(part.strip() for part in dtype.split(","))
    if "[" in text:
        if layout is not None:
            raise OperatorError(
                f"layout {layout!r} does not apply to math: the indices say how tensors lie"
            )
        op = Operator.parse(text, extents, dtypes, shapes=shapes)
        return apply_dtype(op, dtype)
    op = _named(text.strip(), extents, layout)
    return apply_dtype(_with(op, dtypes, shapes), dtype)


def short_name(op: Operator) -> str:
    """What to call an operator in a table: its name in the library, or else its math.

    A layout or an extent that is not the library's own follows the name, then whether
    there is an epilogue.

    >>> short_name(resolve("resnet18:C5", dict(p=14), dtype="u8s8"))
    'resnet18:C5 p=14'
    >>> short_name(resolve("C[i,j] += A[i,k] * B[k,j]", dict(i=4, j=4, k=8)))
    'C[i, j] += A[i, k] * B[k, j] i=4 j=4 k=8'
    """
    text, usual = _library_text(op) or (str(op.compute), {})
    changed = [f"{it}={size}" for it, size in op.extents.items() if usual.get(it) != size]
    return " ".join([text, *changed]) + (" with epilogue" if op.epilogue is not None else "")


def _library_text(op: Operator) -> tuple[str, Mapping[str, int]] | None:
    """Name and layout under which the library has the math of an operator, and its extents."""
    if op.name not in (*names(), *layers()):
        return None
    for layout in (None, *_LAYOUTS):
        try:
            usual = resolve(op.name, layout=layout)
        except OperatorError:
            continue
        if str(usual.compute) == str(op.compute):
            return op.name if layout is None else f"{op.name} {layout}", usual.extents
    return None


def _named(name: str, extents: Mapping[str, int], layout: str | None) -> Operator:
    parameters: dict[str, object] = dict(extents)
    known = (*names(), *layers())
    if name in layers():
        entry = layer_entry(name)
        made: Builder = builder(entry.operator)
    else:
        try:
            made, entry = builder(name), None
        except UnknownNameError:
            raise UnknownNameError("operator", name, known) from None
    if layout is not None:
        if "layout" not in made.defaults:
            raise OperatorError(f"operator {made.name!r} has no layout, but {layout!r} was given")
        parameters["layout"] = layout
    return made(**parameters) if entry is None else entry.build(**parameters)  # type: ignore[arg-type]


def _with(op: Operator, dtypes: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> Operator:
    """The operator with dtypes and shapes of some tensors replaced."""
    if not dtypes and not shapes:
        return op
    own: dict[str, Sequence[int]] = {load.tensor.name: load.tensor.shape for load in op.operands}
    return Operator.parse(str(op.compute), op.extents, dtypes, op.name, own | dict(shapes))
