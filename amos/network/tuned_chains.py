"""Searches over the chains of a network, whose kernels compete with those of single tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from amos.chains.search import explore_chain
from amos.errors import AmosError, MeasureError, RecordError
from amos.explore.options import MeasureOptions
from amos.ir import Chain
from amos.network.tuned import TunedTask


def tune_chains(
    chains: Mapping[Chain, int],
    trials: int,
    records: str | Path,
    *,
    seed: int,
    measure: MeasureOptions,
    progress: Callable[[str], object],
) -> tuple[TunedTask, ...]:
    """Measure kernels of each chain on this machine, and record them.

    Args:
        chains: with the number of calls of each.
        trials: kernels of each chain.
        records: file that keeps every trial.
        seed: of the searches.
        measure: how to measure.
        progress: called with a line before each chain.

    Raises:
        MeasureError: there is nothing to measure with.
        RecordError: the record file cannot be read or written.
    """
    rows = []
    for number, (chain, count) in enumerate(chains.items(), 1):
        progress(f"chain {number} of {len(chains)}: {chain.name}")
        row = TunedTask(chain.name, str(chain), count)
        try:
            result = explore_chain(
                chain, trials=trials, seed=seed, records=records, measure=measure
            )
            best = result.best
        except (MeasureError, RecordError):
            raise
        except AmosError as error:
            rows.append(replace(row, reason=" ".join(str(error).split("\n")[:2])))
            continue
        units = (each.mapping.intrinsic.name for each in best.candidate.products.values())
        rows.append(
            replace(
                row,
                trials=len(result.trials),
                replayed=result.replayed,
                predicted=min(trial.predicted for trial in result.trials),
                seconds=best.seconds,
                instruction=" + ".join(units),
            )
        )
    return tuple(rows)
