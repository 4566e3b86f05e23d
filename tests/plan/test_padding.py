"""Staged operands of longer loops: the same values, and zeros beyond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.ir import Operator
from amos.mapping import Mapping
from amos.plan.nest import Nest
from amos.plan.packing import pad_operand
from amos.plan.staging import stage_array, staged_destination, staged_sources

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
CONV = Operator.parse(
    "out[n,k,p,q] += pad(image[n,c,p*2+r-1,q+s-1]) * weight[k,c,2-r,s]",
    extents=dict(n=2, k=19, p=3, q=5, c=3, r=3, s=3),
    shapes=dict(image=(2, 3, 6, 5)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))


@settings(max_examples=60)
@given(st.sampled_from(MAPPINGS), st.data())
def test_the_old_part_is_unchanged(mapping: Mapping, data: st.DataObject) -> None:
    nest = Nest(mapping)
    grown = {x.name: x.extent + data.draw(st.integers(0, 3)) for x in nest.spatial}
    rng = np.random.default_rng(0)
    for op in staged_sources(nest):
        array = rng.integers(1, 100, op.load.tensor.shape)
        if op.in_place:
            continue
        longer = pad_operand(op, grown)
        before, after = stage_array(op, array), stage_array(longer, array)
        # No index of a padded loop is negative here, so the old part comes first.
        assert np.array_equal(after[tuple(slice(0, n) for n in op.shape)], before)
        for d, dim in enumerate(longer.dims):
            beyond = np.take(after, range(op.shape[d], dim.extent), axis=d)
            if dim.dimension < 0:
                assert not beyond.any()
    out = pad_operand(staged_destination(nest), grown)
    for dim in out.dims:
        name = dim.index.names[0]
        assert dim.extent == grown.get(name, dim.extent)


def test_nothing_grows_without_need() -> None:
    nest = Nest(MAPPINGS[0])
    for op in staged_sources(nest):
        assert pad_operand(op, {}) == op
