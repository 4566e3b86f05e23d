"""Iterations that the output counts down, made to count it up.

``out[7-i] += a[i,k] * b[k]`` is ``out[i] += a[7-i,k] * b[k]``: sources may be read in any order,
and the output's index can then be inverted by division alone.
"""

from __future__ import annotations

from dataclasses import replace

from amos.ir import Affine, BufferLoad
from amos.mapping.mapping import Mapping


def mirror(mapping: Mapping) -> Mapping:
    """Rewrite a computation without negative coefficients in the output's indices.

    >>> import amos
    >>> sizes = {"i": 8, "j": 16, "k": 4}
    >>> op = amos.Operator.parse("o[7-i,j] += a[i,k] * b[k,j]", extents=sizes)
    >>> unit = amos.intrinsics.get("avx512_fmadd_m16_f32_f32")
    >>> print(mirror(amos.enumerate_mappings(op, unit)[0]).operator.compute)
    o[i, j] += a[-i + 7, k] * b[k, j]
    """
    operator = mapping.operator
    if operator.redirected:
        return mapping  # The output's indices no longer say where results are stored.
    last = {
        name: operator.extents[name] - 1
        for index in operator.output.indices
        for name, c in index.terms
        if c < 0
    }
    if not last:
        return mapping

    def reverse(index: Affine) -> Affine:
        terms = tuple((name, -c if name in last else c) for name, c in index.terms)
        moved = sum(c * last[name] for name, c in index.terms if name in last)
        return Affine(terms, index.constant + moved)

    def load(access: BufferLoad) -> BufferLoad:
        return replace(access, indices=tuple(map(reverse, access.indices)))

    return replace(mapping, operator=operator.with_loads(load))
