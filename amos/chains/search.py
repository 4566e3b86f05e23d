"""Searching the kernels of a chain: shared tiles, and the mapping and schedule of each product.

A rough estimate ranks the tilings whose temporaries fit the cache of a core. The model maps the
products of the best ones and of some drawn ones. The most promising candidates are measured
(:mod:`amos.chains.trials`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

from amos import machines
from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.exploration import ChainExploration, ChainTrial
from amos.chains.loops import suits_loops
from amos.chains.model import predict_chain, rough_seconds, temporary_bytes
from amos.chains.records import ChainLog
from amos.chains.tiling import Tiling
from amos.chains.trials import ChainOption, Measuring, run_trials
from amos.errors import ExploreError, MappingError, ScheduleError, shown
from amos.explore.choosing import Chooser, Product
from amos.explore.contenders import select_intrinsics
from amos.explore.genetic import GeneticSearch
from amos.explore.options import MeasureOptions, SearchOptions, check_run
from amos.intrinsics import Intrinsic
from amos.ir import Chain, Operator
from amos.ir.limits import dictionary
from amos.machine import Machine
from amos.machine.identity import here
from amos.measure.executor import LocalExecutor, open_executor
from amos.plan.target import target_of
from amos.records import Records
from amos.records.canonical import identity_of

#: Share of the cache near a core that temporaries may take, and of tilings that are looked at
#: closely so many by the rough account and so many drawn.
_SHARE, _BEST, _DRAWN = 0.75, 10, 3
#: Instructions that are searched for a product, those that a brief search predicts fastest, and
#: kernels of it that are combined with those of others.
_INSTRUCTIONS, _KERNELS = 2, 3


def explore_chain(
    chain: Chain,
    intrinsic: str | Intrinsic | Sequence[str | Intrinsic] | None = None,
    *,
    machine: str | Machine = "host",
    trials: int = 64,
    seed: int = 0,
    tiles: dict[str, int] | None = None,
    records: str | Path | None = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008 (frozen)
    measure: MeasureOptions = MeasureOptions(),  # noqa: B008 (frozen)
    progress: Callable[[ChainTrial, int], None] | None = None,
) -> ChainExploration:
    """Search tiles, mappings and schedules for a chain.

    Args:
        chain: what to compute.
        intrinsic: instructions that may compute products; by default those of the machine. Loops
            compute products that none of them fits.
        machine: ``"host"``, where candidates are measured, or another, where the model decides.
        trials: how many candidates to try.
        seed: of the one random generator.
        tiles: tiles that every candidate has, by iteration.
        records: file to keep every trial in; the same call goes on where an earlier one stopped.
        search: ``epsilon`` and ``time_limit`` count.
        measure: where and within which limits.
        progress: called after each trial, with it and the number of trials.

    Raises:
        ExploreError: nothing fits the machine, a number is not of the right kind, a target has
            no kernels of chains, or instructions that are named fit no product.
        ScheduleError: the tiles that are asked for change the result.
        MeasureError: there is nothing to measure with.
        RecordError: the record file cannot be read or written.
    """
    check_run(trials, seed, measure)
    _check(tiles, search)
    rng = np.random.default_rng(seed)
    own = getattr(machine, "name", machine) == "host"
    with contextlib.ExitStack() as stack:
        executor: LocalExecutor | None = None
        if own and measure.executor != "model":
            opened = open_executor(measure.executor, measure.timeout, measure.memory, None, None)
            if not isinstance(opened, LocalExecutor):
                raise ExploreError("chains are measured on this machine only")
            executor = stack.enter_context(opened)
        target = machines.get(machine, [])
        if not target.cached or target_of(target) is not target_of(None):
            raise ExploreError(f"machine {target.name!r}: chains become kernels of CPUs only")
        units = select_intrinsics(intrinsic, machine)
        chooser = Chooser(machine, core=True, intrinsics=units)
        tilings, refused = tilings_of(chain, target, tiles or {})
        options = list_options(tilings, chooser, target, best=_BEST, rng=rng)
        if intrinsic is not None and not any(each.candidate.products for each in options):
            raise _refuse_instructions(units, tilings[0], chooser)
        log = None
        if records is not None:
            identity = here() if executor is not None else identity_of(target)
            store = stack.enter_context(Records(records))
            log = ChainLog(store, chain, identity, seed, measure.recorded())
        measuring = Measuring(executor, measure, log)
        done = (*run_trials(options, measuring, trials, rng, search, progress),)
        replayed = log.replayed if log else 0
        return ChainExploration(chain, target, seed, len(tilings), done, refused, replayed)


def _refuse_instructions(
    units: Sequence[Intrinsic], tiling: Tiling, chooser: Chooser
) -> ExploreError:
    """Return why instructions that are named compute no product of a chain."""
    chain, reasons = tiling.chain, list[str]()
    if all(unit.tile_registers for unit in units):
        names = ", ".join(unit.name for unit in units)
        return ExploreError(f"{names}: kernels of chains have no tile registers")
    for slot in slots_of(tiling, frozenset()):
        try:
            rank_products(slot.operator, chooser)
        except MappingError as error:
            reasons.append(f"{chain.statement_of(slot.tensor).text!r}: {error}")
    return ExploreError("; ".join(reasons) or f"{chain.name}: no statement is a sum of products")


def list_options(
    tilings: Sequence[Tiling],
    chooser: Chooser,
    machine: Machine,
    *,
    best: int,
    rng: np.random.Generator | None = None,
) -> list[ChainOption]:
    """List the kernels of tilings that a rough estimate finds promising, and of some drawn ones.

    Args:
        tilings: of a chain.
        chooser: maps products, for one core.
        machine: where they run.
        best: number of promising tilings.
        rng: draws further ones; none without it.
    """
    ranked = sorted(tilings, key=lambda tiling: rough_seconds(tiling, machine))
    chosen, second = ranked[:best], ranked[best : 4 * best]
    if rng is not None:
        chosen += [second[int(n)] for n in rng.permutation(len(second))[:_DRAWN]]
    return [each for tiling in chosen for each in _options(tiling, chooser, machine)]


def _check(tiles: Mapping[str, int] | None, search: object) -> None:
    """Refuse tiles that are no sizes by iteration, and options that mean nothing for chains."""
    for name, size in dictionary(tiles, "tiles").items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise ExploreError(f"tile.{name}: expected a whole number, got {shown(size)}")
    if not isinstance(search, SearchOptions):
        raise ExploreError(f"search: expected amos.SearchOptions, got {shown(search)}")
    usual = SearchOptions(epsilon=search.epsilon, time_limit=search.time_limit)
    for option in fields(SearchOptions):
        if (value := getattr(search, option.name)) != getattr(usual, option.name):
            raise ExploreError(
                f"search: {option.name} does not apply to chains, got {shown(value)}; epsilon and "
                "time_limit do"
            )


def tilings_of(
    chain: Chain, machine: Machine, fixed: dict[str, int]
) -> tuple[list[Tiling], tuple[str, ...]]:
    """The tilings of a chain that fit a machine, and why others do not.

    Raises:
        ExploreError: none does.
        ScheduleError: what is fixed changes the result.
    """
    result = _result_loops(chain)
    near = machine.private_cache
    rolling_loops = _rolling_loops(chain, result)
    choices = [
        [fixed[n]] if n in fixed else _sizes(chain.extents[n], _count_halo(rolling_loops.get(n)))
        for n in result
    ]
    cuts = [n for n in _reduced(chain) if n not in result]
    cut_choices: list[dict[str, int]] = [{}] if not fixed.keys() - set(result) else []
    for name in cuts:
        sizes = [fixed[name]] if name in fixed else _parts(chain.extents[name])
        cut_choices += [{name: size} for size in sizes]
    if unknown := fixed.keys() - {*result, *cuts}:
        Tiling.of(chain, {name: fixed[name] for name in unknown})
    tilings, refused, least = list[Tiling](), dict[str, None](), math.inf
    for cut in cut_choices:
        for chosen in product(*choices):
            tiles = {n: s for n, s in zip(result, chosen, strict=True) if s < chain.extents[n]}
            attempts = ("", *(n for n in rolling_loops if n in tiles and not cut))
            reasons = list[str]()
            for rolling in attempts:
                try:
                    tiling = Tiling.of(chain, tiles | cut, rolling)
                    size = temporary_bytes(tiling)
                except ScheduleError as error:
                    reasons.append(str(error))
                    continue
                least = min(least, size)
                if rolling and not _suits_rolling(tiling, rolling_loops[rolling], near, fixed):
                    continue
                if not near or size <= _SHARE * near or fixed.keys() >= {*result}:
                    tilings.append(tiling)
            if len(reasons) == len(attempts):
                refused[reasons[-1]] = None
    if not tilings and math.isinf(least):
        raise ScheduleError(next(iter(refused)))
    if not tilings:
        largest = max(chain.temporaries, key=lambda tensor: tensor.nbytes)
        why = f"; {next(iter(refused))}" if refused else ""
        raise ExploreError(
            f"{chain.statement_of(largest.name).text!r}: temporaries take at least {least:,.0f} "
            f"bytes of a core, of {near:,} near it, {largest.name!r} most{why}"
        )
    return tilings, tuple(refused)


def _result_loops(chain: Chain) -> list[str]:
    """List the iterations of the result, those that move more inputs further out.

    What does not move while an inner loop does is read, or packed, once.
    """
    names = [n for index in chain.steps[-1].output.indices for n in index.names]
    names = [name for name in names if chain.extents[name] > 1]

    def count_moved(name: str) -> int:
        try:
            boxes = Tiling.of(chain, {name: 1}).boxes
        except ScheduleError:  # it stays whole
            return len(chain.inputs)
        boxes = {tensor.name: boxes.get(tensor.name, ()) for tensor in chain.inputs}
        return sum(any(name in place.start.names for place in box) for box in boxes.values())

    return sorted(names, key=count_moved, reverse=True)


def _rolling_loops(chain: Chain, loops: Sequence[str]) -> dict[str, Tiling]:
    """Return the loops along which tiles can keep rows, with the smallest tiles of whole rows."""
    rolling, tiles = dict[str, Tiling](), dict[str, int]()
    for name in (n for index in chain.steps[-1].output.indices for n in index.names if n in loops):
        tiles[name] = 1  # dimensions before that of rows are one
        with contextlib.suppress(ScheduleError):
            rolling[name] = Tiling.of(chain, tiles, name)
    return rolling


def _count_halo(tiling: Tiling | None) -> int:
    """Count the rows that tiles keep at the most."""
    return max((rows.halo for rows in tiling.layout.rolling.values()), default=0) if tiling else 0


def _suits_rolling(tiling: Tiling, smallest: Tiling, near: int, fixed: Mapping[str, int]) -> bool:
    """Whether a tiling that rolls is worth a look.

    Rows are computed several together, so that they share what they read. Whole ones that have
    room are faster than parts of them, of which each tile has all rows elsewhere in memory.
    """
    rolling = tiling.layout.rolling.values()
    if any(x.padding is None and x.unit < min(x.halo, x.fresh) for x in rolling):
        return False
    fits = not near or temporary_bytes(smallest) <= _SHARE * near
    cut = {loop.name for loop in tiling.loops} - {loop.name for loop in smallest.loops}
    return not fits or not cut - fixed.keys()


def _sizes(extent: int, halo: int) -> list[int]:
    """Tiles of a shared loop: few of them, each twice the one before, and the whole.

    So are tiles that roll: those of 1, 2, 4 … times the rows that they keep.
    """
    powers = [1 << n for n in range(extent.bit_length()) if 1 << n < extent]
    sizes = {n for n in powers if n == 1 or n >= 8} | {
        halo * n for n in powers if halo * n < extent
    }
    return sorted(sizes - {0}) + [extent]


def _parts(extent: int) -> list[int]:
    """Parts of a row, which divide it."""
    return [n for n in range(16, extent) if extent % n == 0 and n & (n - 1) == 0 or 2 * n == extent]


def _reduced(chain: Chain) -> list[str]:
    reduced = {it.name for step in chain.steps for it in step.reduce}
    spatial = {it.name for step in chain.steps[:-1] for it in step.spatial}
    return [name for name in chain.extents if name in reduced & spatial]


def _options(tiling: Tiling, chooser: Chooser, machine: Machine) -> Iterator[ChainOption]:
    """Candidates of a tiling: each product's best kernels, packed ahead or where they are used."""
    names = frozenset(slot.tensor for slot in slots_of(tiling, frozenset()))
    packing = any(slot.packed for slot in slots_of(tiling, names))
    for packs in (True, False) if packing else (False,):
        packed = names if packs else frozenset[str]()
        ranked: dict[str, list[Product | None]] = {}
        for slot in slots_of(tiling, packed):
            kernels: list[Product | None] = []
            with contextlib.suppress(MappingError):  # loops compute it
                kernels += rank_products(slot.operator, chooser)
            if suits_loops(slot.operator):
                kernels.append(None)
            ranked[slot.tensor] = kernels or [None]
        for combination in product(*ranked.values()):
            pairs = zip(ranked, combination, strict=True)
            chosen = {name: kernel for name, kernel in pairs if kernel is not None}
            if packs and not chosen:
                continue  # the same without
            candidate = ChainCandidate(
                tiling, {name: each.candidate for name, each in chosen.items()}, packed
            )
            seconds = {name: each.prediction.seconds for name, each in chosen.items()}
            prediction = predict_chain(tiling, seconds, packs, machine)
            keys = [(str(tiling), packs), *((n, each.candidate.key) for n, each in chosen.items())]
            mappings = prod(each.mappings for each in chosen.values())
            yield ChainOption(candidate, prediction, mappings, (*keys,))


class _Search(GeneticSearch):
    """The usual search, for some milliseconds."""

    inner = 64


def rank_products(operator: Operator, chooser: Chooser) -> list[Product]:
    """Rank kernels of a product in a tile, the one that is predicted fastest first.

    Raises:
        MappingError: no instruction can be used; the message says why.
    """
    ranked = chooser.rank(operator, _KERNELS, search=_Search, instructions=_INSTRUCTIONS)
    return ranked[:_KERNELS]


def chain_candidate(kernel: object) -> ChainCandidate:
    """What a kernel of a chain is built of.

    Raises:
        ExploreError: this is none.
    """
    if isinstance(kernel, ChainExploration):
        kernel = kernel.best
    if isinstance(kernel, ChainTrial):
        kernel = kernel.candidate
    if not isinstance(kernel, ChainCandidate):
        raise ExploreError(f"expected a trial of a chain, got {type(kernel).__name__}")
    return kernel
