"""``amos.explore``, ``amos.build`` and ``amos.simulate``: of an operator, or of a chain of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

import numpy as np

from amos.errors import BuildError, ExploreError, quote
from amos.explore.run import explore as explore_operator
from amos.ir import Chain
from amos.mapping.simulate import simulate as simulate_mapping
from amos.runtime.kernel import build as build_operator

#: Arguments that mean nothing for a chain, and the values that ask for nothing.
_USUAL = {"method": "ga", "rule": "access", "announce": None, "notify": None}


@wraps(explore_operator)
def explore(operator: Any, intrinsic: Any = None, **options: Any) -> Any:
    if not isinstance(operator, Chain):
        return explore_operator(operator, intrinsic, **options)
    from amos.chains.search import explore_chain

    for name, value in options.items():
        if _USUAL.get(name, value) != value:
            raise ExploreError(f"{name}: a search over chains has none, got {quote(value)}")
    if not callable(options.get("progress")):
        options.pop("progress", None)
    chosen = {name: value for name, value in options.items() if name not in _USUAL}
    return explore_chain(operator, intrinsic, **chosen)


@wraps(build_operator)
def build(candidate: Any, schedule: Any = None, **options: Any) -> Any:
    from amos.chains import ChainCandidate, ChainExploration, ChainKernel, ChainTrial
    from amos.chains.search import chain_candidate

    if isinstance(candidate, ChainCandidate | ChainExploration | ChainTrial):
        if schedule is not None:
            raise BuildError(f"schedule: a chain has its own, got {quote(schedule)}")
        chosen = chain_candidate(candidate)
        if not isinstance(chosen, ChainCandidate):
            raise BuildError(
                f"{chosen.chain.name}: expected a kernel for this CPU, got one for an OpenCL "
                "device; amos.opencl.runtime.kernel.OpenClKernel runs it"
            )
        return ChainKernel(chosen, **options)
    return build_operator(candidate, schedule, **options)


@wraps(simulate_mapping)
def simulate(mapping: Any, inputs: Mapping[str, np.ndarray]) -> Any:
    if isinstance(mapping, Chain):
        from amos.validate import evaluate

        return evaluate(mapping, inputs)
    from amos.chains import ChainExploration, ChainTrial, Tiling, simulate_tiling
    from amos.chains.search import chain_candidate

    if isinstance(mapping, ChainExploration | ChainTrial):
        mapping = chain_candidate(mapping)
    if isinstance(tiling := getattr(mapping, "tiling", mapping), Tiling):
        return simulate_tiling(tiling, inputs)
    return simulate_mapping(mapping, inputs)
