"""``amos export``: how a record is named, and what is said when it is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import amos
from amos.cli import main


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels that the model ranked; nothing is measured."""
    file = tmp_path_factory.mktemp("records") / "r.db"
    for j in (16, 48):
        op = amos.Operator.parse(
            "out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=j, k=12), name=f"gemm{j}"
        )
        unit = "vnni_dpbusd_m16k4_u8_s8_s32"
        amos.explore(op, unit, machine="xeon_4110", trials=3, seed=0, records=file)
    return file


@pytest.mark.long
def test_by_number(records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"{records}:2", "--format", "c", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.split()
    assert [Path(name).name for name in printed][0] == "gemm16.h"
    assert all(Path(name).stat().st_size for name in printed)
    again = ["export", f"{records}:2", "--format", "c", "--out", str(tmp_path)]
    assert main(again) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*again, "--force", "--name", "other", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "c"
    assert str(tmp_path / "other.c") in report["files"]


def test_from_a_json_file(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["records", "show", str(records), "4", "--json"])
    shown = tmp_path / "record.json"
    shown.write_text(capsys.readouterr().out)
    assert main(["export", str(shown), "--format", "c", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "gemm48.c").exists()
    row = json.loads(shown.read_text())
    row["schedule"] = {}
    shown.write_text(json.dumps(row))
    capsys.readouterr()
    assert main(["export", str(shown), "--format", "c", "--out", str(tmp_path / "x")]) == 2
    assert "not those that were written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{db}", "the best of 2 kernels; name one: "),
        ("{db}:99", "there is no record 99"),
        ("{tmp}/none.db", "there is no such file"),
        ("{tmp}/none.json", "No such file"),
        ("{tmp}/bad.json", "expected one record as JSON"),
        ("{tmp}/list.json", "expected an object, got list"),
    ],
)
def test_what_is_no_record(
    records: Path, name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    text = name.format(db=records, tmp=tmp_path)
    assert main(["export", text, "--format", "c", "--out", str(tmp_path / "x")]) == 2
    assert message in capsys.readouterr().err
