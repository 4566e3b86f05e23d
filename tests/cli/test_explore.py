"""``amos explore``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import amos
from amos.cli import main
from amos.cli.explore import _generic
from amos.explore import Records

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = ["explore", "out[i,j] += a[i,k] * weight[j,k]", VNNI]
SIZES = ["--extent", "i=6", "--extent", "j=32", "--extent", "k=8"]
MODEL = [*GEMM, *SIZES, "--machine", "xeon_6240"]

CONTRACT = [
    "operator",
    "intrinsic",
    "mapping",
    "schedule",
    "predicted_seconds",
    "measured_seconds",
    "tops",
    "peak_fraction",
    "verified_elements",
    "max_difference",
]


def test_json_end_to_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    assert main([*GEMM, *SIZES, "--trials", "2", "--json", "--records", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert set(CONTRACT) <= set(found)
    assert (found["verified_elements"], found["max_difference"]) == (6 * 32, 0)
    assert found["intrinsic"] == VNNI
    assert found["trials"] == 2
    assert found["measured_seconds"] > 0
    assert found["implementation"] in ("native", "generic")
    with Records(path) as records:
        assert [r["phase"] for r in records.rows()].count("search") == 2


def test_text_has_the_five_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GEMM, *SIZES, "--trials", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    text = printed.out
    # 1: the operator and the intrinsic, readable
    assert "out[i, j] += a[i, k] * weight[j, k]  with i=6, j=32, k=8  (a: u8, weight: s8" in text
    assert "Dst[i1] += Src1[r1] * Src2[i1, r1]" in text
    assert "memory   reg.Src1[r1]" in text
    # 2: how many mappings each rule gives, and those searched
    assert "mappings   paper 1, access 1, gather 1" in text
    assert re.search(r"searched   1 under rule .access., \d+ assignments", text)
    # 3: the winner in the form of Table 5, with its schedule
    assert "winner     [i1, r1] ← [j mod 16, k mod 4]" in text
    assert "schedule   order=" in text
    # 4: predicted, measured, speed and share of the peak
    assert re.search(r"predicted  [\d.]+ ms\n", text)
    assert re.search(r"measured   [\d.]+ ms, median of \d+, ± [\d.]+%\n", text)
    assert re.search(r"speed      [\d.]+ Top/s, [\d.]+% of the [\d.]+ Top/s measured peak", text)
    # 5: the check
    assert "checked    192 elements against NumPy, largest difference 0\n" in text


def test_the_generic_implementation_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GEMM, *SIZES, "--trials", "1", "--implementation", "generic"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert len(lines) == 1
    assert "compiled through the intrinsic's generic implementation" in lines[0]


def test_a_cpu_without_the_instruction_is_told_so() -> None:
    op = amos.Operator.parse("out[j] += a[k] * weight[j,k]", extents=dict(j=16, k=4))
    result = amos.explore(op, VNNI, machine="xeon_6240", trials=1)
    other = replace(result, machine=replace(result.machine, features=("fpu",)))
    assert _generic(other).endswith("this CPU lacks avx512_vnni")


def test_the_model_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MODEL, "--trials", "4"]) == 0
    text = capsys.readouterr().out
    assert "on xeon_6240 (not run)" in text
    assert "measured   " not in text
    assert main([*MODEL, "--trials", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_seconds"] is None


def test_layers_and_library_operators(capsys: pytest.CaptureFixture[str]) -> None:
    common = [VNNI, "--machine", "xeon_6240", "--trials", "1", "--json"]
    assert main(["explore", "resnet18:C5", *common]) == 0
    assert main(["explore", "gemm", *common]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*MODEL, "--trials", "0"], "trials: expected a positive number, got 0"),
        ([*MODEL, "--seed", "-1"], "seed: expected a number from 0 on, got -1"),
        ([*MODEL, "--method", "gaa"], "unknown search method 'gaa': did you mean 'ga'?"),
        ([*MODEL, "--rule", "papr"], "papr"),
        ([*MODEL, "--timeout", "0"], "timeout"),
        ([*MODEL, "--records", "missing/tuning.db"], "unable to open database file"),
        ([*MODEL, "--implementation", "fast"], "unknown implementation 'fast'"),
        ([*MODEL, "--constant", "colour"], "constant 'colour' is not an input"),
        ([*GEMM, *SIZES, "--machine", "a10"], "unknown machine 'a10': did you mean 'a100'"),
        ([*GEMM, *SIZES, "--machine", "a100"], "machine 'a100' has no rate for intrinsic"),
        ([*GEMM, "--extent", "i=6"], "no extent given for"),
        ([*GEMM, "--extent", "i=0", *SIZES[2:]], "i"),
        (["explore", "conv2", VNNI], "unknown operator 'conv2': did you mean 'conv2d'"),
        (["explore", "conv2d", "vnni"], "unknown intrinsic 'vnni'"),
        (["explore", "conv2d", VNNI, "--dtype", "f16"], "float16"),
        (["explore", "out[i] += a[i,k]", VNNI, "--extent", "i=4", "--extent", "k=4"], "out"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.splitlines()) <= 3


def test_a_caret_marks_a_syntax_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "out[i,j] += a[i,k] ** b[k,j]", VNNI]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[2].strip() == "^"


def _workers(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, of, *_ = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(of) == parent and state not in "ZX":
            found.append(int(status.parent.name))
    return found


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes live"
)
def test_an_interrupt_leaves_no_worker_behind() -> None:
    command = [sys.executable, "-m", "amos", *GEMM, *SIZES, "--trials", "1000"]
    run = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 60
        while not (workers := _workers(run.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        assert workers
        time.sleep(0.5)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, errors = run.communicate(timeout=30)
        assert run.returncode == 130
        assert "Traceback" not in errors
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        run.kill()
        run.wait()
