"""Instructions that compete for the trials of one search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import amos
from amos.errors import ExploreError, MappingError, UnknownNameError
from amos.explore.contenders import (
    Contender,
    contenders,
    list_rivals,
    reasons,
    select_intrinsics,
)
from amos.explore.contest import Contest
from amos.explore.exploration import Exploration
from amos.explore.options import MeasureOptions, SearchOptions
from amos.explore.setting import Setting
from amos.intrinsics import Intrinsic
from amos.machine import Machine, catalogue
from amos.machine.cpu import cpu
from amos.measure.task import Task
from amos.records import Measurement
from tests.support.fake import Answering, fake_seconds

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

XEON = "xeon_6240"
#: One instruction with the vector along the columns, and one along the rows.
COLUMNS, ROWS = "vnni_dpbusd_m16k4_u8_s8_s32", "vnni_dpbusd_lhs_m16k4_u8_s8_s32"


def gemm(dtype: str) -> amos.Operator:
    """Large enough that results which leave transposed cost less than half of the time."""
    return amos.operators.get("gemm", m=64, n=1024, k=1024, dtype=dtype)


def test_all_that_a_machine_has_compete() -> None:
    result = amos.explore(gemm("u8s8"), machine=XEON, trials=16, progress=False)
    assert len(result.trials) == 16
    assert [trial.number for trial in result.trials] == list(range(16))
    first, *further = result.intrinsics
    assert result.intrinsic is first.intrinsic is result.best.mapping.intrinsic
    assert first.reason == "" and first.trials >= 8
    assert sum(each.trials for each in result.intrinsics) == 16
    assert all(each.reason for each in further)
    assert {each.intrinsic.name for each in result.intrinsics} == {
        unit.name for unit in select_intrinsics(None, XEON)
    }
    report = result.to_dict()
    assert report["intrinsic"] == first.intrinsic.name
    assert report["intrinsics"][0]["seconds"] == pytest.approx(result.best.seconds)
    assert set(result.to_frame()["intrinsic"]) == {
        each.intrinsic.name for each in result.intrinsics if each.trials
    }


def test_the_best_of_each_is_in_the_trials() -> None:
    """Nothing is lost or told twice on the way from the sessions to the result."""
    units = ["vnni_dpbusd_m16k4_u8_s8_s32", "vnni_dpbusd_lhs_m16k4_u8_s8_s32"]
    result = amos.explore(gemm("u8s8"), units, machine=XEON, trials=12, progress=False)
    for entry in result.intrinsics:
        own = [t.seconds for t in result.trials if t.mapping.intrinsic is entry.intrinsic]
        assert len(own) == entry.trials
        assert min(own, default=math.inf) == entry.seconds


def test_trials_one_by_one_are_shared_as_all_at_once() -> None:
    """Each instruction has its four, however often the contest is stopped on the way."""
    setting = Setting(
        operator=gemm("u8s8"),
        machine=XEON,
        workers=None,
        method="ga",
        seed=0,
        rule="access",
        search=SearchOptions(),
        measure=MeasureOptions(),
    )
    shares = []
    for step in (1, 3, 16):
        contest = setting.contest(setting.units([COLUMNS, ROWS]), 16)
        for total in (*range(step, 16, step), 16):
            list(contest.run(total))
        names = [trial.mapping.intrinsic.name for trial in contest.trials]
        assert len({*names[:4]}) == len({*names[4:8]}) == len({*names[8:]}) == 1
        shares.append((names[0], names[4]))
    assert len({*shares}) == 1 and len({*shares[0]}) == 2


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
    names = {unit.name for unit in select_intrinsics("vnni", XEON)}
    assert "vnni_dpbusd_m16k4_u8_s8_s32" in names
    assert all(name.startswith("vnni") for name in names)


def test_shapes_of_a_gpu_compete() -> None:
    result = amos.explore(gemm("f16"), machine="a100", trials=12, progress=False)
    families = {each.intrinsic.family for each in result.intrinsics if each.mappings}
    assert families >= {"wmma", "mma"}
    assert all(0 < each.intrinsic.architecture <= 80 for each in result.intrinsics)


def test_what_cannot_win_is_not_measured() -> None:
    family = [*select_intrinsics("vnni", XEON), amos.intrinsics.get("avx2_pmaddwd_m8k2_u8_s8_s32")]
    all_contenders = contenders(gemm("u8s8"), family, "access")
    taking = [each for each in all_contenders if not each.reason]
    narrow = next(
        each for each in all_contenders if each.intrinsic.name == "avx2_pmaddwd_m8k2_u8_s8_s32"
    )
    assert taking and narrow.reason.startswith("its calls alone take 4.0 times")
    same = next(
        each for each in all_contenders if each.intrinsic.name == "vnni_dpbusds_m16k4_u8_s8_s32"
    )
    assert same.reason == "computes what vnni_dpbusd_m16k4_u8_s8_s32 does"


def test_who_is_near() -> None:
    unit = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
    entries = [Contender(unit, predicted=seconds) for seconds in (3.0, 1.0, 1.5, 1.9, 1.2)]
    near, far = Contest.select_entrants(entries, 16)
    assert [c.predicted for c in near] == [1.0, 1.2]
    assert [c.reason.split(",")[0] for c in far] == [
        "16 trials are enough for 2",
        "16 trials are enough for 2",
        "predicted 3.0 times the fastest",
    ]
    assert len(Contest.select_entrants(entries, 1)[0]) == 1


def test_refusals() -> None:
    with pytest.raises(MappingError, match="no instruction of") as caught:
        amos.explore(gemm("f64"), machine=XEON)
    lines = str(caught.value).splitlines()
    assert 2 <= len(lines) <= 10
    assert any(" more: `a` is float64, its operand `Src1` is uint8" in line for line in lines)
    with pytest.raises(MappingError, match=r"the dtype of `a` is open.*\(.*u8 x s8, "):
        amos.explore(amos.operators.get("gemm"), machine=XEON)
    units = "avx512_pmaddwd_m16k2_u8_s8_s32", "avx512_pmaddubsw_m16k4_u8_s7_s32"
    with pytest.raises(MappingError, match=r"\(u8 x s8, u8 x s8 in \[-64, 64\]\)"):
        amos.explore(amos.operators.get("gemm"), units, machine=XEON)
    with pytest.raises(ExploreError, match="expected at least one"):
        amos.explore(gemm("u8s8"), [], machine=XEON)
    with pytest.raises(UnknownNameError, match="nonesuch"):
        amos.explore(gemm("u8s8"), "nonesuch", machine=XEON)


def test_reasons_are_grouped() -> None:
    units = [amos.intrinsics.get(name) for name in amos.intrinsics.names()[:3]]
    refused = [Contender(unit, reason=why) for unit, why in zip(units, "aba", strict=True)]
    assert reasons(refused) == [f"{units[0].name} and 1 more: a", f"{units[1].name}: b"]


def _by_name(result: Exploration) -> dict[str, Contender]:
    return {each.intrinsic.name: each for each in result.intrinsics}


def test_one_trial_and_no_time() -> None:
    single = amos.explore(gemm("u8s8"), machine=XEON, trials=1, progress=False)
    assert [each.trials for each in single.intrinsics if each.trials] == [1]
    assert _by_name(single)[ROWS].reason.startswith("1 trial is enough for 1")
    brief = amos.explore(
        gemm("u8s8"), machine=XEON, trials=64, progress=False, search=SearchOptions(time_limit=1e-9)
    )
    # Without an executor a batch is begun and done at once.
    assert [each.trials for each in brief.intrinsics if each.trials] == [8]
    assert _by_name(brief)[ROWS].reason == "the search ended before its first trial"


def test_who_stagnates_gets_no_more() -> None:
    result = amos.explore(
        gemm("u8s8"), machine=XEON, trials=64, progress=False, search=SearchOptions(stagnation=2)
    )
    assert len(result.trials) < 64
    assert result.best.mapping.intrinsic is result.intrinsic


def test_named_mappings() -> None:
    """An instruction without a mapping of such a name is left out, and says so."""
    search = SearchOptions(only=("n-k",))
    result = amos.explore(gemm("u8s8"), machine=XEON, trials=8, progress=False, search=search)
    assert {trial.mapping.name for trial in result.trials} == {"n-k"}
    assert "'n-k' is no mapping of gemm on" in _by_name(result)[ROWS].reason
    with pytest.raises(MappingError, match="no instruction of 2 can be used"):
        amos.explore(
            gemm("u8s8"), [COLUMNS, ROWS], machine=XEON, search=SearchOptions(only=("k-n",))
        )


def test_what_is_fixed() -> None:
    """An instruction that cannot take a value is left out, and no other for being slower."""
    search = SearchOptions(fix=(("block.n", 4),))
    result = amos.explore(gemm("u8s8"), machine=XEON, trials=8, progress=False, search=search)
    assert result.intrinsic.name != COLUMNS
    assert {trial.schedule.as_dict()["block.n"] for trial in result.trials} == {4}
    assert "unknown schedule variable 'block.n'" in _by_name(result)[COLUMNS].reason
    with pytest.raises(MappingError, match="unknown schedule variable 'nonesuch'"):
        amos.explore(gemm("u8s8"), machine=XEON, search=SearchOptions(fix=(("nonesuch", 1),)))


def test_an_instruction_whose_kernels_fail() -> None:
    def answer(task: Task) -> Measurement:
        if task.candidate.mapping.intrinsic.name == COLUMNS:
            return Measurement(failure="crash", message="SIGILL")
        return Measurement((fake_seconds(task.candidate),) * 9, 1, 0.0, "native")

    measure = MeasureOptions(executor=Answering(answer))
    result = amos.explore(gemm("u8s8"), [COLUMNS, ROWS], trials=16, progress=False, measure=measure)
    assert result.intrinsic.name == ROWS
    assert _by_name(result)[COLUMNS].reason == "left out after 4 trials: none ran"
    assert result.failures == {"crash": 4}
    with pytest.raises(ExploreError, match="none of 16 candidates ran"):
        measure = MeasureOptions(executor=Answering(_crash))
        amos.explore(gemm("u8s8"), [COLUMNS, ROWS], trials=16, progress=False, measure=measure)


def _crash(task: Task) -> Measurement:
    return Measurement(failure="crash", message="SIGILL")


def test_a_machine_itself() -> None:
    """It has the rates of units that are named, and those that descriptions state."""
    machine = catalogue.get(XEON, [amos.intrinsics.get(name) for name in (COLUMNS, ROWS)])
    result = amos.explore(gemm("u8s8"), machine=machine, trials=8, progress=False)
    compared = {name for name, each in _by_name(result).items() if each.compared}
    assert {COLUMNS, ROWS} <= compared < _by_name(result).keys()


class Elsewhere(Answering):
    """Workers whose CPU has other features than this one, and rates that change."""

    def __init__(self, *features: str, slower: float = 1.0) -> None:
        super().__init__()
        self.features, self.slower = features, slower

    def machine(self, intrinsics: Sequence[Intrinsic], **how: object) -> Machine:
        machine = catalogue.get(XEON, intrinsics)
        rate = machine.peaks[COLUMNS]
        slow = replace(rate, interval=rate.interval * self.slower)
        return replace(machine, features=self.features, peaks={**machine.peaks, COLUMNS: slow})


def test_workers_have_features_of_their_own() -> None:
    measure = MeasureOptions(executor=Elsewhere("avx2", "fma", "avx512f", "avx512bw"))
    with pytest.raises(MappingError, match="no instruction of"):
        amos.explore(gemm("u8s8"), progress=False, measure=measure)
    features = catalogue.get(XEON).features
    measure = MeasureOptions(executor=Elsewhere(*features))
    result = amos.explore(gemm("u8s8"), trials=8, progress=False, measure=measure)
    assert {*result.intrinsic.requires} <= {*features}
    assert not any("avx_vnni" in each.intrinsic.requires for each in result.intrinsics)


def test_loops_for_all() -> None:
    measure = MeasureOptions(executor=Answering(), implementation="generic")
    result = amos.explore(gemm("u8s8"), [COLUMNS, ROWS], trials=16, progress=False, measure=measure)
    assert sum(each.trials for each in result.intrinsics) == 16
    assert result.note.endswith("as asked") or "lacks" in result.note


def test_native_where_one_is_not() -> None:
    arm = ["arm_sdot_m4k4_s8_s32", "arm_smmla_m2n2k8_s8_s32"]
    measure = MeasureOptions(
        executor=Elsewhere(*catalogue.get(XEON).features), implementation="native"
    )
    with pytest.raises(MappingError, match="no native implementation here"):
        amos.explore(gemm("s8"), arm, measure=measure)


def test_a_continued_run_keeps_its_instructions(tmp_path: Path) -> None:
    """Also where the machine is measured anew, and somewhat differently."""

    def run(slower: float, trials: int) -> Exploration:
        measure = MeasureOptions(executor=Elsewhere(*features, slower=slower))
        return amos.explore(
            gemm("u8s8"), [COLUMNS, ROWS], trials=trials, records=tmp_path / "tuning.db",
            progress=False, measure=measure,
        )  # fmt: skip

    features = catalogue.get(XEON).features
    first, again = run(1.0, 16), run(100.0, 16)
    assert again.replayed == 16
    assert [t.candidate.key for t in first.trials] == [t.candidate.key for t in again.trials]
    assert first.intrinsics == again.intrinsics
    more = run(1.0, 24)
    assert more.replayed >= 12 and len(more.trials) == 24


def test_what_a_user_sees() -> None:
    result = amos.explore(gemm("u8s8"), machine=XEON, trials=16, progress=False)
    lines = str(result).splitlines()
    assert lines[1] == f"chosen: {COLUMNS}, of 3 compared"
    assert len(lines) == 5 and "12 trials" in lines[2]
    assert "why left out" in amos.viz.text(result)
    frame = result.to_frame("intrinsics")
    assert frame["intrinsic"][0] == COLUMNS and frame["trials"].sum() == 16
    with pytest.raises(UnknownNameError, match="nonesuch"):
        result.to_frame("nonesuch")  # type: ignore[arg-type]
    alone = amos.explore(gemm("u8s8"), COLUMNS, machine=XEON, trials=4, progress=False)
    assert len(str(alone).splitlines()) == 1
    assert "why left out" not in amos.viz.text(alone)


def test_mappings_of_one_name_are_kept_apart() -> None:
    units = ["wmma_m8n32k16_f16_f32", "wmma_m32n8k16_f16_f32"]
    result = amos.explore(gemm("f16"), units, machine="a100", trials=16, progress=False)
    assert len({trial.mapping.name for trial in result.trials}) < 4
    text = str(amos.viz.text(result))
    table = text[text.index("predicted s") :]
    assert all(unit in table for unit in units)


@pytest.mark.features
@pytest.mark.long
def test_the_host_measures_and_checks() -> None:
    if not {"avx2", "fma"} <= cpu().features:
        pytest.skip("this CPU lacks avx2")
    op = amos.operators.get("gemm", m=32, n=64, k=64, dtype="f32")
    result = amos.explore(op, trials=8, progress=False)
    assert result.best.measurement is not None
    assert result.best.measurement.implementation == "native"
    assert result.best.measurement.verified_elements == 32 * 64


def test_mappings_that_cannot_be_fastest_do_not_compete() -> None:
    """Loops of one step tell no kernels apart, and idle lanes multiply the calls."""
    op = amos.operators.conv2d(n=1, c=32, k=32, p=14, q=14, r=1, s=1, layout="NHWC", dtype="u8s8")
    space = amos.enumerate_mappings(op, COLUMNS, rule="access", commute=True)
    rivals = {each.name for each in list_rivals(space)}
    assert rivals < {each.name for each in space}
    calls = {each.name: each.physical().calls for each in space}
    assert max(calls[name] for name in rivals) < max(calls.values())
    assert min(calls[name] for name in rivals) == min(calls.values())
    loops = [
        {n for g in space.find(x).groups.values() for n in g} - {"n", "r", "s"} for x in rivals
    ]
    assert len({frozenset(each) for each in loops}) == len(rivals)
