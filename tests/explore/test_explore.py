"""Exploring: budgets, seeds, failures, and what comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import amos
from amos.errors import (
    AmosError,
    BuildError,
    ExploreError,
    MachineError,
    MappingError,
    UnknownNameError,
)
from amos.explore import Exploration
from amos.explore.options import MeasureOptions
from amos.ir import Operator
from amos.measure.task import Task
from amos.plan import Candidate
from amos.records import Measurement, Records, Trial
from tests.support.exploring import CONTRACT, grouped
from tests.support.fake import Answering, fake_seconds

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=32, c=16, r=3, s=3),
    shapes=dict(image=(1, 14, 14, 16)),
)
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))
TINY = Operator.parse("out[j] += a[k] * weight[j,k]", extents=dict(j=16, k=4))


def _model(op: Operator = CONV, **options: Any) -> Exploration:
    return amos.explore(op, VNNI, **grouped({"machine": "xeon_6240"} | options))


def _proposals(result: Exploration) -> list[tuple[str, str]]:
    return [(trial.mapping.name, str(trial.schedule)) for trial in result.trials]


def _host(op: Operator = CONV, crash: int = 1 << 30, **options: Any) -> Exploration:
    """Measured, as if; one in ``crash`` candidates does."""

    def answer(task: Task) -> Measurement:
        seed = sum(map(ord, str(task.candidate.schedule) + task.candidate.mapping.name))
        if seed % crash == 0:
            return Measurement(failure="crash", message="fake")
        return Measurement((1e-6 * (1 + seed % 97),), 6, 0.0, "generic")

    return _model(op, **{"machine": "host", "executor": Answering(answer)} | options)


@pytest.mark.usefixtures("short_search", "one_guard")
@pytest.mark.parametrize("method", ["ga", "random"])
def test_the_same_seed_proposes_the_same(method: str) -> None:
    for explore in (_host, _model):
        results = [explore(trials=20, seed=5, method=method) for _ in range(2)]
        assert _proposals(results[0]) == _proposals(results[1])
    assert _proposals(results[0]) != _proposals(_model(trials=20, seed=6, method=method))


_OTHER = """
import json, sys
import amos
op = amos.Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=32, c=16, r=3, s=3), shapes=dict(image=(1, 14, 14, 16)),
)
found = amos.explore(op, "vnni_dpbusd_m16k4_u8_s8_s32", machine="xeon_6240", trials=20, seed=5)
print(json.dumps([(t.mapping.name, str(t.schedule), t.predicted) for t in found.trials]))
print("tvm" in sys.modules, file=sys.stderr)
"""


@pytest.mark.long
def test_another_process_proposes_the_same() -> None:
    """Whatever the order of its sets; and the model alone needs no TVM."""
    here = [
        (t.mapping.name, str(t.schedule), t.predicted) for t in _model(trials=20, seed=5).trials
    ]
    done = subprocess.run(
        [sys.executable, "-c", _OTHER],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
    )
    assert [tuple(row) for row in json.loads(done.stdout)] == here
    assert done.stderr.strip() == "False"


@pytest.mark.usefixtures("short_search", "one_guard")
@pytest.mark.parametrize("method", ["ga", "random"])
@pytest.mark.parametrize("trials", [1, 7, 9, 17])
def test_the_budget_is_honoured_and_nothing_is_tried_twice(method: str, trials: int) -> None:
    for explore in (_host, _model):
        result = explore(trials=trials, method=method)
        assert len(result.trials) == trials
        assert len(set(_proposals(result))) == trials
        assert [trial.number for trial in result.trials] == list(range(trials))


@pytest.mark.parametrize("method", ["ga", "random"])
def test_a_space_of_one(method: str) -> None:
    result = _model(TINY, trials=10, method=method)
    assert (len(result.trials), result.space_size, result.searched) == (1, 1, 1)


@pytest.mark.parametrize("method", ["ga", "random"])
def test_a_small_space_is_used_up(method: str) -> None:
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=2, j=16, k=8))
    result = _model(op, trials=10**30, method=method)
    assert result.space_size == 2 * 3 == len(result.trials)


@pytest.mark.usefixtures("short_search", "one_guard")
def test_what_is_reported_along_the_way() -> None:
    seen: list[tuple[int, int]] = []
    spaces: list[int] = []

    def progress(trial: Trial, total: int) -> None:
        seen.append((trial.number, total))

    result = _host(
        trials=5,
        progress=progress,
        announce=lambda problem: spaces.append(problem.size),
    )
    assert seen == [(n, 5) for n in range(5)]
    assert spaces == [result.space_size]


@pytest.mark.usefixtures("short_search", "one_guard")
def test_failures_are_counted_and_never_win() -> None:
    result = _host(crash=5, trials=40)
    failed = [trial for trial in result.trials if trial.measurement and trial.measurement.failure]
    assert failed
    assert result.failures == {"crash": len(failed)}
    assert result.best not in failed
    assert result.best.seconds == min(trial.seconds for trial in result.trials)
    curve = result.history
    assert curve == sorted(curve, reverse=True)
    assert (len(curve), curve[-1]) == (40, result.best.seconds)
    frame = result.to_frame()
    assert len(frame) == 40
    assert Counter(frame["failure"])["crash"] == len(failed)


def test_every_candidate_failing_is_an_error() -> None:
    def fail(task: Task) -> Measurement:
        return Measurement(failure="build", message="no such luck")

    with pytest.raises(ExploreError, match=r"none of 3 candidates ran \(build\); .*no such luck"):
        _host(executor=Answering(fail), trials=3)


@pytest.mark.usefixtures("short_search", "one_guard")
def test_a_leader_that_turns_out_wrong_does_not_win() -> None:
    """Measured again, the fastest one fails."""
    fast = _model(machine="host", executor=Answering(), trials=8).best.candidate
    seen = Counter[Candidate]()

    def answer(task: Task) -> Measurement:
        seen[task.candidate] += 1
        if task.candidate == fast and seen[fast] > 1:
            return Measurement(failure="wrong", message="largest difference 1")
        return Measurement((fake_seconds(task.candidate),) * 9, 1, 0.0, "generic")

    result = _host(executor=Answering(answer), trials=8)
    assert result.best.candidate != fast
    assert result.failures["wrong"] == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(trials=0), ExploreError, "trials: expected a whole number from 1 on, got 0"),
        (dict(trials=-3), ExploreError, "trials: expected a whole number from 1 on, got -3"),
        (dict(trials=2.5), ExploreError, "trials: expected a whole number from 1 on, got 2.5"),
        (dict(trials=True), ExploreError, "trials: expected a whole number from 1 on, got True"),
        (dict(seed=-1), ExploreError, "seed: expected a number from 0 on, below 2\\*\\*63, got -1"),
        (
            dict(seed="x"),
            ExploreError,
            "seed: expected a number from 0 on, below 2\\*\\*63, got 'x'",
        ),
        (dict(timeout=0), ExploreError, "timeout: expected a positive number of seconds, got 0"),
        (dict(method="gaa"), UnknownNameError, "unknown search method 'gaa': did you mean 'ga'"),
        (dict(rule="papr"), UnknownNameError, "unknown rule 'papr': did you mean 'paper'"),
        (dict(machine="a10"), UnknownNameError, "unknown machine 'a10': did you mean 'a100'"),
        (dict(machine="a100"), MachineError, "machine 'a100' has no rate for intrinsic 'vnni"),
        (dict(implementation="fast"), UnknownNameError, "unknown implementation 'fast'"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[AmosError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        _model(**options)
    assert len(str(caught.value).splitlines()) <= 2


def test_an_unknown_intrinsic_and_one_that_cannot_be_used() -> None:
    with pytest.raises(UnknownNameError, match="unknown intrinsic 'vnnni'"):
        amos.explore(CONV, "vnnni", machine="xeon_6240")
    single = Operator.parse("out[i] += a[i,k]", extents=dict(i=4, k=4))
    with pytest.raises(MappingError):
        _model(single)


@pytest.mark.usefixtures("short_search", "one_guard")
def test_only_the_named_mappings_are_searched() -> None:
    result = _model(trials=6, only=("k-c", "k-rsc"))
    assert result.searched == 2
    assert {trial.mapping.name for trial in result.trials} <= {"k-c", "k-rsc"}
    with pytest.raises(MappingError, match="has no iteration 'z'"):
        _model(trials=1, only=("k-z",))


@pytest.mark.usefixtures("short_search", "one_guard")
@pytest.mark.parametrize(("seconds", "measurements"), [(1e-9, 8), (2.0, 4)])
def test_slow_candidates_are_measured_once(seconds: float, measurements: int) -> None:
    """Confirming would time them no more often; and nobody waits longer than the best needs."""
    scores: list[float] = []

    def answer(task: Task) -> Measurement:
        scores.append(task.predicted)
        return Measurement((seconds,) * 9, 1, 0.0, "generic")

    _host(executor=Answering(answer), trials=4)
    assert len(scores) == measurements
    assert max(scores[1:]) <= seconds


def test_the_contract_of_the_dictionary() -> None:
    report = json.loads(json.dumps(_model(trials=2).to_dict(), allow_nan=False))
    assert report.keys() >= CONTRACT
    assert report["measured_seconds"] is None
    assert report["predicted_seconds"] > 0


@pytest.mark.usefixtures("short_search", "one_guard")
@pytest.mark.features
def test_on_this_machine(tmp_path: Path) -> None:
    """The whole path once, with a real worker."""
    result = amos.explore(GEMM, VNNI, trials=3, seed=1, records=tmp_path / "tuning.db")
    with Records(tmp_path / "tuning.db") as records:
        rows = records.all()
    assert {row.phase for row in rows} == {"search", "confirm"}
    for row in rows:
        assert (row.verified_elements, row.max_difference) == (6 * 32, 0.0)
        assert row.times and min(row.times) > 0
    report = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert report.keys() >= CONTRACT
    assert (report["verified_elements"], report["max_difference"]) == (6 * 32, 0.0)
    assert report["intrinsic"] == VNNI
    assert report["measured_seconds"] == result.best.seconds > 0
    assert report["tops"] == pytest.approx(2 * 6 * 32 * 8 / result.best.seconds / 1e12)
    if report["implementation"] == "native":
        assert 0 < report["peak_fraction"] < 1.2
        assert result.emulated == ""
    assert result.machine.name == "host"
    # Of loops that stand for an instruction no time is told.
    assert (result.prediction is not None) == (report["implementation"] == "native")
    assert result.best.mapping.name in str(result) or str(result.best.mapping) in str(result)
    kernel = amos.build(result.best)
    assert kernel.candidate == result.best.candidate


@pytest.mark.parametrize(
    ("unit", "machine"),
    [
        ("vta_gemm_m1n16k16_s8_s32", "vta_pynq"),
        ("gemmini_matmul_m16n16k16_s8_s32", "gemmini"),
    ],
)
@pytest.mark.parametrize("executor", [None, "model"])
def test_what_no_stream_computes_is_refused_before_any_trial(
    unit: str, machine: str, executor: str | None
) -> None:
    op = amos.operators.get("gemm", dtype="s8", m=16, n=16, k=16)
    tried: list[object] = []
    for spoiled, words in (
        (op.with_result("top[m] max= acc"), r"stores one result, not also top\[m\] max= acc$"),
        (op.with_epilogue("acc * 0.5"), r"(ALU|stores compute)"),
        (op.with_output("y[n, m]"), r"stores whole fragments of the output, not y\[n, m\]$"),
    ):
        with pytest.raises(BuildError, match=words):
            amos.explore(
                spoiled,
                unit,
                machine=machine,
                trials=2,
                measure=MeasureOptions(executor=executor),
                announce=tried.append,
                progress=False,
            )
    assert not tried
