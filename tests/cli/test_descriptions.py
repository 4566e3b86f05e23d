"""Files of machines and intrinsics: all that is wrong at once, and a reference of their keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from amos.cli.app import main
from amos.cli.keys import Key, intrinsic_keys, machine_keys
from tests.support.architects import BOARD_TEXT, ENERGIES, UNIT_TEXT, files

BAD = """
name = "bad"
clok = 1e9
[[level]]
name = "sram"
capcity = 3
read_bandwidth = 1e9
[[level]]
name = "DRAM"
capacity = 0
read_bandwidth = "x"
[stream]
encoding = "calls"
latency = 1e60
"""


def test_all_problems_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(BAD)
    assert main(["machines", "check", str(file), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)["problems"]
    begins = [":3: clok", ": source", ": clock", ":6: level[0].capcity", ":4: level[0].capacity"]
    begins += [":11: level[1].read_bandwidth", ":14: stream.latency"]
    assert [text.removeprefix(str(file)).split(": expected")[0] for text in report] == begins


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("latency = 60", "latency = 3000000000", "latency: expected 0 or more cycles, below"),
        ("clock = 5e8", "clock = inf", "clock must be positive and finite"),
        ('name = "acme_board"', 'name = "gemmini"', "name: expected one of its own, got 'gemmini'"),
        ("clock = 5e8", 'clock = 5e8\nhost = "nobody"', "host: unknown machine 'nobody'"),
        ("clock = 5e8", 'clock = 5e8\nhost = "gemmini"', "host: expected a CPU, got the unit"),
        ("capacity = 0", "capacity = 0\nread_pj_per_byte = -1", "read_pj_per_byte: expected 0 or"),
    ],
)
def test_a_problem_of_values(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "board.toml"
    file.write_text(BOARD_TEXT.replace(old, new))
    assert main(["machines", "check", str(file)]) == 2
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("problem")]
    assert words in line


def test_what_is_not_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, unit = files(tmp_path)
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert "operation_pj: no energy" in missing
    assert "read_pj_per_byte of level DRAM: no energy" in missing
    board, unit = files(tmp_path, ENERGIES)
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 0
    (missing,) = json.loads(capsys.readouterr().out)["missing"]
    assert missing.startswith("host:")


def test_a_unit_that_cannot_run_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, unit = files(tmp_path)
    text = UNIT_TEXT.replace("timing", "# timing").replace(", capacity = 65536", "")
    Path(unit).write_text(text.replace("inp.Src1", "reg.Src1").replace("acme_", "other_"))
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 2
    rate, buffer = json.loads(capsys.readouterr().out)["problems"]
    assert "expected a rate on 'acme_board'" in rate
    assert "expected the capacity of Src1's buffer" in buffer
    Path(unit).write_text(UNIT_TEXT.replace("65536", "64"))
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 2
    (none,) = json.loads(capsys.readouterr().out)["problems"]
    assert "capacity: expected at least one fragment, 128 bytes, got 64" in none


def test_what_a_machine_without_queues_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An instruction with a rate, but no unit that fills buffers of its own."""
    board, unit = files(tmp_path)
    Path(board).write_text(BOARD_TEXT.partition("[stream]")[0])
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 2
    (queues,) = json.loads(capsys.readouterr().out)["problems"]
    assert "expected a [stream] table of 'acme_board', whose queues fill buffer inp" in queues
    text = re.sub(r"\b(inp|wgt|acc)\.", "reg.", UNIT_TEXT).replace("acme_", "plain_")
    text = re.sub(r", capacity = \d+", "", text)
    Path(unit).write_text(text)
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    Path(unit).write_text(text.replace("timing", "# timing").replace("plain_", "plain_slow_"))
    assert main(["machines", "check", board, "--intrinsic", unit, "--json"]) == 2
    (rate,) = json.loads(capsys.readouterr().out)["problems"]
    assert "expected a rate on 'acme_board'" in rate


def test_the_reference_is_that_of_the_code(golden: Callable[[str, str], None]) -> None:
    head = (
        "# Keys of machine and intrinsic files\n\n"
        "`amos machines keys` and `amos intrinsics keys` print these tables. "
        "`amos machines check FILE` and `amos intrinsics check FILE` check a file.\n"
    )
    tables = [
        _as_markdown("Machines", machine_keys()),
        _as_markdown("Intrinsics", intrinsic_keys()),
    ]
    assert all(key.meaning for key in machine_keys() + intrinsic_keys())
    golden("../../../docs/keys.md", "\n".join([head, *tables]))


def _as_markdown(title: str, rows: Sequence[Key]) -> str:
    """Write keys as tables, one for each table of a file."""
    lines = [f"## {title}", ""]
    for table in dict.fromkeys(row.table for row in rows):
        lines += [f"### `[{table}]`" if table else "### Top of the file", ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        for row in (row for row in rows if row.table == table):
            default = "**needed**" if row.default is None else f"`{row.default}`"
            default = "" if row.default == "" else default
            meaning = row.meaning.replace("|", "\\|")
            lines.append(f"| `{row.name}` | {row.kind} | {default} | {meaning} |")
        lines.append("")
    return "\n".join(lines)
