"""Loops of a product that go through memory in one go in every tensor, as one loop.

Rows and columns of an image in a tile are such loops of a product over channels. As one loop they
can be cut into register tiles that neither divides alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import permutations

from amos.ir import Affine, BufferLoad, Iteration, Operator


def merge_loops(operator: Operator, copied: Collection[str] = ()) -> Operator:
    """Merge loops of a product into the inner ones of pairs, whose names stay.

    Tensors get fewer dimensions, but lie in memory as before. Loops of stored results stay.

    Args:
        copied: sources that are packed from part of a tensor, whose dimensions stay.
    """
    if operator.store is not None or operator.prologues:
        return operator
    pairs = permutations(operator.iterations, 2)
    pair = next((pair for pair in pairs if _is_one_loop(operator, *pair, copied)), None)
    return operator if pair is None else merge_loops(_merge(operator, *pair), copied)


def _is_one_loop(
    operator: Operator, outer: Iteration, inner: Iteration, copied: Collection[str]
) -> bool:
    """Return whether all tensors of one of two loops have both, with all of the inner one."""
    if outer.is_reduce != inner.is_reduce:
        return False
    for load in (*operator.operands, *operator.epilogue_loads):
        if load.names.isdisjoint((outer.name, inner.name)):
            continue
        if load.tensor.name in copied:
            return False
        plain = [index.names[0] if _is_plain(index) else "" for index in load.indices]
        used = [name for index in load.indices for name in index.names]
        if any(used.count(name) != 1 or name not in plain for name in (outer.name, inner.name)):
            return False
        first = plain.index(outer.name)
        if plain[first + 1 : first + 2] != [inner.name]:
            return False
        rows, columns = load.tensor.shape[first : first + 2]
        if columns != inner.extent or (load.padded and rows != outer.extent):
            return False
    return True


def _is_plain(index: Affine) -> bool:
    return [factor for _, factor in index.terms] == [1] and not index.constant


def _merge(operator: Operator, outer: Iteration, inner: Iteration) -> Operator:
    def merge(load: BufferLoad) -> BufferLoad:
        if outer.name not in load.names:
            return load
        first = next(n for n, index in enumerate(load.indices) if outer.name in index.names)
        rows, columns = load.tensor.shape[first : first + 2]
        shape = (*load.tensor.shape[:first], rows * columns, *load.tensor.shape[first + 2 :])
        indices = (*load.indices[:first], *load.indices[first + 1 :])
        return replace(load, tensor=replace(load.tensor, shape=shape), indices=indices)

    extents = {inner.name: outer.extent * inner.extent}
    iterations = tuple(
        replace(it, extent=extents.get(it.name, it.extent))
        for it in operator.iterations
        if it.name != outer.name
    )
    epilogue = operator.epilogue and operator.epilogue.with_loads(merge)
    compute = replace(
        operator.compute,
        dst=merge(operator.compute.dst),
        sources=tuple(map(merge, operator.compute.sources)),
        iterations=iterations,
    )
    return Operator(compute, operator.name, operator.constants, epilogue=epilogue)
