"""Find an operator by a name, a layer, or math, with sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from amos.errors import OperatorError, UnknownNameError, quote
from amos.ir import Chain, Operator
from amos.ir.limits import dictionary
from amos.operators.registry import Builder, apply_dtype, builder, names
from amos.operators.tables import layer, layer_entry, layers

#: Separator of dtypes, not within the brackets of a range.
_COMMA = re.compile(r",(?![^\[]*\])")


def resolve(
    text: str,
    extents: Mapping[str, int] | None = None,
    dtype: str | tuple[str, ...] | None = None,
    dtypes: Mapping[str, str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
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
        dtypes: dtypes by tensor; they override ``dtype``.
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
        raise OperatorError(f"expected an operator's name or its math, got {quote(text)}")
    extents, shapes = dictionary(extents, "extents"), dictionary(shapes, "shapes")
    if isinstance(dtype, str) and len(parts := _COMMA.split(dtype)) > 1:
        dtype = tuple(kind.strip() for kind in parts)
    if ";" in text:
        return _chain(text, extents, dtype, dtypes, shapes)
    if "[" in text:
        if layout is not None:
            raise OperatorError(
                f"layout {layout!r} does not apply to math: the indices say how tensors lie"
            )
        return apply_dtype(Operator.parse(text, extents, dtypes, shapes=shapes), dtype)
    op = _find_named(text.strip(), extents, layout)
    if dtypes or shapes:
        own_shapes = {load.tensor.name: load.tensor.shape for load in op.operands}
        op = Operator.parse(str(op.compute), op.extents, dtypes, op.name, own_shapes | shapes)
    return apply_dtype(op, dtype)


def _chain(
    text: str,
    extents: Mapping[str, int],
    kind: str | tuple[str, ...] | None,
    dtypes: Mapping[str, str] | None,
    shapes: Mapping[str, Sequence[int]],
) -> Operator:
    """Parse a chain of statements, whose inputs have one dtype if one is given."""
    if isinstance(kind, tuple):
        raise OperatorError(f"dtypes of a chain: expected TENSOR=DTYPE or one for all, got {kind}")
    if kind is not None:
        plain = Chain.parse(text, extents, dtypes, shapes=shapes)
        dtypes = {tensor.name: kind for tensor in plain.inputs} | dict(dtypes or {})
    return Operator.parse(text, extents, dtypes, shapes=shapes)


def short_name(op: Operator) -> str:
    """Label an operator in a table: by its name in the library, or else its math.

    A layout or an extent that is not the library's own follows the name, then whether
    there are prologues, an epilogue, an output of its own, and more results.

    >>> short_name(resolve("resnet18:C5", dict(p=14), dtype="u8s8"))
    'resnet18:C5 p=14'
    >>> short_name(resolve("C[i,j] += A[i,k] * B[k,j]", dict(i=4, j=4, k=8)))
    'C[i, j] += A[i, k] * B[k, j] i=4 j=4 k=8'
    """
    text, usual = _library_text(op) or (str(op.compute), {})
    changed = [f"{it}={size}" for it, size in op.extents.items() if usual.get(it) != size]
    extras = dict(prologue=op.prologues, epilogue=op.epilogue, output=op.store, results=op.further)
    return " ".join([text, *changed, *(f"with {word}" for word, what in extras.items() if what)])


def _library_text(op: Operator) -> tuple[str, Mapping[str, int]] | None:
    """Name and layout under which the library has the math of an operator, and its extents."""
    if op.name not in (*names(), *layers()):
        return None
    for layout in (None, *_builder_of(op.name).layouts):
        usual = resolve(op.name, layout=layout)
        if str(usual.compute) == str(op.compute):
            return op.name if layout is None else f"{op.name} {layout}", usual.extents
    return None


def _builder_of(name: str) -> Builder:
    try:
        return builder(layer_entry(name).operator if name in layers() else name)
    except UnknownNameError:
        raise UnknownNameError("operator", name, (*names(), *layers())) from None


def _find_named(name: str, extents: Mapping[str, int], layout: str | None) -> Operator:
    parameters: dict[str, object] = dict(extents)
    build = _builder_of(name)
    if layout is not None:
        if "layout" not in build.defaults:
            raise OperatorError(f"operator {build.name!r} has no layout, but {layout!r} was given")
        parameters["layout"] = layout
    return layer(name, None, **parameters) if name in layers() else build(**parameters)


def read_pair(item: str, form: str) -> tuple[str, str]:
    """Split a text at its equals sign; an :class:`OperatorError` where a side is missing."""
    name, _, value = (side.strip() for side in item.partition("="))
    if not name or not value:
        raise OperatorError(f"{item!r} is not {form}")
    return name, value


def read_extents(items: Iterable[str]) -> dict[str, int]:
    """Read extents by iteration from texts such as ``k=64``, or several in one.

    >>> read_extents(["k=64", "c = 3, r=1"])
    {'k': 64, 'c': 3, 'r': 1}
    """
    single = (item.strip() for several in items for item in several.split(","))
    pairs = [(item, *read_pair(item, "NAME=SIZE")) for item in single]
    return {name: _size(value, item) for item, name, value in pairs}


def read_shapes(items: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Read shapes by tensor from texts such as ``image=1,56,56,64``."""
    pairs = [(item, *read_pair(item, "TENSOR=SIZES")) for item in items]
    return {name: tuple(_size(n, item) for n in value.split(",")) for item, name, value in pairs}


def _size(text: str, item: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OperatorError(f"{item!r}: {text.strip()!r} is not a whole number") from None
