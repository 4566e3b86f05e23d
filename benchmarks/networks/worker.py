"""One contender in a process of its own: requests on standard input, answers as JSON lines.

What libraries print goes to standard error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from contenders.requests import serve

from networks.contenders import Call, load, reference, use_threads

#: Seconds that one timing spans at least, unless a single call takes longer.
SPAN = 0.1


class Worker:
    """Loads and times one network at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.call: Call | None = None
        self.count = 1

    def prepare(self, path: str, inputs: str) -> None:
        """Store what the model says of the inputs beside them."""
        arrays = dict(np.load(inputs))
        expected = reference(Path(path), arrays)
        np.save(Path(inputs).with_suffix(".expected.npy"), expected)

    def load(
        self, contender: str, path: str, inputs: str, threads: int, records: str
    ) -> dict[str, Any]:
        """Relative difference (2-norm) from what the model says, and the seconds to load."""
        use_threads(threads)
        start = time.perf_counter()
        self.call = load(contender, Path(path), dict(np.load(inputs)), threads, Path(records))
        seconds = time.perf_counter() - start
        expected = np.load(Path(inputs).with_suffix(".expected.npy"))
        result = self.call()
        if result.shape != expected.shape:
            raise ValueError(f"expected a result of shape {expected.shape}, got {result.shape}")
        expected = expected.astype(np.float64)
        norm = np.linalg.norm(expected) or 1.0
        difference = np.linalg.norm(result.astype(np.float64) - expected) / norm
        once = self._run(1)
        self.count = max(1, round(SPAN / once))
        return {"difference": float(difference), "load_seconds": seconds}

    def time(self) -> float:
        """Seconds of one call, after one that brings caches and threads back."""
        self._run(1)
        return self._run(self.count)

    def drop(self) -> None:
        self.call = None

    def _run(self, count: int) -> float:
        assert self.call is not None
        start = time.perf_counter()
        for _ in range(count):
            self.call()
        return (time.perf_counter() - start) / count


if __name__ == "__main__":
    serve(Worker)
