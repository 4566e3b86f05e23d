"""Checking exported kernels: records, suites for another machine, kernels that do harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amos import operators
from amos.cli import main
from amos.cuda import gpu_check
from amos.cuda.check import GpuRow, summary
from amos.ir import Operator
from amos.plan import Candidate

#: The fixture that exports a kernel.
Exporter = Callable[..., Candidate]


def test_measured_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], driver: str, nvcc: None
) -> None:
    """The best of a search on the model, exported, measured, and taken into records."""
    sizes = ["--extent", "m=48", "--extent", "n=40", "--extent", "k=64"]
    search = ["explore", "gemm", "wmma_m16n16k16_f16_f32", "--machine", "a100", *sizes]
    out = tmp_path / "top"
    exported = ["--executor", "model", "--export", str(out), "--top", "2", "--json"]
    assert main([*search, "--trials", "6", *exported]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    shutil.rmtree(out / "2")
    lines, store = tmp_path / "measured.jsonl", tmp_path / "records.db"
    check = ["gpu-check", str(out), "--driver", driver, "--no-pytorch"]
    assert main([*check, "--records", str(lines)]) == 0
    assert main(["records", "import", str(store), str(lines)]) == 0
    capsys.readouterr()
    assert main(["records", "list", str(store), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["machine"]["name"] == "a100"
    assert main(["export", f"{store}:{row['id']}", "--format", "cuda", "--out", str(tmp_path)]) == 0
    host = [*search[:4], "host", *sizes, "--export", str(out)]
    capsys.readouterr()
    assert main(host) == 2
    assert "'host' is no GPU" in capsys.readouterr().err


@pytest.mark.long
def test_suite_for_another_machine(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    nvcc: None,
) -> None:
    """Everything is written here, and checked by what was written, without AMOS."""
    monkeypatch.setattr("amos.operators.TABLE_6", {"gemm": 1})
    monkeypatch.setattr("amos.cli.gpu_records._LARGE", 48)
    monkeypatch.setattr(gpu_check, "TYPES", dict(list(gpu_check.TYPES.items())[:2]))
    small = dict(m=40, n=24, k=48)
    plain = operators.get

    def get(name: str, dtype: str, **sizes: int) -> Operator:
        defaults = operators.builder(name).defaults
        return plain(
            name, dtype=dtype, **({k: v for k, v in small.items() if k in defaults} | sizes)
        )

    monkeypatch.setattr("amos.operators.get", get)
    suite = tmp_path / "suite"
    command = ["gpu-check", str(suite), "--write", "--shapes", "1", "--trials", "2", "--top", "1"]
    assert main(command) == 0
    assert "python" in capsys.readouterr().out
    folders = sorted(str(p.parent.relative_to(suite)) for p in suite.rglob("launch.json"))
    random = [f"random/gemm_{kind}" for kind in ("f16_f16_0", "f16_f32_0", "f16_f32_epilogue")]
    best = [f"{group}/wmma/1" for group in ("batch1/gemm", "gemm/gemm_48")]
    best += [name.replace("wmma", "mma") for name in best]
    assert folders == sorted(random + best)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = [sys.executable, "-P", "-c", _WITHOUT, str(suite)]
    hasten(suite)
    none = subprocess.run(
        [*script, "--driver", "libno.so.1"], capture_output=True, text=True, env=environment
    )
    assert none.returncode == 2 and none.stderr.count("\n") == 1
    assert "there is no NVIDIA driver here (libno.so.1)" in none.stderr
    done = subprocess.run(
        [*script, "--driver", driver, "--no-pytorch"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(folders)} of {len(folders)} kernels are right" in done.stdout
    report = json.loads((suite / "results.json").read_text())
    assert len(report["rows"]) == len(folders) and all(row["correct"] for row in report["rows"])
    store = tmp_path / "store.db"
    assert main(["records", "import", str(store), str(suite / "records.jsonl")]) == 0
    assert "4 added" in capsys.readouterr().out


#: Runs check.py of a folder with AMOS out of reach.
_WITHOUT = """
import runpy, sys
sys.modules["amos"] = None
folder = sys.argv[1]
sys.path.insert(0, folder)
sys.argv[0] = folder + "/check.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_kernel_that_harms_its_process(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, nvcc: None
) -> None:
    """The others are checked all the same, by another process."""
    for n in (1, 2):
        exported(tmp_path / "all" / str(n), seed=n)
    broken = tmp_path / "all" / "1" / "kernel.cu"
    broken.write_text(broken.read_text().replace("__syncthreads();", "", 1))
    monkeypatch.setattr("amos.cuda.check._PATIENCE", 60.0)
    first, second = gpu_check.check_folder(tmp_path / "all", timed=False, library=driver)
    assert first.problem or not first.correct
    assert second.correct and not second.problem


def test_modules_of_the_working_directory_are_not_imported(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, nvcc: None
) -> None:
    """The process of the kernels starts where the user is, whose files may have any name."""
    exported(tmp_path / "all" / "1", seed=1)
    here = tmp_path / "here"
    here.mkdir()
    for name in ("re", "json", "select"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the working directory')\n")
    monkeypatch.chdir(here)
    (row,) = gpu_check.check_folder(tmp_path / "all", timed=False, library=driver)
    assert row.correct, row.problem


@pytest.fixture(scope="module")
def three(exported: Exporter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three kernels, and what checks them without AMOS."""
    folder = tmp_path_factory.mktemp("three")
    for n, name in enumerate(("first", "second", "third")):
        exported(folder / name, seed=n, name=name)
    gpu_check.write_check(folder)
    hasten(folder)
    return folder


def hasten(folder: Path) -> None:
    """Timings of a folder's kernels that take little time themselves."""
    path = folder / "timing.py"
    text = path.read_text().replace("_SPAN, _MOST = 5.0, 1000", "_SPAN, _MOST = 0.1, 3")
    assert "_MOST = 0.1, 3" in text and "_WARM_UP = 0.1" in text
    path.write_text(text.replace("_WARM_UP = 0.1", "_WARM_UP = 0.0"))


def checked(
    folder: Path, driver: str, *options: str, **more: str
) -> tuple[int, str, list[dict[str, Any]]]:
    """check.py in a process of its own: its status, what it printed, the rows that it left."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
    (folder / "results.json").unlink(missing_ok=True)
    script = [sys.executable, "-P", "-c", _WITHOUT, str(folder), "--driver", driver, *options]
    done = subprocess.run(script, capture_output=True, text=True, env=environment)
    results_path = folder / "results.json"
    rows = json.loads(results_path.read_text())["rows"] if results_path.exists() else []
    return done.returncode, done.stdout + done.stderr, rows


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("cuLaunchKernel:second", "cuLaunchKernel: an illegal memory access was encountered"),
        ("cuGraphLaunch", "cuGraphLaunch: an illegal memory access was encountered"),
    ],
)
def test_a_kernel_that_faults(three: Path, driver: str, nvcc: None, fails: str, words: str) -> None:
    """Every later call of its process fails; what is said is the first, and the others go on."""
    passing = [] if "Graph" in fails else ["first", "third"]
    options = ["--no-pytorch", *(["--no-time"] if passing else [])]
    status, printed, rows = checked(three, driver, *options, FAKE_CUDA_FAIL=fails)
    assert status == 1 and [row["kernel"] for row in rows] == ["first", "second", "third"]
    assert rows[1]["problem"] == words and f"second: {words}" in printed
    assert [row["kernel"] for row in rows if row["correct"] and not row["problem"]] == passing


def test_pytorch_that_fails(three: Path, driver: str, nvcc: None, tmp_path: Path) -> None:
    """An error of PyTorch is none of the kernel, which was measured already."""
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    @staticmethod\n    def is_available():\n"
        "        print('PyTorch says hello')\n"
        "        raise RuntimeError('CUDA error: out of memory\\nand more')\n"
    )
    status, printed, rows = checked(three, driver, PYTHONPATH=str(tmp_path))
    assert status == 0, printed
    assert len(rows) == 3 and all(row["correct"] and row["seconds"] > 0 for row in rows)
    assert {row["remark"] for row in rows} == {"PyTorch: RuntimeError: CUDA error: out of memory"}
    assert "3 of 3 kernels are right" in printed


@pytest.mark.long
def test_damaged_folders(three: Path, driver: str, nvcc: None, tmp_path: Path) -> None:
    """Neither a launch nor a record that cannot be read ends the run, nor one that hangs."""
    shutil.copytree(three, tmp_path / "all")
    (tmp_path / "all" / "first" / "launch.json").write_text("{")
    (tmp_path / "all" / "third" / "record.json").write_text("{}")
    check = tmp_path / "all" / "check.py"
    check.write_text(check.read_text().replace("_PATIENCE = 180.0", "_PATIENCE = 6.0"))
    status, printed, rows = checked(
        tmp_path / "all", driver, "--no-time", FAKE_CUDA_HANG="cuLaunchKernel:second"
    )
    assert status == 1 and "1 of 3 kernels are right" in printed
    assert "no launch.json that can be read" in rows[0]["problem"]
    assert rows[1]["problem"] == "it took more than 6 s"
    assert rows[2]["correct"]
    assert "record.json: its values are not those" in printed
    assert (tmp_path / "all" / "records.jsonl").read_text() == ""


def test_what_rows_come_to() -> None:
    def row(name: str, seconds: float, library_seconds: float | None) -> GpuRow:
        ways = (
            None
            if library_seconds is None
            else {"eager": 4 * library_seconds, "eager, graph": library_seconds}
        )
        return GpuRow(name, "G", correct=True, seconds=seconds, baseline=ways)

    rows = [row("batch1/a/wmma/1", 1.0, 2.0), row("batch1/a/mma/1", 0.5, 2.0)]
    rows += [row("batch1/b/wmma/1", 1.0, 1.0), row("random/x", 1.0, 9.0)]
    rows += [row("gemm/g/wmma/1", 2.0, 1.0), row("batch1/c/wmma/1", 1.0, None)]
    totals = summary(rows)
    assert totals["kernels"] == totals["right"] == 6
    assert totals["batch1"]["of"] == {"a": 4.0, "b": 1.0}
    assert totals["batch1"]["speed"] == pytest.approx(2.0)
    assert totals["batch1"]["calls"] == pytest.approx(8.0)
    assert totals["gemm"]["speed"] == pytest.approx(0.5)
