"""``amos predict``, ``amos machines`` and ``amos records``, on a described machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amos import intrinsics, machines
from amos.cli import main
from amos.intrinsics import Intrinsic, Timing
from amos.machine import Machine, catalogue
from amos.machine.machine import Peak

WMMA = "wmma_m16n16k16_f16_f32"


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def test_predictions_are_sorted_and_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "conv2d", WMMA, "--machine", "a100", "--samples", "2", "--seed", "7"]
    report = _json(arguments, capsys)
    seconds = [row["predicted_seconds"] for row in report["predictions"]]
    assert len(seconds) == 49
    assert seconds == sorted(seconds)
    assert all(second > 0 for second in seconds)
    assert _json(arguments, capsys) == report


def test_predictions_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "gemm", WMMA, "--machine", "a100", "--samples", "0", "--limit", "1"]
    assert main(arguments) == 0
    assert "m-n-k" in capsys.readouterr().out


def test_an_operator_without_mappings_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "gemm", "avx2_fmadd_lanes_m8_f32_f32", "--machine", "xeon_6240"]) == 2
    assert "no mapping under rule 'access' to search (mappings: paper 0," in capsys.readouterr().err


def test_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert _json(["machines", "list"], capsys) == list(machines.names())
    assert main(["machines", "list"]) == 0
    assert capsys.readouterr().out.split() == list(machines.names())
    shown = _json(["machines", "show", "a100"], capsys)
    assert shown["name"] == "a100"
    assert shown["levels"][-1]["capacity"] == 0
    assert main(["machines", "show", "a100"]) == 0
    assert capsys.readouterr().out.startswith("a100")


def test_records_show_what_was_explored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tuning.db")
    explored = ["explore", "gemm", WMMA, "--machine", "a100", "--trials", "3", "--records", file]
    assert main(explored) == 0
    capsys.readouterr()
    rows = _json(["records", "list", file], capsys)
    assert [row["number"] for row in rows] == [0, 1, 2]
    assert rows[0]["mapping"] == {"i1": ["m"], "i2": ["n"], "r1": ["k"]}
    assert [row["number"] for row in _json(["records", "list", file, "--limit", "1"], capsys)] == [
        2
    ]
    assert main(["records", "list", file]) == 0
    shown = capsys.readouterr().out
    assert "gemm" in shown and "m-n-k" in shown


def test_an_operator_of_a_single_call(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--extent", "i=4", "--extent", "j=4", "--extent", "k=4"]
    argv = ["predict", "o[i,j] += a[i,k] * b[k,j]", "wmma_m16n16k16_f16_f32", "--machine", "a100"]
    assert main([*argv, *sizes, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["levels"][0]["trips"] == 1
    assert 0 < report["seconds"] < 1


@pytest.mark.parametrize(("machine", "native"), [("", False), ("host", False), ("", True)])
def test_the_rate_of_a_description_counts_where_the_host_has_none(
    machine: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = catalogue.get("xeon_6240").clock
    requests: list[str] = []

    def measured(units: Sequence[Intrinsic]) -> Machine:
        requests.extend(unit.name for unit in units)
        peaks = {unit.name: Peak(1e-9, 1e-9, "measured") for unit in [own]}
        return replace(catalogue.get("xeon_6240"), name="host", peaks=peaks)

    plain = intrinsics.get("avx2_fmadd_m8_f32_f32")
    own = replace(plain, name="own", timing=(Timing(3.0, "a manual", machine=machine),))
    monkeypatch.setattr("amos.measure.host_machine", measured)
    monkeypatch.setattr(machines, "_runs", lambda _: native)
    peak = machines.get("host", [own]).peak("own")
    assert requests == (["own"] if native else [])
    assert (peak.source == "measured") == native
    assert peak.interval == (1e-9 if native else 3.0 / clock)
    elsewhere = replace(own, timing=(Timing(3.0, "a manual", machine="Zen 9"),))
    assert machines.get("host", [elsewhere]).peak("own").source == "measured"
