"""Chains of statements as one kernel: tiles, their meaning, search and code."""

from amos.chains.candidate import ChainCandidate
from amos.chains.kernel import ChainKernel
from amos.chains.simulate import simulate_tiling
from amos.chains.tiling import SharedLoop, Tiling

__all__ = ["ChainCandidate", "ChainKernel", "SharedLoop", "Tiling", "simulate_tiling"]
