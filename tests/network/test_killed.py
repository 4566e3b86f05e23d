"""Exports that are killed at any moment: old files or new ones, and nothing else for long."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Exports one network, then another one to the same place, in a fork for each moment: ended by
#: SIGKILL at the n-th change of the file system or start of a process.
_PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import amos
from amos.network import candidates
from tests.network.models import Builder

candidates.GeneticSearch = candidates._Quick
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen")
out, moments = Path(sys.argv[1]), int(sys.argv[2])
state = {"left": None, "seen": 0}

def hook(event, arguments):
    if state["left"] is None or event not in CHANGES:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
        return  # it is only read
    state["seen"] += 1
    if state["seen"] == state["left"]:
        os.kill(os.getpid(), signal.SIGKILL)

def model(columns):
    b = Builder(columns)
    y = b.node("MatMul", b.input("x", (4, 16)), b.random(16, columns))
    return amos.compile(amos.load_network(b.model(y)), verify=False, progress=False)

def files(skip=".amos-"):
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and not path.relative_to(out).parts[0].startswith(skip)
    }

old, new = model(8), model(24)
new.export(out)
sys.addaudithook(hook)
state["left"] = -1
new.export(out)
complete, total, state["left"] = files(), state["seen"], None
kills = []
for n in range(moments):
    old.export(out)
    before = files()
    child = os.fork()
    if child == 0:
        state.update(left=1 + n * (total - 1) // (moments - 1), seen=0)
        new.export(out)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    after = files()
    kills.append({
        "signal": os.WTERMSIG(status),
        "torn": [name for name in after if after[name] not in (before.get(name), complete[name])],
        "missing": [name for name in before if name not in after],
        "new library": after["libnetwork.so"] == complete["libnetwork.so"],
        "newest": sum(after[name] == complete[name] for name in after),
        "leftovers": len([*out.glob(".amos-*")]),
    })
new.export(out)
leftovers = len([*out.glob(".amos-*")])
print(json.dumps({"kills": kills, "leftovers": leftovers, "files": len(complete)}))
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_an_export_is_killed_at_every_stage(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {
        "TVM_NUM_THREADS": "1",  # threads do not survive a fork
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(root),
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "out"), "6"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert [kill["signal"] for kill in said["kills"]] == [9] * 6
    for kill in said["kills"]:
        assert not kill["torn"] and not kill["missing"]
        # The library comes last: until then the old one is there.
        assert not kill["new library"] or kill["newest"] == said["files"]
    assert any(kill["leftovers"] for kill in said["kills"])
    assert said["leftovers"] == 0
    assert [*temporary.iterdir()] == []
