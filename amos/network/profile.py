"""What each kernel of a compiled network takes, called where it stands."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from amos._display import Shown
from amos.explore.options import check_count
from amos.network import engine

if TYPE_CHECKING:
    import pandas as pd

    from amos.network.model import CompiledNetwork

#: Runs before the first that counts.
_WARM = 2
#: What the virtual machine calls for its own purposes, and no network asks for.
_OWN = "vm.builtin."


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
        network: its name.
        seconds: of a whole run without an observer, the median.
        rows: functions, the longest first.
    """

    network: str
    seconds: float
    rows: tuple[ProfileRow, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a function; seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        rows = [asdict(row) for row in self.rows]
        return {"network": self.network, "seconds": self.seconds, "functions": rows}

    def __str__(self) -> str:
        lines = [f"{self.network}: {self.seconds * 1e3:.4g} ms"]
        for row in self.rows:
            said = f"{row.seconds * 1e3:8.4f} ms  {row.share:6.1%}  {row.count:3} x {row.name}"
            if row.predicted is not None:
                said += f", predicted {row.predicted * 1e3:.4f} ms"
            lines += [f"  {said}"] + ([f"      {row.operator}"] if row.operator else [])
        return "\n".join(lines)


def profile(model: CompiledNetwork, arrays: Sequence[Any], repeat: int) -> Profile:
    """See :meth:`CompiledNetwork.profile <amos.network.model.CompiledNetwork.profile>`."""
    check_count("repeat", repeat)
    for _ in range(_WARM):
        model.outputs_of(arrays)
    whole = []
    for _ in range(repeat):
        start = time.perf_counter()
        model.outputs_of(arrays)
        whole.append(time.perf_counter() - start)
    (runs,) = observed([model], arrays, [0] * repeat)
    rows = _rows(model, runs)
    return Profile(model.network.name, statistics.median(whole), rows)


def observed(
    models: Sequence[CompiledNetwork], arrays: Sequence[Any], turns: Iterable[int]
) -> list[list[dict[str, list[float]]]]:
    """Seconds of each call of each function, for each model and run.

    Args:
        models: what runs, on the same inputs.
        arrays: inputs in order.
        turns: positions of the models that run, one after the other.
    """
    observers = [_Observer() for _ in models]
    machines = [engine.machine_of(model.executable) for model in models]
    for machine, observer in zip(machines, observers, strict=True):
        machine.set_instrument(observer)
    values = models[0].tensors(arrays)
    for n in turns:
        observers[n].runs.append({})
        machines[n][models[n].function](*values)
    return [observer.runs for observer in observers]


class _Observer:
    """Called by the virtual machine before and after each call."""

    def __init__(self) -> None:
        #: Seconds of each call of each function, run by run.
        self.runs: list[dict[str, list[float]]] = []
        self._start = 0.0

    def __call__(self, _: Any, symbol: str, before: bool, *rest: Any) -> int:
        now = time.perf_counter()
        if not before and self.runs and not symbol.startswith(_OWN):
            self.runs[-1].setdefault(symbol, []).append(now - self._start)
        self._start = time.perf_counter()
        return 0


def _rows(model: CompiledNetwork, runs: Sequence[dict[str, list[float]]]) -> tuple[ProfileRow, ...]:
    kernels = {kernel.symbol: kernel for kernel in model.kernels.values()}
    seconds = {name: statistics.median(sum(run[name]) for run in runs) for name in runs[0]}
    total = sum(seconds.values())
    rows = []
    for name, taken in seconds.items():
        kernel, count = kernels.get(name), len(runs[0][name])
        rows.append(
            ProfileRow(
                name=kernel.operator.name if kernel else name,
                operator=str(kernel.operator) if kernel else "",
                count=count,
                seconds=taken,
                predicted=kernel.choice.predicted * count if kernel else None,
                share=taken / total,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))
