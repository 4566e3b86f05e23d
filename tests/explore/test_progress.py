"""What an exploration shows while it runs, where somebody looks, and when it is stopped."""

from __future__ import annotations

import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import amos
from amos._display import Shown
from amos._progress import ProgressLine
from amos.cli import main
from amos.explore import Exploration
from amos.measure.task import Task
from amos.records import Measurement
from tests.support.exploring import grouped
from tests.support.fake import INTRINSIC, OPERATOR, Answering, fake_seconds

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")


class _Picture(Shown):
    def _repr_html_(self) -> str:
        return "<b>drawn</b>"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What the line has said, one after the other; empty where it was taken away."""
        return re.split(r"\r\x1b\[K", self.getvalue())[1:]


def _slower(task: Task) -> Measurement:
    """In the end, where it is measured for longer, everything takes longer."""
    seconds = fake_seconds(task.candidate) * (1.5 if task.repeat > 10 else 1.0)
    return Measurement((seconds,) * 9, 1, 0.0, "generic")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    shown = _Terminal()
    seen = types.SimpleNamespace(stderr=shown, modules=sys.modules)
    monkeypatch.setattr("amos._progress.sys", seen)
    monkeypatch.setattr("amos._progress._PAUSE", 0.0)
    monkeypatch.setenv("COLUMNS", "100")
    return shown


def _run(most: int = 1 << 30, **options: Any) -> Exploration:
    executor = Answering(_slower, most=most)
    pinned: dict[str, Any] = {"trials": 12, "rule": "gather", "executor": executor}
    return amos.explore(OPERATOR, INTRINSIC, **grouped(pinned | options))


def test_the_figure_at_the_end_is_the_confirmed_one(terminal: _Terminal) -> None:
    best = _run().best
    lines = terminal.lines
    assert lines[0] == "probing the machine"
    assert [line for line in lines if line.startswith("measuring 12/12, best ")]
    confirming = [line for line in lines if line.startswith("confirming the fastest")]
    assert len(confirming) >= 4
    assert lines[-2].startswith(f"confirmed: best {best.seconds * 1e3:.4f} ms")
    assert lines[-1] == ""
    assert not [line for line in lines if len(line) >= 100]


def test_what_else_is_printed_finds_the_line_gone(terminal: _Terminal) -> None:
    def say(_: object) -> None:
        assert terminal.lines[-1] == ""
        terminal.write("announced\n")

    _run(announce=say)
    assert "announced\n" in terminal.getvalue()


@pytest.mark.parametrize("options", [{"progress": False}, {"progress": lambda *_: None}])
def test_it_can_be_turned_off(terminal: _Terminal, options: dict[str, Any]) -> None:
    _run(**options)
    assert terminal.getvalue() == ""


def test_nothing_is_shown_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    _run()
    assert capfd.readouterr() == ("", "")


def test_a_notebook_has_it_below_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    drawn: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])
            drawn.extend([data["text/html"]] if "text/html" in data else [])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        Handle().update(data, raw)
        return Handle()

    def module(name: str, **names: object) -> None:
        stub = types.ModuleType(name)
        vars(stub).update(names)
        monkeypatch.setitem(sys.modules, name, stub)

    shell = types.SimpleNamespace(kernel=object())
    module("IPython", get_ipython=lambda: shell)
    module("IPython.display", display=display)
    monkeypatch.setattr("amos._progress._PAUSE", 0.0)
    _run()
    assert shown[0] == "probing the machine"
    assert [line for line in shown if line.startswith("confirming")]
    assert shown[-1] == ""
    # What can be drawn is drawn below the line, and goes with it.
    with ProgressLine() as line:
        line.show("slice 1", picture=_Picture())
    assert shown[-2:] == ["slice 1", ""]
    assert drawn == ["<div>slice 1</div><b>drawn</b>"]
    del shell.kernel  # IPython in a terminal that is none
    shown.clear()
    _run()
    assert shown == []


@pytest.mark.parametrize("most", [5, 13])
@pytest.mark.parametrize("keep", [False, True], ids=["nowhere", "records"])
def test_an_interrupt_tells_the_best_and_how_to_go_on(
    tmp_path: Path, most: int, keep: bool
) -> None:
    """While searching, and while confirming."""
    file = tmp_path / "tuning.db"
    with pytest.raises(KeyboardInterrupt) as stopped:
        _run(most, records=file if keep else None)
    reached, again = stopped.value.__notes__
    assert reached.startswith(f"interrupted after {min(most, 12)} of 12 trials; best so far ")
    assert ("tuning.db" in again) == keep
    assert "goes on from there" in again if keep else "--records FILE" in again
    if keep:
        assert _run(records=file).replayed == min(most, 12)


def test_the_command_line_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        stop = KeyboardInterrupt()
        stop.add_note("interrupted after 3 of 12 trials")
        raise stop

    monkeypatch.setattr("amos._kernels.explore_operator", interrupted)
    command = ["explore", "gemm", "wmma_m16n16k16_f16_f32", "--machine", "a100"]
    assert main(command) == 130
    assert capsys.readouterr().err == "amos: interrupted after 3 of 12 trials\n"


def test_the_text_is_taken_away_when_a_run_fails(terminal: _Terminal) -> None:
    def fail(_: object) -> None:
        raise amos.AmosError("no")

    with pytest.raises(amos.AmosError):
        _run(announce=fail)
    assert terminal.lines[-1] == ""
