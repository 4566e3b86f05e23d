"""Every block of "Add an intrinsic" does what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from amos.cli import main
from amos.intrinsics import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add_an_intrinsic.md"
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page registers is gone afterwards."""
    registry.names()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_implemented", dict(registry._implemented))


@pytest.mark.skipif(not BLOCKS, reason="an unpacked source distribution has no docs/")
@pytest.mark.usefixtures("forgetful")
@pytest.mark.long
def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {kind for kind, _ in BLOCKS} == {"toml", "sh", "python", "text"}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = ""
    for kind, text in BLOCKS:
        if kind == "toml":
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text, encoding="utf-8")
        elif kind == "sh":
            for line in text.splitlines():
                before = dict(registry._registered)
                assert main(shlex.split(line)[1:]) == 0, line
                registry._registered.clear()  # each command is a process of its own
                registry._registered.update(before)
        elif kind == "text":
            assert printed.endswith(text)
        else:
            exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - the page is ours
        printed += capsys.readouterr().out
    assert "acme_matmul_m8n8k4_s8_s32: described" in printed
    assert "mappings under rule 'access'" in printed
    if shutil.which("cc"):
        assert "acme_wrong_m4k8_s8_s32: described; enumerates 1" in printed
        assert "the meaning gives 2147483647, the implementation -21473" in printed
