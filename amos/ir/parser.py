"""From one line of math and its extents to a :class:`Compute`.

:mod:`amos.ir.grammar` reads the text; this file gives its iterations extents and
kinds, and its tensors shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from amos.errors import OperatorError, quote, suggestion
from amos.ir.grammar import Reference, Statement, read_statement
from amos.ir.limits import dictionary, whole_number
from amos.ir.nodes import BufferLoad, Compute, Iteration, Tensor


def parse_statement(
    text: str,
    extents: Mapping[str, int] | None,
    dtypes: Mapping[str, str] | None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Compute:
    """Read one statement (AMOS, Definition 4.1).

    Iterations are ordered: spatial ones as the output's indices list them, then
    reductions in order of first appearance in the sources.

    A dimension whose size ``shapes`` does not give holds the largest index that
    any access reaches. Where a padded access starts below zero, as much padding
    is assumed after the data as before it: an index that runs from -1 to 28
    reads a dimension of size 28. Give the shape where that is not so, as in a
    strided convolution that does not reach the last row.

    Arguments and errors are those of :meth:`Operator.parse <amos.ir.Operator.parse>`.

    >>> str(parse_statement("o[i] += a[i+r]", dict(i=4, r=3), {}).sources[0].tensor.shape)
    '(6,)'
    """
    extents, dtypes = dictionary(extents, "extents"), dictionary(dtypes, "dtypes")
    shapes = dictionary(shapes, "shapes")
    statement = read_statement(text)
    iterations = _iterations(statement, extents)
    ranges = {it.name: it.extent for it in iterations}
    tensors = _tensors(statement, ranges, dtypes, shapes)

    def load(reference: Reference) -> BufferLoad:
        tensor = tensors[reference.name]
        return BufferLoad(tensor, reference.indices, reference.padded, reference.padding)

    return Compute(
        load(statement.output),
        tuple(map(load, statement.sources)),
        iterations,
        combiner=statement.combiner,
        join=statement.join,
    )


def _iterations(statement: Statement, extents: Mapping[str, int]) -> tuple[Iteration, ...]:
    used = _in_order(statement.references)
    if vanished := [name for name in statement.mentioned if name not in used]:
        raise OperatorError(
            f"iteration {', '.join(vanished)} cancels out of every index that mentions it"
        )
    check_extents(extents, used)
    spatial = _in_order([statement.output])
    return tuple(
        Iteration(name, extents[name], "spatial" if name in spatial else "reduce") for name in used
    )


def check_extents(extents: Mapping[str, int], used: Sequence[str]) -> None:
    """Refuse extents of what indexes nothing, and iterations in use without one."""
    for name in extents:
        if name not in used:
            raise OperatorError(
                f"extent given for {name!r}, which indexes nothing; iterations are "
                f"{', '.join(used) or 'none'}{suggestion(name, used)}"
            )
    if missing := [name for name in used if name not in extents]:
        stated = ", ".join(map(str, extents)) or "none"
        raise OperatorError(f"no extent given for {', '.join(missing)}; given are {stated}")


def _in_order(references: Iterable[Reference]) -> list[str]:
    return list(
        dict.fromkeys(name for ref in references for index in ref.indices for name in index.names)
    )


def _tensors(
    statement: Statement,
    ranges: Mapping[str, int],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, Tensor]:
    accesses: dict[str, list[Reference]] = {}
    for reference in statement.references:
        accesses.setdefault(reference.name, []).append(reference)
    for what, names in (("dtype", dtypes), ("shape", shapes)):
        for name in names:
            if name not in accesses:
                raise OperatorError(
                    f"{what} given for {name!r}, which does not occur; tensors are "
                    f"{', '.join(accesses)}{suggestion(name, accesses)}"
                )
    return {
        name: Tensor(name, _shape(name, of, ranges, shapes.get(name)), dtypes.get(name))
        for name, of in accesses.items()
    }


def _shape(
    name: str, accesses: Sequence[Reference], ranges: Mapping[str, int], shape: Sequence[int] | None
) -> tuple[int, ...]:
    ranks = sorted({len(access.indices) for access in accesses})
    if len(ranks) > 1:
        raise OperatorError(f"tensor {name!r} is accessed with {ranks[0]} and {ranks[1]} indices")
    if shape is not None:
        if isinstance(shape, str | bytes) or not isinstance(shape, Sequence):
            raise OperatorError(f"shape of tensor {name!r}: expected a tuple, got {quote(shape)}")
        if len(shape) != ranks[0]:
            raise OperatorError(
                f"shape of tensor {name!r}: {accesses[0]} has {ranks[0]} indices, "
                f"but the shape is {tuple(shape)}"
            )
        return tuple(whole_number(size, f"shape of tensor {name!r}") for size in shape)
    return tuple(
        max(dimension_size(access, axis, ranges) for access in accesses) for axis in range(ranks[0])
    )


def dimension_size(access: Reference, axis: int, ranges: Mapping[str, int]) -> int:
    """Return the smallest size of a dimension that one access explains."""
    low, high = access.indices[axis].bounds(ranges)
    return max(1, high + 1 + (min(low, 0) if access.padded else 0))
