"""Contenders timed in turns on one model, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contenders.disturbance import Disturbance
from contenders.pool import ContenderError, Pool

__all__ = ["race"]

#: Seconds between two turns, in which idle thread pools go to sleep.
PAUSE = 0.05
#: Turns of a contender in a round, of which the last one counts: one beside which another virtual
#: machine computed on the same cores is repeated.
TURNS = 8


def race(
    pool: Pool,
    contenders: Sequence[str],
    path: Path,
    inputs: Path,
    records: Path,
    threads: int,
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Load a model with every contender, check the result, and time them in rounds.

    Args:
        pool: of the processes.
        contenders: by name.
        path: of the model.
        inputs: ``.npz`` of its inputs by name.
        records: that AMOS takes kernels of.
        threads: of each contender.
        rounds: in each of which everyone is timed once.

    Returns:
        of each contender that took part: median of the rounds and least of them in seconds, the
        quartiles' distance as a share of the median, the relative difference from the
        reference, and the seconds to load.
    """
    pool.ask("reference", "prepare", path=str(path), inputs=str(inputs))
    loaded: dict[str, dict[str, Any]] = {}
    seconds: dict[str, list[float | None]] = {}

    def ask(contender: str, command: str, /, **arguments: Any) -> Any:
        """Its answer; one that fails takes no further part."""
        try:
            return pool.ask(contender, command, **arguments)
        except ContenderError as error:
            print(f"  {path.stem}: {contender} is left out: {error}", flush=True)
            loaded.pop(contender, None)

    files = dict(path=str(path), inputs=str(inputs), records=str(records))
    for contender in contenders:
        told = ask(contender, "load", contender=contender, threads=threads, **files)
        if told is not None:
            loaded[contender], seconds[contender] = told, []
    disturbance = Disturbance()
    for number in range(rounds):
        # The order changes, so that nobody always follows the same one.
        for contender in list(loaded)[:: 1 if number % 2 else -1]:
            seconds[contender].append(_time_turn(partial(ask, contender, "time"), disturbance))
    for contender in list(loaded):
        ask(contender, "drop")
    rows = {}
    for contender, told in loaded.items():
        low, middle, high = np.percentile(seconds[contender], [25, 50, 75])
        spread = (high - low) / middle
        rows[contender] = dict(
            median_seconds=middle, least_seconds=min(seconds[contender]), spread=spread, **told
        )
    return rows


def _time_turn(measure: Callable[[], float | None], disturbance: Disturbance) -> float | None:
    """Seconds of a contender's turn, which is repeated beside a disturbance; none if it failed."""
    for _ in range(TURNS):
        time.sleep(PAUSE)
        seconds = measure()
        if seconds is None or not disturbance.is_present():
            break
    return seconds
