"""Profiles of compiled networks: the time of each function in a run of the whole."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown
from amos.explore.options import check_count

if TYPE_CHECKING:
    import pandas as pd

    from amos.network.external.compiled import CompiledNetwork

#: Runs before the first that counts.
_WARM = 2
#: Name of the row of all operators that onnxruntime runs itself.
_EXTERNAL = "onnxruntime"


@dataclass(frozen=True)
class ProfileRow:
    """A function of a compiled network.

    Attributes:
        name: of the task's anchor, or of the engine's function.
        operator: of the task; empty for the engine's.
        count: calls in one run.
        seconds: of all of them, the median of the runs.
        predicted: of all of them; ``None`` for the engine's.
        share: of the time of all functions.
    """

    name: str
    operator: str
    count: int
    seconds: float
    predicted: float | None
    share: float


@dataclass(frozen=True, eq=False)
class Profile(Shown):
    """Where the time of a network goes.

    Attributes:
        seconds: of a whole run without a clock inside, the median.
        rows: functions, the longest first.
    """

    network: str
    seconds: float
    rows: tuple[ProfileRow, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each function; times in seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        rows = [asdict(row) for row in self.rows]
        return {"network": self.network, "seconds": self.seconds, "functions": rows}

    def __str__(self) -> str:
        lines = [f"{self.network}: {self.seconds * 1e3:.4g} ms"]
        for row in self.rows:
            line = f"  {row.seconds * 1e3:8.4f} ms  {row.share:6.1%}  {row.count:3} x {row.name}"
            if row.predicted is not None:
                line += f", predicted {row.predicted * 1e3:.4f} ms"
            lines += [line, f"      {row.operator}"] if row.operator else [line]
        return "\n".join(lines)


def profile(model: CompiledNetwork, arrays: Sequence[Any], repeat: int) -> Profile:
    """See :meth:`CompiledNetwork.profile`."""
    check_count("repeat", repeat)
    for _ in range(_WARM):
        model.outputs_of(arrays)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        model.outputs_of(arrays)
        times.append(time.perf_counter() - start)
    (runs,) = time_calls([model], arrays, [0] * repeat)
    seconds = statistics.median(times)
    return Profile(model.network.name, seconds, _rows(model, runs, seconds))


def time_calls(
    models: Sequence[CompiledNetwork], arrays: Sequence[Any], turns: Iterable[int]
) -> list[list[dict[str, list[float]]]]:
    """Time each call of each function of AMOS on the same inputs; return seconds by model and run.

    Args:
        turns: positions of the models that run, one after the other.
    """
    runs: list[list[dict[str, list[float]]]] = [[] for _ in models]
    with ExitStack() as stack:
        observers = [stack.enter_context(_Observer(model)) for model in models]
        for n in turns:
            models[n].outputs_of(arrays)
            runs[n].append(observers[n].read())
    return runs


class _Observer:
    """Reads the clock of a compiled network's library."""

    def __init__(self, model: CompiledNetwork) -> None:
        self.model, self.seconds = model, dict[str, np.ndarray]()

    def __enter__(self) -> _Observer:
        library = self.model.library
        if library is not None:
            _ = self.model.session  # which loads the library as it has to be loaded
            self.set_clock = ctypes.CDLL(str(library.path)).amos_profile
            for name in self.model.regions:
                self.seconds[name] = np.zeros(len(library.steps[name]))
                self.set_clock(name.encode(), ctypes.c_void_p(self.seconds[name].ctypes.data))
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.seconds:
            self.set_clock(name.encode(), None)

    def read(self) -> dict[str, list[float]]:
        """Return seconds of each call of the last run, by function."""
        calls: dict[str, list[float]] = {}
        for name, seconds in self.seconds.items():
            assert self.model.library is not None
            for step, call in zip(self.model.library.steps[name], seconds, strict=True):
                calls.setdefault(step.function or "copy", []).append(float(call))
        return calls


def _rows(
    model: CompiledNetwork, runs: Sequence[dict[str, list[float]]], whole: float
) -> tuple[ProfileRow, ...]:
    kernels = {kernel.symbol: kernel for kernel in model.kernels.values()}
    medians = {name: statistics.median(sum(run[name]) for run in runs) for name in runs[0]}
    total = sum(medians.values())
    if model.network.external or not model.regions:
        medians[_EXTERNAL], total = max(whole - total, 0.0), max(whole, total)
    rows = []
    for name, seconds in medians.items():
        kernel, count = kernels.get(name), len(runs[0].get(name, [0.0]))
        rows.append(
            ProfileRow(
                name=kernel.operator.name if kernel else name,
                operator=str(kernel.operator) if kernel else "",
                count=count,
                seconds=seconds,
                predicted=kernel.lowering.predicted * count if kernel else None,
                share=seconds / total,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))
