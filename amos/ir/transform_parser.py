"""Literal matrices of a chain's text, and the statements that they are factors of.

Grammar, where ``access`` is that of :mod:`amos.ir.grammar`::

    literal   := NAME "=" "[" row ("," row)* "]"
    row       := "[" NUMBER ("," NUMBER)* "]"
    transform := access "+=" (NAME "[" NAME "," NAME "]" "*")+ access
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from amos.errors import OperatorError, quote
from amos.ir.chain import Statement, Step
from amos.ir.chain_scanner import Scanner
from amos.ir.dtypes import dtype
from amos.ir.epilogue import ACC, Epilogue
from amos.ir.expression import Node
from amos.ir.nodes import BufferLoad, Compute, Tensor
from amos.ir.transforms import Literal, Transform

Matrix = tuple[tuple[int | float, ...], ...]
EXPECTED = "expected sums of products (+=, *) of literals with one other tensor"
_LITERAL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(\[.*)", re.DOTALL)


def read_literals(texts: Sequence[str]) -> tuple[dict[str, Matrix], list[Scanner]]:
    """Read the literals among statements.

    Returns:
        the matrices by name, and all other statements.

    Raises:
        OperatorError: a literal is no matrix of numbers, defined twice, written or read by nothing.
    """
    literals, heads = dict[str, Matrix](), list[Scanner]()
    for text in texts:
        if (match := _LITERAL.fullmatch(text)) is None:
            heads.append(Scanner(text))
            continue
        name, values = match.groups()
        if name in literals:
            raise OperatorError(f"{text!r}: {name!r} is defined before")
        literals[name] = _read_matrix(values, text)
    for head in heads:
        if head.name in literals:
            raise OperatorError(f"{head.text!r}: {head.name!r} is a literal, which nothing writes")
    read = {name for head in heads for name in head.reads}
    if idle := [name for name in literals if name not in read]:
        raise OperatorError(f"nothing reads the literal {idle[0]!r}")
    return literals, heads


def _read_matrix(values: str, text: str) -> Matrix:
    try:
        rows = ast.literal_eval(values)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        rows = []
    matrix = tuple(tuple(row) for row in rows if isinstance(row, list))
    if not matrix or not all(matrix) or len(matrix) < len(rows):
        raise OperatorError(f"{quote(text)}: expected rows of numbers, such as [[1, 0.5], [-2, 0]]")
    for number, row in enumerate(matrix, 1):
        if len(row) != len(matrix[0]):
            raise OperatorError(
                f"{quote(text)}: row {number} has {len(row)} numbers, and row 1 {len(matrix[0])}"
            )
        for x in row:
            if type(x) not in (int, float) or not abs(x) < 2**31:
                raise OperatorError(
                    f"{quote(text)}: row {number}: expected numbers between -2**31 and 2**31, got "
                    f"{quote(x)}"
                )
    return matrix


def define_literals(steps: Sequence[Step]) -> str:
    """Return the definitions of all literals that steps have, as text in front of the first."""
    factors = [x for step in steps if isinstance(step, Transform) for x in step.literals]
    matrices = {literal.name: literal.values for literal in factors}
    return "".join(f"{name} = {[*map(list, rows)]}; " for name, rows in matrices.items())


def transform_of(
    compute: Compute, literals: Mapping[str, Matrix], dtypes: Mapping[str, str]
) -> Transform:
    """Convert a sum of products with literals to a transform.

    Raises:
        OperatorError: it is no sum of products of literals with one tensor.
    """
    sources = [load for load in compute.sources if load.tensor.name not in literals]
    if compute.combiner != "+" or compute.join != "*" or len(sources) != 1:
        raise OperatorError(EXPECTED)
    factors = []
    for load in compute.sources[:-1]:
        names = [str(index) for index in load.indices]
        is_plain = len({*names} & {it.name for it in compute.iterations}) == len(names) == 2
        if load.tensor.name not in literals or not is_plain:
            raise OperatorError(
                "expected literals, each by two iterations, and then the tensor that they "
                f"transform, got {load}"
            )
        factors.append(Literal(load.tensor.name, literals[load.tensor.name], *names))
    source = _with_dtype(compute.sources[-1], dtypes, "float32")
    is_integer = dtype(str(source.tensor.dtype)).is_integer
    transform = Transform(
        expression=Node("read", load=source),
        destination=_with_dtype(compute.dst, dtypes, "int32" if is_integer else "float32"),
        iterations=compute.iterations,
        combiner="+",
        literals=tuple(factors),
    )
    transform.check_reach()
    return transform


def _with_dtype(load: BufferLoad, dtypes: Mapping[str, str], default: str) -> BufferLoad:
    kind = dtypes.get(load.tensor.name, default)
    return replace(load, tensor=replace(load.tensor, dtype=kind))


def find_transform(
    head: Scanner, statements: Sequence[Statement], heads: Sequence[Scanner]
) -> Transform | None:
    """Find the transform that only this statement reads, stored at the same indices."""
    step = statements[-1].steps[-1] if statements else None
    if not isinstance(step, Transform) or step.epilogue or head.sign or not head.indexed:
        return None
    sums = step.destination
    is_plain = all(len(index.terms) < 2 for index in sums.indices)
    if is_plain or head.accesses[0].indices != sums.indices:
        return None
    readers = [each for each in heads if sums.tensor.name in each.reads]
    return step if readers == [head] else None


def with_epilogue(
    transform: Transform, tensor: Tensor, expression: Node, written: Collection[str]
) -> Transform:
    """Store an expression of a transform's sums instead of the sums.

    Raises:
        OperatorError: the expression has something else.
    """
    sums = transform.destination

    def replace_sums(node: Node) -> Node:
        if node.load == sums:
            return Node(ACC)
        if node.is_variable or (node.load and node.load.tensor.name in written):
            raise OperatorError(
                f"expected an expression of {sums} and of inputs, got {node} in what is computed "
                "with a transform"
            )
        return replace(node, arguments=tuple(map(replace_sums, node.arguments)))

    epilogue = Epilogue(replace_sums(expression))
    final = str(tensor.dtype)
    if epilogue.kind(transform.sum_dtype) != final:
        epilogue = replace(epilogue, dtype=final)
    finished = replace(transform, destination=replace(sums, tensor=tensor), epilogue=epilogue)
    finished.check_reach()
    return finished
