"""``amos space`` and ``--fix``."""

from __future__ import annotations

import json

import pytest

from amos.cli import main

pytestmark = pytest.mark.usefixtures("short_search")

C5 = ["resnet18:C5", "wmma_m16n16k16_f16_f32", "--machine", "a100"]


@pytest.mark.long
def test_a_space_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", *C5, "--divisors", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"variables", "constraints", "by_type", "by_rule", "size"} <= report.keys()
    assert set(report["by_type"]) == {"PROD", "SUM", "EQ", "LE", "IN", "SELECT"}
    assert all(report["by_type"].values())
    assert {"C1", "C2", "C3", "C4", "C5", "C6"} == set(report["by_rule"])
    assert sum(report["by_type"].values()) == len(report["constraints"])
    assert sum(report["by_rule"].values()) == len(report["constraints"])
    assert 0 < report["size"] < report["size_of_all_mappings"]
    assert report["feasible"] is None, "too many to count"
    names = {variable["name"] for variable in report["variables"]}
    assert {"order", "parallel", "unroll", "shared.used", "shared.capacity"} <= names
    assert {"bind", "warps", "threads", "align.Src1", "pipeline", "split", "copy_bytes"} <= names


def test_a_small_space_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    gemm = [
        "out[i,j] += a[i,k] * weight[j,k]",
        *["--extent", "i=4"],
        *["--extent", "j=64"],
        *["--extent", "k=64"],
    ]
    arguments = [*gemm, "vnni_dpbusd_m16k4_u8_s8_s32", "--machine", "xeon_6240", "--json"]
    assert main(["space", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["feasible"] < report["size"] <= report["size_of_all_mappings"]


def test_a_space_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", *C5, "--mapping", "npq-k-c"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mapping    npq-k-c")
    assert "registers.thread <= registers" in printed
    assert "over 1 mapping\n" in printed


@pytest.mark.long
def test_divisors_only(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for extra in ([], ["--divisors"]):
        assert main(["space", *C5, "--mapping", "npq-k-c", *extra, "--json"]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["size"])
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    ("fixes", "words"),
    [
        (["tile_i2_tile=2", "tile.i2.tile=4"], ["tile.i2.tile in [2]", "tile.i2.tile in [4]"]),
        (["tile.zz=1"], ["unknown schedule variable 'tile.zz': did you mean"]),
        (
            ["tile.i1.tile=13", "tile.i2.tile=8"],
            ["too many registers for a thread, but 255 are there for it (rule C5)"],
        ),
        (["parallel"], ["'parallel' is not NAME=VALUE"]),
        (["unroll=3"], ["unroll = 3 is not one of 1, 2, 4"]),
    ],
)
@pytest.mark.parametrize("command", ["space", "explore"])
def test_fixes_that_cannot_be(
    command: str, fixes: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [item for fix in fixes for item in ("--fix", fix)]
    assert main([command, *C5, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(word in printed.err for word in words), printed.err


@pytest.mark.long
def test_what_is_fixed_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--fix", "split=4", "--fix", "unroll=2"]
    assert main(["explore", *C5, "--trials", "6", "--json", *fixed]) == 0
    schedule = json.loads(capsys.readouterr().out)["schedule"]
    assert (schedule["split"], schedule["unroll"]) == (4, 2)
    sizes = []
    for options in ([], fixed):
        assert main(["space", *C5, "--mapping", "npq-k-c", *options, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        sizes.append(report["size"])
    domains = {each["name"]: len(each["domain"]) for each in report["variables"]}
    assert sizes[0] == sizes[1] * domains["split"] * domains["unroll"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mapping", "nothing"], "expected 3 groups joined by '-'"),
        (["--mapping", "p-n-c"], "`n` goes to `i2`, but `n` indexes `image`"),
        (["--machine", "a10"], "unknown machine 'a10'"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", *C5[:2], *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stagnation", "0"], "stagnation: expected a whole number from 1 on, got 0"),
        (["--epsilon", "2"], "epsilon: expected a share from 0 to 1, got 2"),
        (["--method", "exhaustive"], "assignments, at most 5,000,000 are gone through"),
    ],
)
def test_bad_budgets(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", *C5, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_exploration_ends_when_nothing_gets_better(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*C5, "--trials", "500", "--stagnation", "5", "--json"]
    assert main(["explore", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] < 100
