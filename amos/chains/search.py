"""Searching the kernels of a chain: shared tiles, and the mapping and schedule of each product.

A rough estimate ranks the tilings whose temporaries fit the cache of a core. The model maps the
products of the best ones and of some drawn ones. The most promising candidates are measured
(:mod:`amos.chains.trials`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from amos import machines
from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.exploration import ChainExploration, ChainTrial
from amos.chains.loops import suits_loops
from amos.chains.model import predict_chain, rough_seconds
from amos.chains.records import ChainLog
from amos.chains.tiling import Tiling
from amos.chains.tilings import tilings_of
from amos.chains.trials import ChainOption, ListedOptions, Measuring, run_trials
from amos.errors import ExploreError, MappingError, quote
from amos.explore.choosing import Chooser, Product
from amos.explore.contenders import select_intrinsics
from amos.explore.genetic import GeneticSearch
from amos.explore.options import MeasureOptions, SearchOptions, check_run
from amos.intrinsics import Intrinsic
from amos.ir import Chain, Operator
from amos.ir.limits import dictionary
from amos.machine import Machine
from amos.measure.executor import LocalExecutor, open_executor
from amos.measure.rpc_executor import RpcExecutor
from amos.plan.target import ExecutorRequest, load, target_of
from amos.records import Records
from amos.records.canonical import identity_of

#: Tilings that are searched: the best by the rough prediction, and drawn ones.
_BEST, _DRAWN = 10, 3
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
    tilings: Sequence[Tiling] | None = None,
    records: str | Path | None = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008 (frozen)
    measure: MeasureOptions = MeasureOptions(),  # noqa: B008 (frozen)
    progress: Callable[[ChainTrial, int], None] | None = None,
) -> ChainExploration:
    """Search tiles, mappings and schedules for a chain.

    Args:
        intrinsic: instructions that may compute products; by default those of the machine. Loops
            compute products that none of them fits.
        machine: ``"host"`` or an OpenCL device, where candidates are measured, or another, where
            the model decides.
        tiles: tiles that every candidate has, by iteration.
        tilings: on a CPU, those that are searched, in place of ``tiles``; by default all that fit.
        records: file to keep every trial in; the same call goes on where an earlier one stopped.
        search: ``epsilon`` and ``time_limit`` count; on OpenCL devices also ``fix``, of
            ``map.LOOP``, ``memory.TENSOR``, ``copy.INPUT``, ``items`` and ``intrinsic.TENSOR``.
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
    if tiles is not None and tilings is not None:
        raise ExploreError(f"tiles = {quote(tiles)}: expected none beside tilings")
    target = machines.get(machine, [])
    kernels = target_of(target).chains
    _check(tiles, search, {"epsilon", "time_limit", *(["fix"] if kernels else [])}, target.name)
    if not kernels and (not target.cached or target_of(target) is not target_of(None)):
        raise ExploreError(f"machine {target.name!r}: chains are for CPUs and OpenCL only")
    rng, notes = np.random.default_rng(seed), list[str]()
    with contextlib.ExitStack() as stack:
        executor = _open_executor(machine, target, measure, notes.append)
        if executor is not None:
            stack.enter_context(executor)
        if kernels:
            units, is_named = select_intrinsics(intrinsic, target), intrinsic is not None
            listed: ListedOptions = load(f"{kernels}.search.list_options")(
                chain, target, tiles or {}, search.fix, rng, units=units, is_named=is_named
            )
        else:
            refused: tuple[str, ...] = ()
            if tilings is None:
                tilings, refused = tilings_of(chain, target, tiles or {})
            listed = _list_for_cpu(tilings, refused, intrinsic, machine, rng)
        log = None
        if records is not None:
            store = stack.enter_context(Records(records))
            identity = identity_of(target) if executor is None else executor.identity
            log = ChainLog(store, chain, identity, seed, _describe_options(search, measure), target)
        measuring = Measuring(executor, measure, log)
        done = (*run_trials(listed.options, measuring, trials, rng, search, progress),)
        replayed = log.replayed if log else 0
        return ChainExploration(
            chain, target, seed, listed.tilings, done, listed.refused, replayed, tuple(notes)
        )


def _describe_options(search: SearchOptions, measure: MeasureOptions) -> dict[str, Any]:
    """Return the options that tell two searches of a chain apart."""
    fixed = [[name, value] for name, value in search.fix]
    return measure.to_record() | ({"fix": fixed} if fixed else {})


def _open_executor(
    machine: str | Machine,
    target: Machine,
    measure: MeasureOptions,
    notify: Callable[[str], None],
) -> LocalExecutor | None:
    """Open what measures kernels; ``None`` where the model decides."""
    if target_of(target).chains:
        request = ExecutorRequest(target, measure.executor, timeout=measure.timeout, notify=notify)
        opened = target_of(target).open_executor(request)
    elif getattr(machine, "name", machine) == "host" and measure.executor != "model":
        opened = open_executor(measure.executor, measure.timeout, measure.memory, None, None)
    else:
        return None
    if opened is not None and (
        not isinstance(opened, LocalExecutor) or isinstance(opened, RpcExecutor)
    ):
        raise ExploreError("chains are measured on this machine only")
    return opened


def _list_for_cpu(
    tilings: Sequence[Tiling],
    refused: tuple[str, ...],
    intrinsic: str | Intrinsic | Sequence[str | Intrinsic] | None,
    machine: str | Machine,
    rng: np.random.Generator,
) -> ListedOptions:
    """List kernels whose products instructions compute."""
    target, units = machines.get(machine, []), select_intrinsics(intrinsic, machine)
    chooser = Chooser(machine, core=True, intrinsics=units)
    options = list_options(tilings, chooser, target, best=_BEST, rng=rng)
    if intrinsic is not None and not any(each.candidate.products for each in options):
        raise _refuse_instructions(units, tilings[0], chooser)
    return ListedOptions(options, len(tilings), refused)


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
        chooser: maps products, for one core.
        best: number of promising tilings.
        rng: draws further ones; none without it.
    """
    ranked = sorted(tilings, key=lambda tiling: rough_seconds(tiling, machine))
    chosen, second = ranked[:best], ranked[best : 4 * best]
    if rng is not None:
        chosen += [second[int(n)] for n in rng.permutation(len(second))[:_DRAWN]]
    return [each for tiling in chosen for each in _options(tiling, chooser, machine)]


def _check(
    tiles: Mapping[str, int] | None, search: object, options: set[str], machine: str
) -> None:
    """Refuse tiles that are no sizes by iteration, and options that mean nothing for chains."""
    for name, size in dictionary(tiles, "tiles").items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise ExploreError(f"tile.{name}: expected a whole number, got {quote(size)}")
    if not isinstance(search, SearchOptions):
        raise ExploreError(f"search: expected amos.SearchOptions, got {quote(search)}")
    usual = SearchOptions()
    for name in (field.name for field in fields(SearchOptions) if field.name not in options):
        if (value := getattr(search, name)) != getattr(usual, name):
            raise ExploreError(
                f"search: {name} does not apply to chains on {machine}, got {quote(value)}; "
                f"{', '.join(sorted(options))} do"
            )


def _options(tiling: Tiling, chooser: Chooser, machine: Machine) -> Iterator[ChainOption]:
    """List candidates of a tiling: each product's best kernels, packed ahead or at use."""
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
    """Rank kernels of a product in a tile, the fastest predicted first.

    Raises:
        MappingError: no instruction can be used; the message says why.
    """
    ranked = chooser.rank(operator, _KERNELS, search=_Search, instructions=_INSTRUCTIONS)
    return ranked[:_KERNELS]


def chain_candidate(kernel: object) -> Any:
    """Return the candidate of a chain's exploration, trial or kernel, for any target.

    Raises:
        ExploreError: this is none.
    """
    if isinstance(kernel, ChainExploration):
        kernel = kernel.best
    if isinstance(kernel, ChainTrial):
        kernel = kernel.candidate
    if not isinstance(getattr(kernel, "tiling", None), Tiling):
        raise ExploreError(f"expected a trial of a chain, got {type(kernel).__name__}")
    return kernel
