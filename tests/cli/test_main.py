"""How a run of the command line ends, whatever was asked."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from amos import __version__
from amos.cli import main

AMOS = [sys.executable, "-m", "amos"]
WMMA = "wmma_m16n16k16_f16_f32"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"amos {__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["map"],
        ["explore"],
        ["predict"],
        ["operators"],
        ["intrinsics"],
        ["intrinsics", "list"],
        ["intrinsics", "show"],
        ["intrinsics", "check"],
        ["records"],
        ["machines"],
        ["machines", "list"],
        ["machines", "show"],
    ],
    ids=" ".join,
)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: amos")
    assert printed.err == ""


@pytest.mark.parametrize("command", ["map", "predict", "space", "explore"])
def test_an_operator_is_described_alike(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [command, "gemm", WMMA, "--machine", "a100", "--extent", "k=16", "--dtype", "f16"]
    more = ["--prologue", "a[m,k] = a[m,k] * s[m]", "--epilogue", "relu(acc + bias[q])"]
    assert main([*arguments, *more]) == 2
    assert "'bias' is indexed by 'q', which is no iteration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["map"], "Missing argument 'OPERATOR'"),
        (["nonsense"], "No such command 'nonsense'"),
        (["map", "conv2d", WMMA, "--nonsense"], "No such option: --nonsense"),
        (["map", "conv2d", WMMA, "--rule", "loose"], "'loose' is not one of 'paper', 'access'"),
        (["map", "conv2d", WMMA, "--extent", "n"], "'n' is not NAME=SIZE"),
        (["map", "conv2d", WMMA, "--extent", "n=two"], "'n=two': 'two' is not a whole number"),
        (["map", "conv2d", WMMA, "--shape", "image=1,x"], "'image=1,x': 'x' is not a whole"),
        (["map", "conv2d", WMMA, "--dtype", "image="], "'image=' is not TENSOR=DTYPE"),
        (["map", "conv2d", WMMA, "--limit", "-1"], "'--limit'"),
        (["map", "conv2", WMMA], "unknown operator 'conv2': did you mean 'conv2d'"),
        (["map", "conv2d", WMMA[:-1]], f"unknown intrinsic '{WMMA[:-1]}': did you mean '{WMMA}'"),
        (["map", "resnet18:C55", WMMA], "unknown operator 'resnet18:C55': did you mean"),
        (["map", "conv2d", WMMA, "--extent", "n=0"], "expected a positive integer, got 0"),
        (["map", "conv2d", WMMA, "--extent", "n=-4"], "expected a positive integer, got -4"),
        (["map", "o[i] += a[i,k] * b[k]", WMMA, "--extent", "i=4"], "k"),
        (["map", "conv2d", WMMA, "--layout", "WXYZ"], "WXYZ"),
        (["map", "conv2d", WMMA, "--dtype", "f17"], "f17"),
        (["intrinsics", "show", "vnni"], "unknown intrinsic 'vnni'"),
        (["intrinsics", "check", "vnni"], "unknown intrinsic 'vnni'"),
        (["operators", "conv2"], "unknown operator 'conv2'"),
        (["machines", "show", "hots"], "unknown machine 'hots': did you mean 'host'"),
        (["predict", "gemm", WMMA, "--machine", "a10"], "did you mean 'a100'"),
        (["records", "list", "nothing.db"], "record file 'nothing.db': there is no such file"),
    ],
)
def test_a_mistake_is_told_in_two_lines(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("amos: ")
    assert len(printed.err.splitlines()) <= 2


def test_a_caret_stands_under_the_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "out[i] += a[i,k] ? b[k]", WMMA]) == 2
    message, text, caret = capsys.readouterr().err.splitlines()
    assert message.startswith("amos: ")
    assert text == "out[i] += a[i,k] ? b[k]"
    assert caret == " " * text.index("?") + "^"


@pytest.mark.parametrize("arguments", [[], ["intrinsics"], ["machines"]], ids=str)
def test_a_group_alone_prints_its_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("Usage: amos")


def test_an_interrupt_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("amos.intrinsics.names", interrupt)
    assert main(["intrinsics", "list"]) == 130
    printed = capsys.readouterr()
    assert printed.out + printed.err == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*AMOS, "operators", "--json"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_terminal_without_unicode_is_no_error() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for arguments in (["operators"], ["operators", "--json"]):
        done = subprocess.run(
            [*AMOS, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert "conv2d" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["map", "conv2d", WMMA], ["operators"], ["intrinsics", "list"]], ids=" ".join
)
def test_commands_start_quickly_without_tvm_and_pandas(arguments: list[str]) -> None:
    code = (
        "import sys; from amos.cli import main; status = main(sys.argv[1:]); "
        "print(status, sorted({'tvm', 'pandas', 'sympy', 'deap'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr.strip() == "0 []"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 5.0
