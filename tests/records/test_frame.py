"""A record file as a pandas frame."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.plan import Value
from amos.records import Measurement, Trial
from amos.records.canonical import identity_of
from amos.records.frame import COLUMNS, frame_of
from amos.records.record import Record, Run

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"


def test_a_file_is_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    for extents in (dict(m=64, n=64, k=64), dict(m=32, n=96, k=64)):
        gemm = amos.operators.resolve("gemm", extents=extents)
        result = amos.explore(gemm, VNNI, machine="xeon_6240", trials=5, records=path)
    with amos.Records(path, readonly=True) as records:
        frame = records.to_frame()
    assert tuple(frame)[: len(COLUMNS)] == COLUMNS
    assert len(frame) == 10
    assert frame["operator"].nunique() == 2
    last = frame.iloc[-1]
    assert last["mapping"] == result.trials[-1].mapping.name
    assert last["predicted_seconds"] == result.trials[-1].predicted
    schedule = last[len(COLUMNS) :].dropna().to_dict()
    assert schedule == result.trials[-1].schedule.as_dict()
    # The model alone measures nothing.
    assert frame["measured_seconds"].isna().all()


def test_times_and_failures(tmp_path: Path) -> None:
    gemm = amos.operators.resolve("gemm", extents=dict(m=64, n=64, k=64))
    result = amos.explore(gemm, VNNI, machine="xeon_6240", trials=2)
    unit = amos.intrinsics.get(VNNI)
    machine = identity_of(amos.machines.get("xeon_6240"))
    run = Run.of(gemm, unit, machine, method="ga", seed=0, options={})
    outcomes = (Measurement((1.0, 2.0, 3.0)), Measurement(failure="crash", message="no"))
    frame = frame_of(
        Record.of_trial(Trial(n, trial.candidate, 1.0, outcome), run, "now")
        for n, (trial, outcome) in enumerate(zip(result.trials, outcomes, strict=True))
    )
    assert frame["measured_seconds"].tolist() == pytest.approx([2.0, np.nan], nan_ok=True)
    assert frame["repeats"].tolist() == [3, 0]
    assert frame["failure"].tolist() == ["", "crash"]


def test_variables_of_earlier_records_have_the_keys_of_today() -> None:
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    gemm = amos.operators.resolve("gemm", extents=dict(m=64, n=64, k=64))
    result = amos.explore(gemm, unit, machine="a100", trials=1)
    machine = identity_of(amos.machines.get("a100"))
    run = Run.of(gemm, unit, machine, method="ga", seed=0, options={})
    record = Record.of_trial(result.trials[0], run, "now")
    schedule: dict[str, Value] = {"bind": "warps", "block.i1.tile": 2, "tile.i1.tile": 1}
    frame = frame_of(
        [
            replace(record, schedule=schedule),
            replace(record, schedule={"of": "a target that is not registered"}),
        ]
    )
    assert [*frame][len(COLUMNS) :] == ["bind", "tile.i1.tile", "warps.i1.tile", "of"]
    assert frame["warps.i1.tile"][0] == 2


def test_a_file_without_records(tmp_path: Path) -> None:
    with amos.Records(tmp_path / "tuning.db") as records:
        assert tuple(records.to_frame()) == COLUMNS
