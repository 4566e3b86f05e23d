"""Kernels of chains for tests."""

from __future__ import annotations

import contextlib

from amos.chains import ChainCandidate, Tiling
from amos.chains.candidate import slots_of
from amos.errors import MappingError
from amos.explore.choosing import Chooser


def best_candidate(chooser: Chooser, tiling: Tiling, *, packs: bool) -> ChainCandidate:
    """Return the kernel of a tiling that the model ranks first; loops where no instruction fits.

    Args:
        chooser: ranks kernels of products, for one core.
        tiling: of a chain.
        packs: whether sources that tiles share are packed once for all of these.
    """
    names = frozenset(slot.tensor for slot in slots_of(tiling, frozenset()))
    packed = names if packs else frozenset[str]()
    products = {}
    for slot in slots_of(tiling, packed):
        with contextlib.suppress(MappingError):
            products[slot.tensor] = chooser.choose(slot.operator).candidate
    return ChainCandidate(tiling, products, packed)
