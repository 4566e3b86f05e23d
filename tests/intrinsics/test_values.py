"""Whatever is registered is the same after it was plain values."""

from __future__ import annotations

import json

import pytest

from amos import intrinsics
from amos.errors import IntrinsicError


def test_every_intrinsic_and_back() -> None:
    for name in intrinsics.names():
        unit, sources = intrinsics.get(name), intrinsics.implementations(name)
        text = json.dumps(intrinsics.values_of(unit, sources.values()))
        back, *remaining = intrinsics.read_values(json.loads(text), "values")
        assert back == unit
        assert remaining == list(sources.values())


def test_values_are_checked() -> None:
    values = intrinsics.values_of(intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"))
    with pytest.raises(IntrinsicError, match="record 1: lanes: expected one of name, "):
        intrinsics.read_values(values | {"lanes": 4}, "record 1")
    for name in values:
        with pytest.raises(IntrinsicError):
            intrinsics.read_values(values | {name: None}, "record 1")
