"""Names of mappings: read back, unique, and explained where there is no such mapping."""

from __future__ import annotations

import pytest

from amos import intrinsics, operators
from amos.errors import MappingError
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.validate.naming import matching_name

WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")
CONV = operators.conv2d()


@pytest.mark.parametrize("rule", ["paper", "gather"])
@pytest.mark.parametrize("name", ["conv3d", "capsule_pose_conv2d", "gemv", "depthwise_conv2d"])
def test_every_name_finds_its_mapping(name: str, rule: str) -> None:
    space = enumerate_mappings(operators.get(name), WMMA, rule, commute=True)
    assert space
    assert [space.find(mapping.name) for mapping in space] == list(space)


def test_names_that_could_be_read_in_two_ways_are_not_given() -> None:
    op = Operator.parse(
        "o[a,b,ab,_] += x[a,b,ab,_,k] * w[k]", dict.fromkeys(["a", "b", "ab", "_", "k"], 2)
    )
    space = enumerate_mappings(op, WMMA)
    names = [mapping.name for mapping in space]
    assert len(set(names)) == len(names) == 15
    assert {"a.b-_-k", "ab-_-k", "_.-_-k", "ab_-_-k"} <= set(names)
    assert [space.find(name) for name in names] == list(space)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "q-k-cs",
            "under rule 'paper': no base match contains `s`.*Near it are 'nq-k-cs', 'pq-k-cs'",
        ),
        ("nk-_-c", "`n` and `k` both go to `i1`, but `k` indexes `weight`"),
        ("_-k-c", "`i1` stays empty though `n`, `p`, `q` could go there"),
        ("qpn-k-crs", "the same groups in loop order are 'npq-k-crs'"),
        ("npq-k", "expected 3 groups joined by '-', for i1, i2, r1; got 2"),
        ("npq-k-crs-x", "got 4"),
        ("nxq-k-c", "conv2d has no iteration 'x'; it has n, k, p, q, c, r, s"),
        ("nn-k-c", "`n` occurs twice"),
        ("n-k-", "write '_' for a group that is empty"),
        ("n-k-c~12", "gives the order of the 2 sources, each once; got '12'"),
        ("k-n-c~10", "it holds the sources in their given order only, see commute=True"),
        ("", "got 1"),
    ],
)
def test_a_name_that_is_none(name: str, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        enumerate_mappings(CONV, WMMA, "paper").find(name)


def test_empty_groups_and_dots() -> None:
    assert matching_name([(), ("x", "row")], (0,), {"x", "row"}) == "_-x.row"
