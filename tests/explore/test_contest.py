"""Instructions that compete for the trials of one search."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import amos
from amos.errors import ExploreError, MappingError, UnknownNameError
from amos.explore.contenders import Contender, chosen_intrinsics, contenders, reasons
from amos.explore.contest import Contest
from amos.explore.exploration import Exploration
from amos.machine.cpu import cpu

XEON = "xeon_6240"


def gemm(dtype: str) -> amos.Operator:
    return amos.operators.get("gemm", m=64, n=64, k=64, dtype=dtype)


def test_all_that_a_machine_has_compete() -> None:
    result = amos.explore(gemm("u8s8"), machine=XEON, trials=16, progress=False)
    assert len(result.trials) == 16
    assert [trial.number for trial in result.trials] == list(range(16))
    first, *others = result.intrinsics
    assert result.intrinsic is first.intrinsic is result.best.mapping.intrinsic
    assert first.reason == "" and first.trials >= 8
    assert sum(each.trials for each in result.intrinsics) == 16
    assert all(each.reason for each in others)
    assert {each.intrinsic.name for each in result.intrinsics} == {
        unit.name for unit in chosen_intrinsics(None, XEON)
    }
    told = result.to_dict()
    assert told["intrinsic"] == first.intrinsic.name
    assert told["intrinsics"][0]["seconds"] == pytest.approx(result.best.seconds)
    assert set(result.to_frame()["intrinsic"]) == {
        each.intrinsic.name for each in result.intrinsics if each.trials
    }


def test_the_best_of_each_is_in_the_trials() -> None:
    """Nothing is lost or told twice on the way from the sessions to the result."""
    units = ["vnni_dpbusd_m16k4_u8_s8_s32", "vnni_dpbusd_lhs_m16k4_u8_s8_s32"]
    result = amos.explore(gemm("u8s8"), units, machine=XEON, trials=12, progress=False)
    for each in result.intrinsics:
        own = [t.seconds for t in result.trials if t.mapping.intrinsic is each.intrinsic]
        assert len(own) == each.trials
        assert min(own, default=math.inf) == each.seconds


def test_one_instruction_is_searched_as_ever() -> None:
    name = "vnni_dpbusd_m16k4_u8_s8_s32"
    result = amos.explore(gemm("u8s8"), name, machine=XEON, trials=6, progress=False)
    assert [each.intrinsic.name for each in result.intrinsics] == [name]
    assert result.intrinsics[0].trials == 6


def test_the_same_seed_and_record_give_the_same(tmp_path: Path) -> None:
    def run(records: Path | None) -> Exploration:
        return amos.explore(
            gemm("u8s8"), machine=XEON, trials=12, seed=3, records=records, progress=False
        )

    file = tmp_path / "tuning.db"
    first, again, alone = run(file), run(file), run(None)
    assert [t.candidate.key for t in first.trials] == [t.candidate.key for t in again.trials]
    assert [t.candidate.key for t in first.trials] == [t.candidate.key for t in alone.trials]
    assert first.intrinsics == again.intrinsics == alone.intrinsics


def test_a_family_competes() -> None:
    names = {unit.name for unit in chosen_intrinsics("vnni", XEON)}
    assert "vnni_dpbusd_m16k4_u8_s8_s32" in names
    assert all(name.startswith("vnni") for name in names)


def test_shapes_of_a_gpu_compete() -> None:
    result = amos.explore(gemm("f16"), machine="a100", trials=12, progress=False)
    families = {each.intrinsic.family for each in result.intrinsics if each.mappings}
    assert families >= {"wmma", "mma"}
    assert all(0 < each.intrinsic.architecture <= 80 for each in result.intrinsics)


def test_what_cannot_win_is_not_measured() -> None:
    family = [*chosen_intrinsics("vnni", XEON), amos.intrinsics.get("avx2_pmaddwd_m8k2_u8_s8_s32")]
    every = contenders(gemm("u8s8"), family, "access")
    taking = [each for each in every if not each.reason]
    narrow = next(each for each in every if each.intrinsic.name == "avx2_pmaddwd_m8k2_u8_s8_s32")
    assert taking and narrow.reason.startswith("its calls alone take 4.0 times")
    same = next(each for each in every if each.intrinsic.name == "vnni_dpbusds_m16k4_u8_s8_s32")
    assert same.reason == "computes what vnni_dpbusd_m16k4_u8_s8_s32 does"


def test_who_is_near() -> None:
    unit = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
    each = [Contender(unit, predicted=seconds) for seconds in (3.0, 1.0, 1.5, 1.9, 1.2)]
    inside, outside = Contest.near(each, 16)
    assert [c.predicted for c in inside] == [1.0, 1.2]
    assert [c.reason.split(",")[0] for c in outside] == [
        "16 trials are enough for 2",
        "16 trials are enough for 2",
        "predicted 3.0 times the fastest",
    ]
    assert len(Contest.near(each, 1)[0]) == 1


def test_refusals() -> None:
    with pytest.raises(MappingError, match="no instruction of") as caught:
        amos.explore(gemm("f64"), machine=XEON)
    lines = str(caught.value).splitlines()
    assert 2 <= len(lines) <= 10
    assert any(" more: `a` is float64, its operand `Src1` is uint8" in line for line in lines)
    with pytest.raises(MappingError, match="the dtype of `a` is open"):
        amos.explore(amos.operators.get("gemm"), machine=XEON)
    with pytest.raises(ExploreError, match="expected at least one"):
        amos.explore(gemm("u8s8"), [], machine=XEON)
    with pytest.raises(UnknownNameError, match="nonesuch"):
        amos.explore(gemm("u8s8"), "nonesuch", machine=XEON)


def test_reasons_are_grouped() -> None:
    units = [amos.intrinsics.get(name) for name in amos.intrinsics.names()[:3]]
    given = [Contender(unit, reason=why) for unit, why in zip(units, "aba", strict=True)]
    assert reasons(given) == [f"{units[0].name} and 1 more: a", f"{units[1].name}: b"]


@pytest.mark.features
def test_the_host_measures_and_checks() -> None:
    if not {"avx2", "fma"} <= cpu().features:
        pytest.skip("this CPU lacks avx2")
    op = amos.operators.get("gemm", m=32, n=64, k=64, dtype="f32")
    result = amos.explore(op, trials=8, progress=False)
    assert result.best.measurement is not None
    assert result.best.measurement.implementation == "native"
    assert result.best.measurement.verified_elements == 32 * 64
