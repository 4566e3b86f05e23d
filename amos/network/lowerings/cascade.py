"""Lowering chains: to tiles that fit the caches near a core, or bands of rows that roll.

Computed one by one, layers send their results to memory, or to a cache that all cores share. In
bands of rows they stay in the caches near a core (Alwani et al., *Fused-layer CNN accelerators*,
MICRO 2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.model import predict_chain, temporary_bytes
from amos.chains.search import list_options
from amos.chains.tiling import Tiling
from amos.chains.tilings import tilings_of
from amos.chains.trials import ChainOption
from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain, Operator
from amos.machine import Machine
from amos.network.lowerings.base import predict_transfer
from amos.network.lowerings.cascade_matching import IMAGES, ROWS, is_pointwise
from amos.network.lowerings.chains import FusedChain

#: Share of a core's private cache that intermediate tensors of layers may take.
_SHARE = 0.5
#: Tilings whose products are mapped, at the least.
_LEAST = 3


def lower_chain(
    chain: Chain, tilings: Sequence[Tiling], chooser: Chooser, count: int
) -> tuple[FusedChain, ...]:
    """Lower a chain to kernels of different tiles, those that are predicted fastest first.

    Empty if nothing fits the machine.

    Args:
        count: of kernels at most; all bands of rows that roll.
    """
    if any(tiling.rolls for tiling in tilings):
        bands = filter(None, (lower_cascade(each, chooser) for each in tilings))
        return (*sorted(bands, key=lambda lowering: lowering.predicted),)
    try:
        options = list_options(
            tilings, chooser.core, chooser.target(()), best=max(_LEAST, 2 * count)
        )
    except AmosError:
        return ()
    options.sort(key=lambda option: option.prediction.seconds)
    distinct: dict[object, ChainOption] = {}
    for option in options:
        distinct.setdefault(frozenset(option.candidate.tiling.tiles.items()), option)
    return tuple(FusedChain(chain, option) for option in [*distinct.values()][:count])


def lower_cascade(bands: Tiling, chooser: Chooser) -> FusedChain | None:
    """Lower bands of a cascade; ``None`` if no instruction computes one of its layers."""
    machine, cascade = chooser.target(()), bands.chain
    slots = slots_of(bands, frozenset())
    try:
        products = {slot.tensor: chooser.core.choose(slot.operator) for slot in slots}
    except AmosError:
        return None
    seconds = {name: product.prediction.seconds for name, product in products.items()}
    prediction = predict_chain(bands, seconds, False, machine)
    # The model takes inputs and results of a band to be in a private cache.
    read = sum(each.stored_bytes for each in cascade.inputs)
    transfer = predict_transfer(machine, read, cascade.result.stored_bytes) - machine.launch
    prediction = replace(prediction, seconds=prediction.seconds + transfer)
    candidate = ChainCandidate(bands, {name: each.candidate for name, each in products.items()})
    mappings = prod(product.mappings for product in products.values())
    return FusedChain(cascade, ChainOption(candidate, prediction, mappings, ()))


def bands_of(cascade: Chain, rows: int) -> Tiling:
    """Return the bands of some rows of each image; they need rows of the band before."""
    return Tiling.of(cascade, {IMAGES: 1, ROWS: rows}, rolling=ROWS)


def is_layered(chain: Chain) -> bool:
    """Return whether all statements are products, as of consecutive layers."""
    return all(isinstance(step, Operator) for step in chain.steps)


def list_tilings(chain: Chain, machine: Machine) -> Sequence[Tiling]:
    """List the tilings of a chain that a network's kernels choose between; empty if none fits.

    Layers come in bands of rows.
    """
    if max(each.elements for each in (*chain.inputs, chain.result)) > MOST_ELEMENTS:
        return ()
    if is_layered(chain):
        reads_rows = all(is_pointwise(layer) for layer in chain.products)
        return [*(_list_blocks if reads_rows else _list_bands)(chain, machine)]
    try:
        return tilings_of(chain, machine, {})[0]
    except AmosError:
        return ()


def _list_bands(cascade: Chain, machine: Machine) -> Iterator[Tiling]:
    """List bands that roll, of at least twice the rows of the last; those between hardly differ."""
    if _has_resident_intermediate(cascade, machine):
        return
    capacity = _SHARE * machine.private_cache
    last, count = 0, cascade.extents[ROWS]
    for rows in (n for n in range(1, count + 1) if count % n == 0):
        if rows < 2 * last:
            continue
        try:
            bands = bands_of(cascade, rows)
        except ScheduleError:
            return
        halos = (each.halo <= each.fresh for each in bands.layout.rolling.values())
        if all(halos) and temporary_bytes(bands) <= capacity:
            last = rows
            yield bands


def _list_blocks(chain: Chain, machine: Machine) -> Iterator[Tiling]:
    """List blocks of rows that share nothing: halves of each loop, which cores share evenly."""
    *loops, _ = (index.names[0] for index in chain.steps[-1].output.indices if index.names)
    for place, loop in enumerate(loops):
        outer, size = dict.fromkeys(loops[:place], 1), chain.extents[loop]
        while size > 1:
            blocks = Tiling.of(chain, {**outer, loop: size})
            if blocks.count > 1 and temporary_bytes(blocks) <= _SHARE * machine.private_cache:
                yield blocks
            size = -(-size // 2)


def _has_resident_intermediate(cascade: Chain, machine: Machine) -> bool:
    """Return whether the first intermediate tensor fits in the private caches anyway."""
    return cascade.temporaries[0].stored_bytes <= machine.private_cache * machine.cores
