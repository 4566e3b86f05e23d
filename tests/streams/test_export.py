"""From a search on VTA to files of its instructions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.cli.app import main
from amos.errors import ExportError
from amos.explore.replay import replay
from amos.records import Records
from amos.streams.vta import Encoding
from tests.support.streams import OPERATORS, VTA


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("vta") / "records.db"
    result = amos.explore(
        OPERATORS["gemm"], VTA, machine="vta_pynq", trials=4, records=file, progress=False
    )
    report = result.to_dict()
    assert report["simulated"] is True
    assert report["measured_seconds"] == result.best.seconds
    assert report["max_difference"] == 0
    assert report["verified_elements"] == 21 * 40
    assert {t.measurement.failure for t in result.trials if t.measurement} == {""}
    cycles = result.best.seconds * 1e8
    assert cycles == pytest.approx(round(cycles))
    return file


def test_a_run_goes_on_from_its_records(record: Path) -> None:
    again = amos.explore(
        OPERATORS["gemm"], VTA, machine="vta_pynq", trials=4, records=record, progress=False
    )
    assert again.replayed == 4


def test_a_record_is_simulated_again(record: Path) -> None:
    with Records(record, readonly=True) as records:
        again = replay(records.get(1))
    assert again.measurement.implementation == "simulated"
    assert again.measurement.seconds == again.recorded_seconds


def test_the_model_alone_measures_nothing() -> None:
    model = amos.MeasureOptions(executor="model")
    result = amos.explore(
        OPERATORS["gemm"], VTA, machine="vta_pynq", trials=4, measure=model, progress=False
    )
    assert result.to_dict()["measured_seconds"] is None
    assert not result.simulated


def test_an_export_holds_what_runs(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(record), "--format", "vta"]) == 0
    tmp_path /= "gemm"
    report = json.loads((tmp_path / "stream.json").read_text())
    encoding = Encoding(**report["index_bits"])
    data = (tmp_path / "stream.bin").read_bytes()
    decoded = [encoding.decode(data[n : n + 16]) for n in range(0, len(data), 16)]
    assert len(decoded) == len(report["instructions"])
    assert [getattr(trial, "sram", None) for trial in decoded] == [
        fields.get("sram") for fields in report["instructions"]
    ]
    lines = (tmp_path / "stream.txt").read_text().splitlines()
    assert len(lines) == len(decoded)
    assert lines[-1].split()[1:3] == ["compute", "finish"]
    buffers = {}
    for tensor in report["tensors"]:
        values = np.frombuffer((tmp_path / tensor["file"]).read_bytes(), tensor["dtype"])
        buffers[tensor["name"]] = values.reshape(tensor["shape"])
        assert tensor["address"] % 4096 == 0
    assert buffers["uops"].dtype == np.uint32
    with Records(record, readonly=True) as records:
        best = min(records.all(), key=lambda trial: trial.seconds)
    assert report["simulated_cycles"] == round(best.seconds * 1e8)
    assert best.schedule == report["schedule"]


def test_other_kernels_are_no_streams(record: Path, tmp_path: Path) -> None:
    (mapping, *_) = amos.enumerate_mappings(OPERATORS["gemm"], VTA)
    with pytest.raises(
        ExportError, match="expected the record of a kernel for vta_pynq, got one for host"
    ):
        amos.export(mapping, "vta", tmp_path)
