"""Processes that AMOS starts import what it does, and nothing from the working directory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from amos._processes import python

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose files have names of modules."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("re", "json", "select", "numpy", "amos"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the working directory')\n")
    monkeypatch.chdir(here)
    return here


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_modules_of_the_working_directory_are_not_imported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in that this process finds is found there, and arguments arrive."""
    plug = tmp_path / "plug"
    plug.mkdir()
    code = "import json, re, select, sys; import numpy, amos.errors; print(__name__, sys.argv[1:])"
    (plug / "some_plug_in.py").write_text(code)
    monkeypatch.syspath_prepend(str(plug))
    assert _output(*python("some_plug_in"), "a", "b c") == "__main__ ['a', 'b c']"


def test_pythons_own_modules_come_first_where_the_directory_was_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "amos"):
        (folder / f"{name}.py").unlink()
    (folder / "some_plug_in.py").write_text("import json, re, select; print(re.__file__)")
    monkeypatch.syspath_prepend("")  # as of an interactive session
    assert _output(*python("some_plug_in")) == re.__file__


def test_no_module_is_run_in_another_way() -> None:
    """``-m`` alone would import from the working directory."""
    for path in (ROOT / "amos").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r'sys\.executable, (\*|"-[cm]")', text), path
        assert '["-m", ' not in text, path
