"""A suite that is interrupted goes on where it stopped, and only for the same request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from amos.cli import main
from amos.cli import output as shown
from amos.cuda import gpu_check
from amos.cuda.gpu_check import Pieces, write_pieces
from amos.errors import ExportError

REQUEST: dict[str, object] = {"arch": "sm_80", "seed": 0}


def _pieces(count: int, written: list[str], stop: str = "") -> Pieces:
    def write(name: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "kernel.cu").write_text(name)
        if name == stop:
            raise KeyboardInterrupt
        (folder / "launch.json").write_text("{}")
        written.append(name)

    return {name: partial(write, name) for name in (f"random/k{n}" for n in range(count))}


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder, written, progress = tmp_path / "suite", list[str](), list[tuple[int, int, str]]()
    with pytest.raises(KeyboardInterrupt):
        write_pieces(folder, _pieces(4, written, stop="random/k2"), REQUEST)
    assert written == ["random/k0", "random/k1"]
    pieces = write_pieces(folder, _pieces(4, written), REQUEST, lambda *now: progress.append(now))
    assert written == [f"random/k{n}" for n in range(4)]
    assert pieces == [folder / name for name in written]
    assert progress == [*((n, 4, f"random/k{n}") for n in range(4)), (4, 4, "")]
    assert not list(folder.rglob("*.partial"))


def test_only_the_same_request_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    write_pieces(folder, {}, REQUEST)
    with pytest.raises(ExportError, match=r"other options \(suite.json\); repeat those"):
        write_pieces(folder, {}, REQUEST | {"seed": 1})
    (folder / "suite.json").unlink()
    (folder / "notes.txt").touch()
    with pytest.raises(ExportError, match="expected a new folder, or one that the same command"):
        write_pieces(folder, {}, REQUEST)
    with pytest.raises(ExportError, match="notes.txt"):
        write_pieces(folder / "notes.txt" / "suite", {}, REQUEST)


def test_the_command_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = _pieces(2, [])
    monkeypatch.setattr(gpu_check, "suite_pieces", lambda *_, **__: pieces)
    monkeypatch.setattr(shown, "_PAUSE", 0.0)
    command = ["gpu-check", str(tmp_path / "suite"), "--write", "--trials", "0"]
    for _ in range(2):
        assert main(command) == 0
        printed = capsys.readouterr()
        assert "2 kernels for sm_80" in printed.out
        assert "amos: 1 of 2 kernels and benchmarks written, 0:00 left" in printed.err
    assert main([*command, "--seed", "3"]) == 2
    assert "written with other options" in capsys.readouterr().err


def test_each_kernel_is_drawn_by_itself(tmp_path: Path) -> None:
    """What is written does not depend on what was written before."""
    pieces = gpu_check.suite_pieces("sm_80", shapes=1, seed=0)
    first, *_, last = pieces.values()
    last(tmp_path / "alone")
    first(tmp_path / "first")
    last(tmp_path / "last")
    for name in ("kernel.cu", "launch.json"):
        assert (tmp_path / "alone" / name).read_text() == (tmp_path / "last" / name).read_text()
