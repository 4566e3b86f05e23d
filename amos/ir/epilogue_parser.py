"""From the text of an epilogue to its expression.

The text is an expression of Python's own grammar, read by Python's parser and
never evaluated: names, numbers, ``+``, ``-``, ``*``, calls and subscripts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from amos.errors import OperatorError, ParseError, shown
from amos.ir.affine import Affine
from amos.ir.dtypes import dtype
from amos.ir.epilogue import CASTS, FUNCTIONS, Epilogue, Node
from amos.ir.limits import DEPTH
from amos.ir.nodes import BufferLoad, Tensor
from amos.ir.tokens import one_line

__all__ = ["epilogue_tensors", "parse_epilogue"]

_SIGNS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply"}
#: Numbers from here on would be rounded to an infinity.
_ENDS_OF_FLOAT32 = 2.0**128 - 2.0**103
_EMPTY = re.compile(r"\[\s*\]")
_EXAMPLE = "u8(relu((acc + bias[k]) * scale[k]))"


def epilogue_tensors(text: str) -> tuple[str, ...]:
    """Names of the tensors that an epilogue reads.

    Raises:
        ParseError: the text is no epilogue.
    """
    _, tree = _tree(text)
    found = [
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    ]
    return tuple(dict.fromkeys(found))


def parse_epilogue(
    text: str,
    extents: Mapping[str, int],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> Epilogue:
    """Read an epilogue.

    Args:
        text: for example ``"u8(relu((acc + bias[k]) * scale[k]))"``.
        extents: extents of the spatial iterations, which may index tensors.
        dtypes: dtype of each tensor by name; one left out is ``float32``.
        shapes: shape of each tensor that is larger than what is read.

    Raises:
        ParseError: the text is no epilogue; a caret marks the column.
        OperatorError: dtypes and shapes do not fit the tensors.

    >>> print(parse_epilogue("s8(acc*scale[k] + 3)", {"k": 4}, {}, {}))
    s8(acc * scale[k] + 3)
    """
    line, tree = _tree(text)
    reader = _Reader(line, extents, dtypes, shapes)
    body, kind = tree, None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in CASTS:
        reader.count(tree, tree.func.id, 1)
        body, kind = tree.args[0], CASTS[tree.func.id]
    epilogue = Epilogue(reader.node(body, 0), kind)
    known = {load.tensor.name for load in epilogue.loads}
    for what, given in (("dtype", dtypes), ("shape", shapes)):
        if unknown := [name for name in given if name not in known]:
            raise OperatorError(
                f"{what} given for {unknown[0]!r}, which the epilogue does not read; "
                f"it reads {', '.join(sorted(known)) or 'no tensor'}"
            )
    return epilogue


def _tree(text: str) -> tuple[str, ast.expr]:
    """The text on one line, and Python's syntax tree of it."""
    line = one_line(text)
    try:
        return line, ast.parse(_spelled(line), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = max(0, (getattr(error, "offset", None) or 1) - 1)
        raise ParseError(
            f"expected an expression such as {_EXAMPLE!r}", line, min(_column(line, at), len(line))
        ) from None


def _spelled(line: str) -> str:
    """The line as Python reads it: ``scale[]``, a scalar, is ``scale[()]`` there."""
    return _EMPTY.sub("[()]", line.strip())


def _column(line: str, at: int) -> int:
    """Column of the line for one of the text that Python reads."""
    start = len(line) - len(line.lstrip())
    for found in _EMPTY.finditer(line.strip()):
        added = len("[()]") - len(found.group())
        if found.start() + len("[()]") <= at:
            at -= added
    return start + at


class _Reader:
    """Turns Python's syntax tree into ours; whatever else it holds is refused by name."""

    def __init__(
        self,
        line: str,
        extents: Mapping[str, int],
        dtypes: Mapping[str, str],
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        self.line, self.extents, self.dtypes, self.shapes = line, extents, dtypes, shapes
        self.tensors: dict[str, Tensor] = {}

    def fail(self, message: str, at: ast.expr) -> NoReturn:
        raise ParseError(message, self.line, _column(self.line, at.col_offset))

    def count(self, call: ast.Call, name: str, wanted: int) -> None:
        if call.keywords or len(call.args) != wanted:
            self.fail(
                f"{name}(...) takes {wanted} argument{'s' * (wanted > 1)}, got "
                f"{len(call.args) + len(call.keywords)}",
                call,
            )

    def reach(self, depth: int, tree: ast.expr) -> None:
        if depth > DEPTH:
            self.fail(f"expressions are nested deeper than {DEPTH}", tree)

    def node(self, tree: ast.expr, depth: int) -> Node:
        self.reach(depth, tree)

        def below(inner: ast.expr) -> Node:
            return self.node(inner, depth + 1)

        if isinstance(tree, ast.Name):
            if tree.id == "acc":
                return Node("acc")
            self.fail(f"unknown name {tree.id!r}: write acc, or {tree.id}[...] for a tensor", tree)
        if isinstance(tree, ast.Constant):
            return self.number(tree)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            if isinstance(tree.operand, ast.Constant):
                return self.number(tree.operand, sign=-1)
            return Node("subtract", (Node("number", value=0), below(tree.operand)))
        if isinstance(tree, ast.BinOp) and type(tree.op) in _SIGNS:
            return Node(_SIGNS[type(tree.op)], (below(tree.left), below(tree.right)))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            name = tree.func.id
            if name in FUNCTIONS:
                self.count(tree, name, FUNCTIONS[name])
                return Node(name, tuple(map(below, tree.args)))
            if name in CASTS:
                self.fail(f"{name}(...) gives the result's dtype and stands outermost", tree)
            known = ", ".join(sorted({*FUNCTIONS, *CASTS}))
            self.fail(f"unknown function {name!r}; functions are {known}", tree)
        if isinstance(tree, ast.Subscript):
            return Node("read", load=self.load(tree))
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
            self.fail("division is not supported: multiply by the reciprocal", tree)
        self.fail(f"expected an expression such as {_EXAMPLE!r}", tree)

    def number(self, tree: ast.Constant, sign: int = 1) -> Node:
        if isinstance(tree.value, bool) or not isinstance(tree.value, (int, float)):
            self.fail(f"expected a number, got {tree.value!r}", tree)
        value = sign * tree.value
        if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
            self.fail(f"integer {shown(value)} is outside int32", tree)
        if isinstance(value, float) and not abs(value) < _ENDS_OF_FLOAT32:
            self.fail(f"number {value} is outside float32", tree)
        return Node("number", value=value)

    def load(self, tree: ast.Subscript) -> BufferLoad:
        if not isinstance(tree.value, ast.Name):
            self.fail("expected a tensor's name before the bracket", tree)
        name = tree.value.id
        inner = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        indices = tuple(self.index(each, name, 0) for each in inner)
        shape = tuple(self.shapes.get(name, (i.bounds(self.extents)[1] + 1 for i in indices)))
        if len(shape) != len(indices):
            self.fail(f"{name!r} has {len(shape)} dimensions, but {len(indices)} indices", tree)
        for index, size in zip(indices, shape, strict=True):
            low, high = index.bounds(self.extents)
            if low < 0 or high >= size:
                self.fail(f"index {index} of {name!r} runs from {low} to {high}, size {size}", tree)
        tensor = Tensor(name, shape, dtype(self.dtypes.get(name, "float32")).name)
        if self.tensors.setdefault(name, tensor) != tensor:
            self.fail(f"tensor {name!r} is read with two shapes", tree)
        return BufferLoad(tensor, indices)

    def index(self, tree: ast.expr, tensor: str, depth: int) -> Affine:
        self.reach(depth, tree)
        if isinstance(tree, ast.Constant) and type(tree.value) is int:
            return Affine(constant=tree.value)
        if isinstance(tree, ast.Name):
            if tree.id not in self.extents:
                self.fail(
                    f"{tensor!r} is indexed by {tree.id!r}, which is no iteration of the output; "
                    f"these are {', '.join(self.extents)}",
                    tree,
                )
            return Affine(((tree.id, 1),))
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return self.index(tree.operand, tensor, depth + 1) * -1
        if isinstance(tree, ast.BinOp) and type(tree.op) in _SIGNS:
            left = self.index(tree.left, tensor, depth + 1)
            right = self.index(tree.right, tensor, depth + 1)
            if isinstance(tree.op, ast.Mult):
                scaled, by = (left, right) if left.terms else (right, left)
                if by.terms:
                    self.fail(f"not affine: product of {left} and {right}", tree)
                return scaled * by.constant
            return left + (right if isinstance(tree.op, ast.Add) else right * -1)
        self.fail(f"expected an index of {tensor!r}: an iteration or an integer", tree)
