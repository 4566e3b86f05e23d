"""Chains of statements as one kernel: tiles, their meaning, search and code."""

from amos.chains.candidate import ChainCandidate
from amos.chains.exploration import ChainExploration, ChainTrial
from amos.chains.kernel import ChainKernel
from amos.chains.loop_nest import Loop, LoopNest
from amos.chains.parallel import ParallelSpace
from amos.chains.records import ChainReplay, rebuild_chain, replay_chain
from amos.chains.search import explore_chain
from amos.chains.simulate import simulate_tiling
from amos.chains.tiling import SharedLoop, Tiling

__all__ = [
    "ChainCandidate",
    "ChainExploration",
    "ChainKernel",
    "ChainReplay",
    "ChainTrial",
    "Loop",
    "LoopNest",
    "ParallelSpace",
    "SharedLoop",
    "Tiling",
    "explore_chain",
    "rebuild_chain",
    "replay_chain",
    "simulate_tiling",
]
