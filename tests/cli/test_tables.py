"""Tables: as wide as they may be, and no word of them broken."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amos import operators, viz
from amos.cli import main
from amos.cli.networks import _print_tuning
from amos.cli.output import print_table
from amos.cli.tables import table_lines
from amos.network.tuned import TunedTask, Tuning
from amos.operators import short_name

WMMA = "wmma_m16n16k16_f16_f32"
COMMANDS = [
    ["operators"],
    ["operators", "resnet18"],
    ["intrinsics", "list"],
    ["map", "conv2d", WMMA],
    ["map", "conv2d", WMMA, "--explain", "q-k-cs"],
    ["map", "gemm", "--target", "cuda:sm_80"],
    ["space", "gemm", WMMA, "--machine", "a100"],
    ["predict", "gemm", WMMA, "--machine", "a100", "--samples", "2"],
    ["reproduce", "table5"],
]
_RULE = re.compile("─+")


def _printed(
    command: list[str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(command) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_word_is_broken_however_narrow(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = _printed(command, 1000, monkeypatch, capsys)
    for columns in (120, 80, 40):
        shown = _printed(command, columns, monkeypatch, capsys)
        assert set(_RULE.sub("", shown).split()) == set(_RULE.sub("", whole).split())
        rules = [len(line) for line in shown.splitlines() if _RULE.fullmatch(line)]
        assert all(rule <= columns for rule in rules)
        assert rules or columns == 40


words = st.text("abc_14.", min_size=1, max_size=12)
texts = st.lists(words, max_size=6).map(" ".join)


@given(
    rows=st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=4),
    columns=st.integers(1, 60),
    right=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_every_layout_keeps_all_words(
    rows: list[tuple[str, ...]], columns: int, right: tuple[bool, ...]
) -> None:
    lines = table_lines(("one", "two", "three four"), rows, right, columns)
    printed = [word for line in lines if not _RULE.fullmatch(line) for word in line.split()]
    expected_words = [word for row in rows for text in row for word in text.split()]
    labels = ["one", "two", "three", "four"]
    printed_words = sorted(word for word in printed if word not in labels)
    assert printed_words == sorted(expected_words)
    longest = max(map(len, expected_words), default=0)
    if columns >= 3 * longest + len("three") * 3 + 4:
        assert max(map(len, lines)) <= columns


def test_numbers_have_all_digits_before_the_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["name", "us"], [["a", 13364.26], ["b", 1.33642], ["c", None], ["d", 2.5e-7]])
    assert capsys.readouterr().out.split()[-8:] == [
        "a",
        "13364",
        "b",
        "1.336",
        "c",
        "-",
        "d",
        "2.5e-07",
    ]


def test_the_width_is_what_columns_says_and_120_in_a_pipe() -> None:
    """Not the 200 of a pipe that nobody asked for."""
    code = "from amos.cli.tables import output_width; print(output_width())"

    def print_columns(columns: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"COLUMNS": columns, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout.strip()

    assert [print_columns(columns) for columns in ("80", "", "0", "wide")] == [
        "80",
        "120",
        "120",
        "120",
    ]


@pytest.mark.parametrize(
    ("text", "options", "name"),
    [
        ("resnet18:C5", {}, "resnet18:C5"),
        ("resnet18:C5", {"layout": "NCHW"}, "resnet18:C5 NCHW"),
        ("resnet18:C2", {"extents": {"p": 28, "q": 28}}, "resnet18:C2 p=28 q=28"),
        ("gemm", {"extents": {"m": 7}, "dtype": "u8s8"}, "gemm m=7"),
        ("o[i] += a[i,k] * b[k]", {"extents": {"i": 4, "k": 2}}, None),
    ],
)
def test_operators_go_by_their_name_in_the_library(
    text: str, options: dict[str, Any], name: str | None
) -> None:
    op = operators.resolve(text, **options)
    assert short_name(op) == (name or "o[i] += a[i, k] * b[k] i=4 k=2")


def test_tuned_chains_stand_below_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    task = TunedTask("conv2d", "y[i] += x[i]", 2, trials=3, predicted=1e-3, seconds=2e-3)
    chain = TunedTask("attention", "s[i] += q[i]; p[i] = s[i]", 4, reason="nothing fits")
    tuning = Tuning("net", (task,), chains=(chain,))
    assert chain.operator in viz.html(tuning)
    _print_tuning(tuning)
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert rows == [["1", "y[i]"], ["2", "s[i]"]]
