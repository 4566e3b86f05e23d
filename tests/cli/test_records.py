"""``amos records`` and what ``amos explore`` says about records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amos._progress import clock
from amos.cli import main
from amos.explore.progress import failures_text

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = ["explore", "out[i,j] += a[i,k] * weight[j,k]", VNNI]
SIZES = ["--extent", "i=6", "--extent", "j=32", "--extent", "k=8"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("records") / "tuning.db")
    assert main([*GEMM, *SIZES, "--trials", "3", "--records", path, "--json"]) == 0
    return path


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["records", *arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


@pytest.mark.long
def test_list_show_best_replay(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(capsys, "list", file)
    assert [row["number"] for row in rows if row["phase"] == "search"] == [0, 1, 2]
    assert {row["standing"] for row in rows} == {"here"}
    assert all(row["measured_seconds"] > 0 for row in rows)
    shown = _json(capsys, "show", file, "2")
    assert shown == rows[1]
    assert shown["machine"]["compilers"]["apache-tvm"]
    assert shown["canonical"]["shapes"]["weight"] == [32, 8]
    (best,) = _json(capsys, "best", file)
    again = _json(capsys, "replay", file, str(best["id"]), "--repeat", "3")
    assert again["verified_elements"] == 6 * 32
    assert again["recorded_seconds"] == best["measured_seconds"]
    for command in (["list", file], ["show", file, "1"], ["best", file]):
        assert main(["records", *command]) == 0
        assert VNNI in capsys.readouterr().out
    assert main(["records", "replay", file, "1"]) == 0
    assert "checked    192 elements against NumPy" in capsys.readouterr().out


def test_the_same_command_goes_on(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GEMM, *SIZES, "--trials", "3", "--records", file]) == 0
    printed = capsys.readouterr()
    assert "3 in 0:0" in printed.out
    assert "3 of them from the record" in printed.out
    assert printed.err == ""


def test_exchange(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, target = tmp_path / "records.jsonl", str(tmp_path / "other.db")
    count = len(_json(capsys, "list", file))
    assert main(["records", "export", file, "--output", str(lines)]) == 0
    assert main(["records", "export", file]) == 0
    assert capsys.readouterr().out == lines.read_text()
    assert main(["records", "export", file, "--output", str(lines)]) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    assert _json(capsys, "import", target, str(lines)) == dict(new=count, known=0, differing=0)
    assert _json(capsys, "merge", target, file) == dict(new=0, known=count, differing=0)
    pruned = _json(capsys, "prune", target, "--keep", "1", "--dry-run")
    assert len(pruned["removed"]) == count - 1
    assert _json(capsys, "prune", target, "--keep", "1")["left"] == 1
    assert len(_json(capsys, "list", target)) == 1
    salvaged = _json(capsys, "salvage", file, str(tmp_path / "salvaged.db"))
    assert len(salvaged["salvaged"]) == count


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "nothing.db"], "there is no such file"),
        (["show", "FILE", "99"], "there is no record 99"),
        (["replay", "FILE", "99"], "there is no record 99"),
        (["prune", "FILE"], "nothing to prune"),
        (["prune", "nothing.db", "--failed"], "there is no such file"),
        (["import", "new.db", "nothing.jsonl"], "No such file"),
        (["import", "NEW", "FILE"], "not a text file"),
        (["merge", "NEW", "nothing.db"], "there is no such file"),
        (["salvage", "FILE", "FILE"], "it exists"),
        (["list", "TEXT"], "not a database"),
    ],
)
def test_bad_input(
    file: str,
    tmp_path: Path,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("of something else entirely\n" * 100)
    names = {"FILE": file, "NEW": str(tmp_path / "new.db"), "TEXT": str(text)}
    capsys.readouterr()
    assert main(["records", *(names.get(a, a) for a in arguments)]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.long
def test_options_of_explore(capsys: pytest.CaptureFixture[str]) -> None:
    small = [*GEMM, *SIZES, "--trials", "1"]
    assert main([*small, "--flush-cache", "--memory-limit", "8192", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_seconds"] > 0
    assert main([*small, "--time-limit", "-1"]) == 2
    assert "time_limit" in capsys.readouterr().err
    assert main([*small, "--executor", "somewhere"]) == 2
    assert "expected 'local', 'tcp://" in capsys.readouterr().err


def test_texts() -> None:
    assert failures_text({"crash": 1, "timeout": 2}) == "3 failed (2 timeout, 1 crash)"
    assert [clock(s) for s in (-1, 5, 65, 7265)] == ["0:00", "0:05", "1:05", "2:01:05"]


def test_groups_are_told_apart_by_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "groups.db")
    command = [
        "explore",
        "gemm",
        VNNI,
        "--machine",
        "xeon_6240",
        "--dtype",
        "u8s8",
        "--trials",
        "1",
    ]
    sizes = ["--extent", "m=64,n=64,k=64", "--records", path, "--json"]
    for more in ([], ["--epilogue", "relu(acc)"], ["--epilogue", "acc * s[n]"]):
        assert main([*command, *sizes, *more]) == 0
    capsys.readouterr()
    title = "gemm m=64 n=64 k=64 with epilogue"
    for words in ("list", "best --all"):
        assert main(["records", words.split()[0], path, *words.split()[1:]]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "then relu(acc)" in printed
        assert "then acc * s[n]" in printed
    rows = _json(capsys, "best", path, title)
    assert [row["operator"].partition("  then ")[2] for row in rows] == ["relu(acc)", "acc * s[n]"]
    (row,) = _json(capsys, "best", path, f"{title}  then relu(acc)")
    assert row["operator"].endswith("then relu(acc)")


def test_the_best_over_intrinsics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "tuning.db")
    units = "vnni_dpbusd_m16k4_u8_s8_s32,vnni_dpbusd_m8k4_u8_s8_s32"
    command = ["explore", "gemm", units, "--machine", "xeon_6240", "--dtype", "u8s8"]
    sizes = [item for loop in "mnk" for item in ("--extent", f"{loop}=64")]
    assert main([*command, *sizes, "--trials", "16", "--records", path, "--json"]) == 0
    rows = _json(capsys, "best", path, "gemm")
    assert [row["intrinsic"] for row in rows] == units.split(",")
    assert rows[0]["predicted"] <= rows[1]["predicted"]
    assert main(["records", "best", path, "gemm"]) == 0
    printed = capsys.readouterr().out
    assert "fastest    gemm" in printed
    assert "times as fast as vnni_dpbusd_m8k4_u8_s8_s32" in printed
    assert main(["records", "best", path, "conv2d"]) == 2
    assert "unknown operator 'conv2d'" in capsys.readouterr().err
    # Of one operator the fastest is exported without its number.
    from amos.export.request import _find_best

    assert _find_best(Path(path)).intrinsic == units.split(",")[0]
