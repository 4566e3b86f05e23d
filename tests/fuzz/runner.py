"""Runs cases in a process that may crash or hang, and says what became of each."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DEFECTS", "LACKS", "Attack", "Finding"]

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = ("wrong", "traceback", "crash", "hang")
#: What the CPU is to lack in some kinds of cases, as ``AMOS_CPU_LACKS`` says it.
LACKS = {
    "tail-vnni": "amx",
    "tail-avx512": "amx avx_vnni avx512_vnni avx512_bf16",
    "tail-avx2": "amx avx_vnni avx512",
}
#: Seconds that a case may take; a compiler takes longer than a parser.
_COMPILED = ("kernel", "epilogue", "group", "tail", "tail-amx", "module", "graph")
_LIMITS = dict.fromkeys((*_COMPILED, *LACKS), 120.0)
_LIMITS |= {"record": 60.0}
_LIMITS |= dict.fromkeys(("cuda", "export", "group-cuda", "group-export"), 300.0)
_LIMIT = 20.0


@dataclass(frozen=True)
class Finding:
    """What became of a case.

    Attributes:
        kind, seed: what it was.
        outcome: ``right``, ``refused``, or one of the defects.
        detail: why.
        about: what makes it again.
    """

    kind: str
    seed: int
    outcome: str
    detail: str
    about: str

    def __str__(self) -> str:
        head = f"{self.kind}:{self.seed}: {self.outcome}: {self.detail}"
        return f"{head}\n{self.about}\nagain: python -m tests.fuzz --case {self.kind}:{self.seed}"


class Attack:
    """One worker process, replaced when a case ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers = -1
        self._buffer = b""
        self._lacks = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the attack ends

    def __enter__(self) -> Attack:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def case(self, kind: str, seed: int) -> Finding:
        """Run one case."""
        if self._lacks != LACKS.get(kind, ""):
            self._end()
            self._lacks = LACKS.get(kind, "")
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(f"{kind} {seed}\n")
        process.stdin.flush()
        about, end = "", time.monotonic() + _LIMITS.get(kind, _LIMIT)
        while (line := self._line(end)) is not None:
            message: dict[str, Any] = json.loads(line)
            if "about" not in message:
                return Finding(kind, seed, message["outcome"], message["detail"], about)
            about = message["about"]
        if process.poll() is None and time.monotonic() >= end:
            outcome, detail = "hang", f"longer than {_LIMITS.get(kind, _LIMIT):.0f} s"
        else:
            status = process.wait()
            name = signal.Signals(-status).name if status < 0 else f"status {status}"
            outcome, detail = "crash", f"{name}: {self._last_words()}"
        self._end()
        return Finding(kind, seed, outcome, detail, about)

    def _start(self) -> subprocess.Popen[str]:
        read, write = os.pipe()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        lacking = {"AMOS_CPU_LACKS": self._lacks} if self._lacks else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(write)],
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[write],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, **lacking},
            text=True,
        )
        os.close(write)
        self._answers, self._buffer = read, b""
        return self._process

    def _line(self, end: float) -> bytes | None:
        """The next line of the worker; ``None`` if it has ended or the time is over."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._answers, 1 << 16) if ready else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 600))
        return self._errors.read().decode(errors="replace").strip()

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        os.close(self._answers)
        self._process = None
