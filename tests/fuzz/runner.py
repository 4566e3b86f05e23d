"""Runs cases that Hypothesis draws and shrinks, in a process that may crash or hang."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import Flaky

__all__ = ["LACKS", "Attack", "Finding", "Search"]

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = ("wrong", "traceback", "crash", "hang")
#: What the CPU is to lack in some kinds of cases, as ``AMOS_CPU_LACKS`` says it.
LACKS = {
    "tail-vnni": "amx",
    "tail-avx512": "amx avx_vnni avx512_vnni avx512_bf16",
    "tail-avx2": "amx avx_vnni avx512",
}
#: Seconds that a case may take; a compiler takes longer than a parser.
_COMPILED = ("kernel", "epilogue", "chain", "group", "tail", "tail-amx", "module")
_COMPILED_BY_POCL = ("opencl", "group-opencl")
_GRAPHS = ("graph", "branches")
_LIMITS = dict.fromkeys((*_COMPILED, *_GRAPHS, *_COMPILED_BY_POCL, *LACKS), 120.0)
_LIMITS |= {"record": 60.0}
_LIMITS |= dict.fromkeys(("cuda", "export", "chain-export", "group-cuda", "group-export"), 300.0)
_LIMIT = 20.0
#: Hypothesis begins with the smallest choices, whatever the seed is. They are no case: each case
#: draws a number up to this one first, which is not 0.
_CASES = 1 << 16


@dataclass(frozen=True)
class Finding:
    """What became of a case.

    Attributes:
        kind: what it was.
        outcome: ``right``, ``refused``, or one of the defects.
        detail: why.
        about: what makes it again.
    """

    kind: str
    outcome: str
    detail: str
    about: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.outcome}: {self.detail}\n{self.about}"


@dataclass(frozen=True)
class Search:
    """What became of the cases of one kind.

    Attributes:
        counts: how many had each outcome.
        refusals: how many were refused for each reason, without its names and numbers.
        finding: the smallest case with a defect, if there is one.
    """

    counts: Counter[str]
    refusals: Counter[str]
    finding: Finding | None


class _DefectError(Exception):
    """A case has a defect."""


class Attack:
    """One worker process, replaced when a case ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers = -1
        self._buffer = b""
        self._lacks = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the attack ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def search(self, kind: str, examples: int, seed: int = 0) -> Search:
        """Run cases of a kind until one has a defect, and shrink that.

        Args:
            kind: what to run.
            examples: how many cases.
            seed: the same one draws the same cases.
        """
        counts, refusals, finding = Counter[str](), Counter[str](), list[Finding]()

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=examples + 1, database=None, deadline=None, verbosity=Verbosity.quiet,
            phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @hypothesis.given(st.randoms(use_true_random=False))
        def attack(source: Random) -> None:
            if not source.randint(0, _CASES):
                return
            result = self.case(kind, source.randint)
            if not finding:
                counts[result.outcome] += 1
                if result.outcome == "refused":
                    refusals[re.sub(r"'[^']*'|\[[^]]*\]|\w*\d[\w.,]*", "…", result.detail)] += 1
            if result.outcome in DEFECTS:
                finding[:] = [result]
                raise _DefectError

        with contextlib.suppress(_DefectError, Flaky):  # a hang may not come again
            attack()
        return Search(counts, refusals, finding[0] if finding else None)

    def case(self, kind: str, draw: Callable[[int, int], int]) -> Finding:
        """Run one case.

        Args:
            kind: what to run.
            draw: draws an integer between two.
        """
        if self._lacks != LACKS.get(kind, ""):
            self._end()
            self._lacks = LACKS.get(kind, "")
        process = self._process or self._start()
        self._tell(kind)
        interrupted: BaseException | None = None
        about, end = "", time.monotonic() + _LIMITS.get(kind, _LIMIT)
        while (line := self._line(end)) is not None:
            message: dict[str, Any] = json.loads(line)
            if "draw" in message:
                try:
                    number = str(draw(*message["draw"]))
                except BaseException as error:  # Hypothesis ends the case
                    interrupted, number = error, ""
                self._tell(number)
            elif "outcome" in message:
                if interrupted is not None:
                    raise interrupted
                return Finding(kind, message["outcome"], message["detail"], about)
            else:
                about = message["about"]
        if process.poll() is None and time.monotonic() >= end:
            outcome, detail = "hang", f"longer than {_LIMITS.get(kind, _LIMIT):.0f} s"
        else:
            status = process.wait()
            name = signal.Signals(-status).name if status < 0 else f"status {status}"
            outcome, detail = "crash", f"{name}: {self._last_words()}"
        self._end()
        return Finding(kind, outcome, detail, about)

    def _tell(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has crashed
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

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
