"""Random chains of two to four statements, in random tiles, against an oracle of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np

import amos.chains.kernel
from amos.chains import ChainCandidate, ChainKernel, Tiling, simulate_tiling
from amos.chains.records import candidate_from
from amos.errors import BuildError, ExploreError, OperatorError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain, Operator
from amos.ir.transforms import unrolled_loops
from amos.machine.cpu import cpu
from tests.fuzz.case import Refused, Wrong
from tests.support.chains import best_candidate
from tests.support.drawing.chains import DrawnChain

__all__ = ["candidate", "kernel", "simulation"]


def _drawn(rng: np.random.Generator) -> DrawnChain:
    drawn = DrawnChain(
        rng,
        whole=bool(rng.random() < 0.25),
        layered=bool(rng.random() < 0.2),
        infinite=bool(rng.random() < 0.4),
    )
    last = drawn.start()
    for _ in range(int(rng.integers(1, 4))):
        last = drawn.grow(last)
    if not drawn.layered and rng.random() < 0.1:
        drawn.transform(last, merged=True)
    if len(drawn.texts) < 2:
        raise Refused("one statement")
    if drawn.layered and len(drawn.layers) < len(drawn.texts):  # whose texts lack epilogues
        raise Refused("a statement behind a number, which is no product")
    if not drawn.fits:
        raise Refused("integers that may overflow")
    return drawn


def _used(drawn: DrawnChain, text: str) -> dict[str, int]:
    """The extents of the loops of a text."""
    return {name: drawn.extents[name] for name in dict.fromkeys(re.findall(r"\bl\d+", text))}


def _chain(drawn: DrawnChain, about: Callable[[str], None]) -> Chain:
    """The chain of what was drawn, as operators or as a text."""
    shapes = {name: x.value.shape for name, x in drawn.arrays.items() if x.value.shape}
    if drawn.layered:
        about(f"{drawn.layers} {drawn.extents}")
        operators = []
        for layer in drawn.layers:
            used = _used(drawn, layer.text)
            own = {name: shapes[name] for name in layer.sources}
            operator = Operator.parse(layer.text, used, layer.dtypes, shapes=own)
            if layer.epilogue:
                operator = operator.with_epilogue(layer.epilogue, layer.more)
            operators.append(operator)
        return Chain.of(operators)
    text = drawn.text
    used = _used(drawn, text)
    about(f"Chain.parse({text!r}, {used}, {drawn.dtypes})")
    read = {name: shape for name, shape in shapes.items() if name in drawn.inputs}
    return Chain.parse(text, used, drawn.dtypes, shapes=read)


def _tiling(rng: np.random.Generator, chain: Chain) -> Tiling:
    """Random tiles of the result's loops, and sometimes parts of a row."""
    own = [n for index in chain.steps[-1].output.indices for n in index.names]
    literal = unrolled_loops(chain)
    own = [name for name in own if name not in literal]
    rng.shuffle(own)
    tiles = {n: int(rng.integers(1, chain.extents[n] + 1)) for n in own if rng.random() < 0.6}
    reduced = sorted({it.name for step in chain.steps for it in step.reduce} - set(own))
    if reduced and not literal and rng.random() < 0.5:
        name = str(rng.choice(reduced))
        size = chain.extents[name]
        tiles[name] = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
    if tiles and not literal and rng.random() < 0.5:
        with suppress(ScheduleError):  # no rows roll
            return Tiling.of(chain, tiles, str(rng.choice([*tiles])))
    return Tiling.of(chain, tiles)


def _case(rng: np.random.Generator, about: Callable[[str], None]) -> tuple[DrawnChain, Tiling]:
    drawn = _drawn(rng)
    try:
        chain = _chain(drawn, about)
        tiling = _tiling(rng, chain)
    except (OperatorError, ScheduleError) as error:
        raise Refused(str(error)) from None
    about(f"{chain} {chain.extents}; tiles {tiling.tiles} rolling {tiling.rolling_loop!r}")
    return drawn, tiling


def _compare(drawn: DrawnChain, chain: Chain, got: np.ndarray) -> None:
    expected = drawn.arrays[chain.result.name]
    if got.shape != expected.value.shape:
        raise Wrong(f"shape {got.shape}, expected {expected.value.shape}")
    beyond = expected.differences(got)
    if beyond.size and beyond.max() > 0:
        at = np.unravel_index(int(beyond.argmax()), beyond.shape)
        raise Wrong(
            f"at {[*map(int, at)]} {got[at]:g}, expected {expected.value[at]:g} within "
            f"{expected.error[at]:g}; {(beyond > 0).mean():.0%} of the elements differ"
        )


def simulation(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """The chain and its tiles in NumPy."""
    drawn, tiling = _case(rng, about)
    _compare(drawn, tiling.chain, simulate_tiling(tiling, drawn.inputs))
    return "right"


@cache
def _chooser() -> Chooser:
    return Chooser("host", core=True)


def kernel(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A kernel of it for some cores, and the kernel of its record."""
    drawn, best = _candidate(rng, about)
    again = candidate_from(best.chain, best.values())
    if str(again) != str(best) or again.values() != best.values():
        raise Wrong(f"its record is of {again}")
    here = replace(cpu(), cores=int(rng.choice([1, 2, 3, 7])))
    try:
        with mock.patch.object(amos.chains.kernel, "cpu", lambda: here):
            built = ChainKernel(best)
    except BuildError as error:  # loops do not pad
        if "no instruction computes it" in str(error):
            raise Refused(str(error)) from None
        raise
    inputs = dict(drawn.inputs)
    if best.chain.constants and rng.random() < 0.5:
        built.pack(**{name: inputs.pop(name) for name in best.chain.constants})
    _compare(drawn, best.chain, built(**inputs))
    return "right"


def candidate(rng: np.random.Generator, about: Callable[[str], None]) -> ChainCandidate:
    """A chain, its tiles, and the best kernels of its products."""
    return _candidate(rng, about)[1]


def _candidate(
    rng: np.random.Generator, about: Callable[[str], None]
) -> tuple[DrawnChain, ChainCandidate]:
    drawn, tiling = _case(rng, about)
    try:
        best = best_candidate(_chooser(), tiling, packs=bool(rng.random() < 0.7))
    except ExploreError as error:
        raise Refused(str(error)) from None
    about(f"{tiling.chain} {tiling.chain.extents}; {best}")
    return drawn, best
