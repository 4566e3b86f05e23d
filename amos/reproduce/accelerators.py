"""AMOS, section 7.5: 3-D convolution on AXPY, GEMV and CONV units, by definition.

The paper reports 15, 7 and 31 "different types of mappings", but defines neither
the units nor when two mappings differ. So each row is one natural definition, with
our count. Two iterations of a unit that index the same operands
(the height and the width of a CONV unit) can be exchanged; mappings that differ
in nothing else are one *type*.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from amos import operators
from amos.errors import MappingError
from amos.intrinsics.virtual import unit
from amos.mapping import MappingSpace, enumerate_mappings
from amos.reproduce.table6 import small
from amos.validate import RULES

#: Figures of the paper for 3-D convolution.
PAPER = {"AXPY": 15, "GEMV": 7, "CONV": 31}


@dataclass(frozen=True)
class AcceleratorRow:
    """One definition of one unit, and the operator it was counted with.

    Attributes:
        definition: its reason, in words.
        intrinsic: the unit's statement.
        types: number of types for each rule.
        registered: name of the registered intrinsic with this statement, or "".
    """

    unit: str
    definition: str
    intrinsic: str
    operator: str
    paper: int
    counts: Mapping[str, int]
    types: Mapping[str, int]
    registered: str = ""

    @property
    def agrees(self) -> tuple[str, ...]:
        """Which of our numbers are the paper's: ``"paper"``, ``"access types"``, …"""
        same = [rule for rule in RULES if self.counts[rule] == self.paper]
        alike = [rule for rule in RULES if self.types[rule] == self.paper != self.counts[rule]]
        return (*same, *(f"{rule} types" for rule in alike))


_FULL = "out[n,k,d,p,q] += image[n,c,d+t,p+r,q+s] * weight[k,c,t,r,s]"
_NO_BATCH = "out[k,d,p,q] += image[c,d+t,p+r,q+s] * weight[k,c,t,r,s]"
_POINT = "out[k,d,p,q] += image[c,d,p,q] * weight[k,c]"
_SLICE = "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[k,c,r,s]"

_AXPY = "Dst[i1] += Src1[i1] * Src2[]"
_GEMV = "Dst[i1] += Src1[i1, r1] * Src2[r1]"
_VECTOR = "Dst[i1] += Src1[r1] * Src2[i1, r1]"
_CONV = "Dst[i1, i2, i3] += Src1[r1, i2, i3] * Src2[i1, r1]"
_BATCHED = "Dst[i1, i2, i3, i4] += Src1[i1, r1, i3, i4] * Src2[i2, r1]"

#: For each unit: its statement, the operator's, and the reason for the definition.
_DEFINITIONS = {
    "AXPY": (
        (_AXPY, _FULL, "vector of image times scalar weight"),
        ("Dst[i1] += Src1[] * Src2[i1]", _FULL, "scalar of image times vector of weights"),
        (
            _VECTOR,
            _FULL,
            "the authors' published code: the scalar is summed over an iteration of extent 1",
        ),
        (_AXPY, _NO_BATCH, "vector of image times scalar weight, no batch"),
    ),
    "GEMV": (
        (_GEMV, _FULL, "matrix of image times vector of weights"),
        (
            _VECTOR,
            _FULL,
            "vector of image times matrix of weights (AVX-512 in the authors' published code)",
        ),
        (_GEMV, _NO_BATCH, "matrix of image times vector of weights, no batch"),
        (_GEMV, _POINT, "matrix of image, no batch, kernel of extent 1"),
        (_VECTOR, _SLICE, "matrix of weights, one 2-D convolution for each d and t"),
    ),
    "CONV": (
        (_CONV, _FULL, "pointwise convolution of one sample (the authors' published code)"),
        (_BATCHED, _FULL, "pointwise convolution of a batch"),
        ("Dst[i1, i2] += Src1[r1, i2] * Src2[i1, r1]", _FULL, "pointwise, one spatial dimension"),
        ("Dst[i1, i2] += Src1[i1, i2] * Src2[]", _FULL, "pointwise, one channel in and out"),
        (_CONV, _NO_BATCH, "pointwise convolution of one sample, no batch"),
        (
            "Dst[i1, i2, i3] += Src1[i1, r1] * Src2[i2, i3, r1]",
            _FULL,
            "output channels as a plane of units",
        ),
    ),
}

_REGISTERED = {
    _AXPY: "virtual_axpy_m16_f16_f32",
    _GEMV: "virtual_gemv_m16k16_f16_f32",
    _CONV: "virtual_conv_k16p4q4c16_f16_f32",
}


def accelerators() -> list[AcceleratorRow]:
    """Count mappings of each definition, a row each.

    >>> [(row.unit, row.types["paper"]) for row in accelerators() if row.agrees][0]
    ('AXPY', 15)
    """
    return [_row(name, *row) for name, rows in _DEFINITIONS.items() for row in rows]


def types(space: MappingSpace) -> int:
    """Count mappings, taking those once that only exchange like iterations of the unit."""
    steps = space.intrinsic.iterations
    seen = set()
    for mapping in space:
        step_counts = Counter(
            (mapping.pairing.slots[t], mapping.groups[step.name]) for t, step in enumerate(steps)
        )
        seen.add((mapping.order, frozenset(step_counts.items())))
    return len(seen)


def _row(kind: str, statement: str, text: str, definition: str) -> AcceleratorRow:
    op = operators.conv3d() if text == _FULL else small(text, "C3D")
    steps = re.findall(r"\b[ir]\d", statement)
    hardware = unit(statement, dict.fromkeys(sorted(steps), 4), name=kind)
    counts, kinds = dict.fromkeys(RULES, 0), dict.fromkeys(RULES, 0)
    with contextlib.suppress(MappingError):
        for rule in RULES:
            space = enumerate_mappings(op, hardware, rule)
            counts[rule], kinds[rule] = space.count, types(space)
    registered = _REGISTERED.get(statement, "")
    return AcceleratorRow(
        kind, definition, statement, str(op.compute), PAPER[kind], counts, kinds, registered
    )
