"""Worker processes by the contenders that they run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer
from typing import Any

__all__ = ["ContenderError", "Pool"]

WORKER = Path(__file__).with_name("worker.py")

#: A thread of OpenMP on each core, as TVM's pool does by itself. Kernels of virtual machines
#: may pack threads onto few cores, and a thread that waits for another one on its own core
#: spins for milliseconds first.
ONE_EACH = {"OMP_PROC_BIND": "true", "OMP_PLACES": "threads"}

#: Memory that is freed is used again, so that a bare primitive's time has no page faults of
#: its result in it. Those of a call are what its users get.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


class ContenderError(Exception):
    """A contender cannot do what was asked; the rest of the run goes on."""


class Pool:
    """One process for each family of contenders, started when it is first asked.

    Args:
        folder: where the processes log, and keep what they need.
        worker: the program that they run.
        limit: seconds after which a process that does not answer is ended; ``None`` for ever.
        caches: whether each process begins with an empty cache, but for the rates of this machine.
    """

    def __init__(
        self,
        folder: Path,
        worker: Path = WORKER,
        limit: float | None = None,
        *,
        caches: bool = False,
    ) -> None:
        self.folder, self.worker, self.limit, self.caches = folder, worker, limit, caches
        self.workers: dict[str, subprocess.Popen[str]] = {}

    def ask(self, family: str, command: str, **arguments: Any) -> Any:
        """The answer of a family's process.

        Raises:
            ContenderError: it failed, or its process died.
        """
        worker = self.workers.get(family)
        if worker is None or worker.poll() is not None:
            worker = self.workers[family] = self._start(family)
        assert worker.stdin is not None and worker.stdout is not None
        timer = Timer(self.limit, worker.kill) if self.limit is not None else None
        if timer is not None:
            timer.start()
        try:
            worker.stdin.write(json.dumps([command, arguments]) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            if timer is not None:
                timer.cancel()
        if not line:
            raise ContenderError(f"the process ended with status {worker.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer["value"]

    def _start(self, family: str) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if family.startswith(("onednn", "primitive", "pytorch", "inductor")):
            environment |= ONE_EACH
        if family.startswith("primitive"):
            environment["ONEDNN_VERBOSE"] = "profile_exec"
            environment |= KEPT
        if family.endswith("-vnni"):
            environment["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
        if family.endswith("-avx2"):
            environment |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "AMOS_CPU_LACKS": "avx512 avx_vnni amx"}
        if self.caches:
            environment["XDG_CACHE_HOME"] = str(self._new_cache(family))
        log = (self.folder / f"{family}.log").open("a")
        return subprocess.Popen(
            [sys.executable, str(self.worker), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )

    def _new_cache(self, family: str) -> Path:
        """The folder of a cache that has the rates of this machine."""
        usual = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
        cache = Path(tempfile.mkdtemp(prefix=f"{family}.", dir=self.folder))
        (cache / "amos").mkdir()
        for rates in Path(usual, "amos").glob("host-*.json"):
            shutil.copy(rates, cache / "amos")
        return cache

    def close(self) -> None:
        for worker in self.workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()
        self.workers.clear()
