"""Searches over the chains of a network, whose kernels compete with those of single tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from amos.chains.exploration import ChainTrial
from amos.chains.search import explore_chain
from amos.chains.tiling import Tiling
from amos.errors import AmosError, MeasureError, RecordError
from amos.explore.choosing import Chooser
from amos.explore.options import MeasureOptions
from amos.ir import Chain
from amos.network.attention import match_attention
from amos.network.lowerings.cascade import is_layered, list_tilings
from amos.network.lowerings.fused import choose_fused
from amos.network.network import Network
from amos.network.tuned import TunedTask


@dataclass(frozen=True, eq=False)
class SearchedChain:
    """A distinct chain of some networks.

    Attributes:
        tilings: that are searched; ``None`` for all that fit.
    """

    chain: Chain
    count: int
    tilings: Sequence[Tiling] | None


def list_chains(networks: Iterable[Network], chooser: Chooser) -> tuple[SearchedChain, ...]:
    """List attention, and the layers that are predicted to be faster as a chain."""
    counts, machine = Counter[Chain](), chooser.target(())
    for network in networks:
        counts.update(x.chain for x in match_attention(network.graph, network.grouping))
        for job in choose_fused(network, chooser):
            if isinstance(job.operator, Chain) and is_layered(job.operator):
                counts[job.operator] += job.weight
    return tuple(
        SearchedChain(each, count, list_tilings(each, machine) if is_layered(each) else None)
        for each, count in counts.items()
    )


def tune_chains(
    chains: Sequence[SearchedChain],
    trials: int,
    records: str | Path,
    *,
    seed: int,
    measure: MeasureOptions,
    progress: Callable[[str], object],
) -> tuple[TunedTask, ...]:
    """Measure kernels of each chain on this machine, and record them.

    Args:
        trials: kernels of each chain.
        records: file that keeps every trial.
        progress: called with a line before each chain, and after each of its kernels.

    Raises:
        MeasureError: there is nothing to measure with.
        RecordError: the record file cannot be read or written.
    """
    rows = []
    for number, searched in enumerate(chains, 1):
        chain = searched.chain
        place = f"chain {number} of {len(chains)}: {chain.name}"
        progress(place)
        row = TunedTask(chain.name, str(chain), searched.count)
        try:
            result = explore_chain(
                chain,
                trials=trials,
                seed=seed,
                tilings=searched.tilings,
                records=records,
                measure=measure,
                progress=partial(_show_trial, progress, place),
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


def _show_trial(
    progress: Callable[[str], object], place: str, trial: ChainTrial, trials: int
) -> None:
    progress(f"{place}, kernel {trial.number + 1} of {trials}: {trial.seconds * 1e3:.3f} ms")
