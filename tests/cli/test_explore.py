"""``amos explore``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path

import pytest

import amos
from amos.cli import main
from amos.codegen.tir.tensor_intrin import implementation
from amos.machine.cpu import cpu
from amos.records import Records
from tests.support.drills import leftovers, living
from tests.support.exploring import CONTRACT

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = ["explore", "out[i,j] += a[i,k] * weight[j,k]", VNNI]
SIZES = ["--extent", "i=6", "--extent", "j=32", "--extent", "k=8"]
EXECUTES = implementation(amos.intrinsics.get(VNNI), cpu().features) == "native"
MODEL = [*GEMM, *SIZES, "--machine", "xeon_6240"]


@pytest.mark.long
def test_searches_with_and_without_an_epilogue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As JSON, into one file: neither goes on with the other's records."""
    path = str(tmp_path / "tuning.db")
    text = "u8(relu((acc + bias[j]) * scale[j]))"
    command = [*GEMM, *SIZES, "--trials", "1", "--records", path, "--json"]
    assert main([*command, "--epilogue", text, "--dtype", "bias=s32"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verified_elements"], report["max_difference"]) == (6 * 32, 0)
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "its 2 records are of another operator, kept and not used" in printed.err
    report = json.loads(printed.out)
    assert report.keys() >= CONTRACT
    assert (report["verified_elements"], report["max_difference"]) == (6 * 32, 0)
    assert report["intrinsic"] == VNNI
    assert (report["trials"], report["replayed"]) == (1, 0)
    assert report["measured_seconds"] > 0
    assert report["implementation"] in ("native", "generic")
    with Records(path) as records:
        rows = records.all()
    assert {row.canonical.get("epilogue", {}).get("text") for row in rows} == {text, None}
    assert [row.phase for row in rows].count("search") == 2
    assert main(["records", "replay", path, "1"]) == 0
    capsys.readouterr()
    assert main([*command, "--epilogue", "u8(acc * scale[k])"]) == 2
    assert "'scale' is indexed by 'k', which is no iteration" in capsys.readouterr().err


@pytest.mark.long
def test_stores_results_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "tuning.db")
    command = [*GEMM, *SIZES, "--trials", "1", "--records", path, "--json"]
    assert main([*command, "--output", "y[j//16, i, j%16 + 4]", "--shape", "y=2,6,20"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verified_elements"], report["max_difference"]) == (2 * 6 * 20, 0)
    assert main(["records", "replay", path, "1"]) == 0
    capsys.readouterr()
    more = ["--result", "f[j,i] = acc * s[j]", "--result", "top[i] max= acc", "--shape", "s=40"]
    assert main([*command, *more]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verified_elements"], report["max_difference"]) == (6 * 32 * 2 + 6, 0)
    assert main([*command, "--result", "top[i, j] max= acc"]) == 2
    assert "there is nothing to reduce" in capsys.readouterr().err
    for output, says in (("y[i]", "'j' does not index it"), ("y[i, j", "is never closed")):
        assert main([*command, "--output", output]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.long
def test_searches_with_prologues(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "tuning.db")
    command = [*GEMM, *SIZES, "--trials", "1", "--records", path, "--json"]
    first, second = "a[i,k] = u8(relu(x[k,i] * 2) - zero[])", "weight = s8(w[j,k] + zero[])"
    both = ["--prologue", first, "--prologue", second, "--dtype", "zero=s8", "--dtype", "w=s8"]
    assert main([*command, *both]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verified_elements"], report["max_difference"]) == (6 * 32, 0)
    with Records(path) as records:
        for row in records.all():
            assert [x["source"] for x in row.canonical["prologues"]] == ["a[i, k]", "weight[j, k]"]
            names = [(x.name, x.dtype) for x in row.rebuild().mapping.operator.inputs]
            assert names == [("x", "float32"), ("zero", "int8"), ("w", "int8")]
    assert main(["records", "replay", path, "1"]) == 0
    capsys.readouterr()
    assert main([*command, "--prologue", "a x[i,k]"]) == 2
    assert "expected SOURCE=EXPRESSION, got 'a x[i,k]'" in capsys.readouterr().err
    assert main([*command, "--prologue", "a = x[i,k] * s[j]"]) == 2
    assert "'s' is indexed by 'j', which is no dimension of a" in capsys.readouterr().err


@pytest.mark.features
@pytest.mark.long
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
    assert bool(re.search(r"predicted  [\d.]+ ms\n", text)) == EXECUTES  # of loops none is told
    assert re.search(r"measured   [\d.]+ ms, median of \d+, ± [\d.]+%\n", text)
    share = r", [\d.]+% of the [\d.]+ Top/s measured peak" if EXECUTES else "\n"
    assert re.search(rf"speed      [\d.]+ Top/s{share}", text)
    # 5: the check
    assert "checked    192 elements against NumPy, largest difference 0\n" in text


@pytest.mark.features
@pytest.mark.long
def test_the_generic_implementation_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GEMM, *SIZES, "--trials", "1", "--implementation", "generic"]) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("note")]
    assert len(lines) == 1
    assert "compiled through the intrinsic's generic implementation" in lines[0]
    assert lines[0].endswith("as asked" if EXECUTES else "this CPU lacks avx512_vnni")
    assert re.search(r"speed      [\d.]+ Top/s\n", text)


def test_the_model_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MODEL, "--trials", "4"]) == 0
    text = capsys.readouterr().out
    assert "on xeon_6240 (not run)" in text
    assert "measured   " not in text
    assert main([*MODEL, "--trials", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_seconds"] is None


def test_a_front_of_one_trial_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MODEL, "--minimize", "time,memory", "--trials", "1"]) == 0
    table = capsys.readouterr().out.partition("the fastest at each size of its workspace")[2]
    assert "workspace KiB" in table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*MODEL, "--trials", "0"], "trials: expected a whole number from 1 on, got 0"),
        ([*MODEL, "--seed", "-1"], "seed: expected a number from 0 on, below 2**63, got -1"),
        ([*MODEL, "--method", "gaa"], "unknown search method 'gaa': did you mean 'ga' or"),
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
        (["explore", "conv2d", "vnnni"], "unknown intrinsic 'vnnni'"),
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


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes live"
)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.long
def test_an_interrupt_leaves_nothing_behind(end: signal.Signals, tmp_path: Path) -> None:
    """No process, no file, and a record file that the next run can go on with."""
    command = [sys.executable, "-m", "amos", *GEMM, *SIZES, "--trials", "1000"]
    mark, folder = uuid.uuid4().hex, tmp_path / "temporary"
    folder.mkdir()
    run = subprocess.Popen(
        [*command, "--records", str(tmp_path / "tuning.db"), "--timeout", "20"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that starts the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | {"AMOS_DRILL": mark, "TMPDIR": str(folder)},
    )
    try:
        # The command, the guard and the worker.
        deadline = time.monotonic() + 60
        while len(living(mark)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(living(mark)) >= 3
        time.sleep(0.5)
        if end is signal.SIGINT:
            os.killpg(run.pid, end)  # as a terminal does
        else:
            run.send_signal(end)
        _, errors = run.communicate(timeout=30)
        assert run.returncode == (130 if end is signal.SIGINT else -end)
        assert "Traceback" not in errors
        assert leftovers(mark, 30) == []
        assert list(folder.iterdir()) == []
        with Records(tmp_path / "tuning.db") as records:
            records.all()
    finally:
        run.kill()
        run.wait()


@pytest.mark.long
def test_the_bar_shows_what_is_going_on() -> None:
    """On a terminal: trials, the best, failures by kind, time left; and nothing is left of it."""
    command = [*MODEL, "--trials", "200"]
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    run = subprocess.Popen(
        [sys.executable, "-m", "amos", *command],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "150"},
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
        while chunk := os.read(leader, 4096):
            shown += chunk
    os.close(leader)
    assert run.stdout is not None
    text = run.stdout.read().decode()
    run.stdout.close()
    assert run.wait() == 0
    assert "trials     " in text
    assert "\x1b" not in text
    assert b"searching" in shown
    assert re.search(rb"\d+/200", shown)
    assert b"best " in shown
    assert b" left" in shown
