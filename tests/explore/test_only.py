"""Searching named mappings alone."""

from __future__ import annotations

import pytest

import amos
from amos.errors import MappingError

OP = amos.Operator.parse(
    "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,c,r,s]",
    extents=dict(n=1, p=4, q=4, k=32, c=8, r=3, s=3),
)
UNIT = "vnni_dpbusd_m16k4_u8_s8_s32"


def test_only_the_named_mappings_are_searched() -> None:
    result = amos.explore(
        OP,
        UNIT,
        machine="xeon_4110",
        trials=6,
        seed=0,
        search=amos.SearchOptions(only=("k-c", "k-rsc")),
    )
    assert result.searched == 2
    assert {trial.mapping.name for trial in result.trials} <= {"k-c", "k-rsc"}


def test_a_name_must_be_known() -> None:
    with pytest.raises(MappingError, match="has no iteration 'z'"):
        amos.explore(
            OP, UNIT, machine="xeon_4110", trials=1, search=amos.SearchOptions(only=("k-z",))
        )
