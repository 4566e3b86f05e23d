"""Compiling and tuning are killed at any moment: old files or new ones, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Exports one network, then compiles and exports another one to the same place, in a fork for
#: each moment: ended by SIGKILL at the n-th kernel that is built, change of the file system or
#: start of a process.
_PROGRAM = """
import gc, json, os, signal, sys
from pathlib import Path
import amos
from amos.network.external import linking
from tests.network.models import Builder, compile_whole, load_whole

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen")
out, moments = Path(sys.argv[1]), int(sys.argv[2])
state = {"left": None, "seen": 0}

def moment():
    if state["left"] is not None:
        state["seen"] += 1
        if state["seen"] == state["left"]:
            os.kill(os.getpid(), signal.SIGKILL)

def hook(event, arguments):
    if event not in CHANGES:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
        return  # it is only read
    moment()

def before(function):
    def called(*arguments, **options):
        moment()
        return function(*arguments, **options)
    return called

def model(columns):
    b = Builder(columns)
    y = b.node("MatMul", b.input("x", (4, 16)), b.random(16, columns))
    return compile_whole(load_whole(b.model(y)), verify=False, progress=False)

def files(skip=".amos-"):
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and not path.relative_to(out).parts[0].startswith(skip)
    }

linking.write_library = before(linking.write_library)
old = model(8)
model(24).export(out)
sys.addaudithook(hook)
state["left"] = -1
model(24).export(out)
complete, total, state["left"] = files(), state["seen"], None
kills = []
for n in range(moments):
    old.export(out)
    earlier = files()
    child = os.fork()
    if child == 0:
        gc.freeze()  # no session of the parent is deleted: it would wait for its threads
        state.update(left=1 + n * (total - 1) // (moments - 1), seen=0)
        model(24).export(out)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    after = files()
    kills.append({
        "signal": os.WTERMSIG(status),
        "torn": [
            name for name, data in after.items()
            if data not in (earlier.get(name), complete.get(name))
        ],
        "missing": [name for name in earlier if name not in after],
        "new model": after["model.onnx"] == complete["model.onnx"],
        "newest": sum(after.get(name) == data for name, data in complete.items()),
        "leftovers": len([*out.glob(".amos-*")]),
    })
model(24).export(out)
leftovers = len([*out.glob(".amos-*")])
print(json.dumps({"kills": kills, "leftovers": leftovers, "files": len(complete)}))
"""


#: Tunes a network in a fork for each moment, which SIGKILL ends before the n-th statement that its
#: record file gets; then goes on, and compiles.
_TUNING = """
import gc, json, os, signal, sys
from pathlib import Path
import amos
from amos.explore.method import Search
from amos.records import Records, store
from tests.network.models import Builder
from tests.support.fake import Answering

Search.inner = 64
folder, moments = Path(sys.argv[1]), int(sys.argv[2])
state = {"left": -1, "seen": 0}

def counted(statement):
    state["seen"] += 1
    if state["seen"] == state["left"]:
        os.kill(os.getpid(), signal.SIGKILL)

def connect(*arguments, usual=store.connect, **options):
    database = usual(*arguments, **options)
    database.set_trace_callback(counted)
    return database

store.connect = connect
b = Builder()
x = b.node("MatMul", b.input("x", (4, 16)), b.random(16, 32))
network = amos.load_network(b.model(b.node("MatMul", x, b.random(32, 8))))

def tuned(name, executor):
    measure = amos.MeasureOptions(executor=executor)
    told = amos.tune(
        network, trials=6, records=folder / name, measure=measure, progress=False
    )
    return told.to_dict()["history"]

whole = Answering()
expected, total = tuned("whole.db", whole), state["seen"]
kills = []
for n in range(moments):
    name = f"killed{n}.db"
    child = os.fork()
    if child == 0:
        gc.freeze()  # no session of the parent is deleted: it would wait for its threads
        state.update(left=1 + n * (total - 1) // (moments - 1), seen=0)
        tuned(name, Answering())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    rest = Answering()
    if empty := not (folder / name).exists() or not (folder / name).stat().st_size:
        had = 0
    else:
        with Records(folder / name, readonly=True) as records:
            had = len(records.all())
    again = tuned(name, rest)
    kills.append({
        "signal": os.WTERMSIG(status),
        "had": had,
        "measured": rest.count,
        "same": again == expected,
    })
print(json.dumps({"kills": kills, "measured": whole.count, "files": os.listdir(folder)}))
"""


def _run(program: str, folder: Path, moments: int) -> dict[str, Any]:
    """What a program prints; it may leave no temporary files."""
    temporary = folder.parent / "temporary"
    temporary.mkdir()
    environment = os.environ | {
        "TVM_NUM_THREADS": "1",  # threads do not survive a fork
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(moments)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # Unless $CI is set, onnxruntime notes there when it was first used.
    assert {path.name for path in temporary.iterdir()} <= {".ses"}
    report: dict[str, Any] = json.loads(done.stdout)
    assert [kill["signal"] for kill in report["kills"]] == [9] * moments
    return report


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.long
def test_compiling_and_exporting_are_killed_at_every_stage(tmp_path: Path) -> None:
    report = _run(_PROGRAM, tmp_path / "out", 5)
    for kill in report["kills"]:
        assert not kill["torn"]
        # The library comes last: until then the old one is there, with all it needs.
        assert kill["new model"] or not kill["missing"]
        assert not kill["new model"] or kill["newest"] == report["files"]
    assert any(kill["leftovers"] for kill in report["kills"])
    assert not report["kills"][0]["leftovers"]  # it came to no export
    assert report["leftovers"] == 0


@pytest.mark.long
def test_tuning_is_killed_at_every_stage(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    report = _run(_TUNING, tmp_path / "records", 6)
    finished = [kill["had"] for kill in report["kills"]]
    assert (
        finished == sorted(finished) and finished[0] == 0 and finished[-1] >= report["measured"] - 1
    )
    for kill in report["kills"]:
        assert kill["same"]
        assert kill["had"] + kill["measured"] == report["measured"]
