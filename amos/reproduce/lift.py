"""Lift, Tables 1 and 4, Figures 4 to 6: mappings of loops to OpenCL's levels, and VGG-16.

The paper's figures are times of a Mali-G72; ours are of the OpenCL device here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

import amos
from amos.chains import LoopNest, ParallelSpace, Tiling
from amos.chains.loop_nest import LoopPath
from amos.chains.parallel import LEVELS
from amos.errors import UnknownNameError
from amos.ir import Chain
from amos.opencl.chains.candidate import ParallelCandidate
from amos.operators.tables import layer, layers
from amos.reproduce.lift_fig6 import FusionRates, compare_fusions

#: Listing 1; the result's dimensions stand in the order of its loops D and E.
LISTING1 = "local_buf[i,j,k] = relu(input[i,j,k]); output[i,k,j] = relu(local_buf[i,j,k])"
#: Table 1 without M5, which differs from M4 by a vectorized loop alone. Loops A to E; M6's
#: vectorized loop C is sequential here.
TABLE1 = {
    "M1": ("G0", "S", "S", "S", "S"),
    "M2": ("G1", "G0", "S", "G0", "S"),
    "M3": ("S", "W0", "L0", "W0", "L0"),
    "M4": ("W0", "L0", "S", "L0", "S"),
    "M6": ("W0", "L0", "S", "S", "L0"),
}
#: Table 4: constraints of one convolution in the paper, by our name of the rule.
TABLE4 = {
    "1 private memory": 32,
    "2 local memory": 13,
    "3 duplicate": 34,
    "4 local dimensions": 1,
    "6 hierarchy": 34,
    "7 exhaustive": 9,
}
#: Layers 19 and 21 of VGG-16, which are alike.
FIG6_LAYER = "vgg16:V8"
#: Trials after which the best rate is shown.
SHOWN = (1, 10, 30)
_WORDS = {"S": "sequential", "L": "local", "W": "group", "G": "global"}
_CONVOLUTION = (
    "sum[p,q,k] += image[p+r,q+s,c] * weight[k,r,s,c]; out[p,q,k] = relu(sum[p,q,k] + bias[k])"
)
_TILES = {"p": 4, "q": 14, "k": 16, "c": 8}


@dataclass(frozen=True)
class Judged:
    """A mapping of Table 1.

    Attributes:
        loops: choices of loops A to E.
        valid: whether it breaks none of the rules 1 to 7.
        broken: rules that it breaks; rule 8 only asks to write it with fused loops.
    """

    name: str
    loops: tuple[str, ...]
    valid: bool
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Listing1:
    """The space of Listing 1 in two dimensions.

    Attributes:
        assignments: all of them.
        valid: those that the solver leaves.
        brute_force: those that predicates written separately accept, one by one.
        innermost_only: the same where rule 2 looks at innermost loops alone, as it is printed.
        mappings: the paper's examples.
    """

    assignments: int
    valid: int
    brute_force: int
    innermost_only: int
    mappings: tuple[Judged, ...]


@dataclass(frozen=True)
class LayerSpace:
    """The space of a layer of VGG-16 in three dimensions, with copies in local memory.

    Attributes:
        loops: loops of its nest, which are the tunable variables.
        constraints: by rule.
        assignments: valid or not.
        drawn: valid mappings that were drawn, all different.
        seconds: of processor time for drawing them, the solver's setup included.
    """

    layer: str
    loops: int
    variables: int
    constraints: Mapping[str, int]
    assignments: int
    drawn: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Valid mappings a second."""
        return self.drawn / self.seconds


@dataclass(frozen=True)
class LayerRate:
    """The fastest kernel that a search of a layer finds.

    Attributes:
        gflops: 10^9 operations per second of the fastest.
        gflops_after: the same after some trials (Figure 5).
        memory: bytes that it takes besides its tensors, as a share of these (Figure 4).
    """

    layer: str
    trials: int
    gflops: float
    gflops_after: Mapping[int, float]
    memory: float
    seconds: float


@dataclass(frozen=True)
class Lift:
    """The results of :func:`lift`."""

    listing1: Listing1
    paper_constraints: Mapping[str, int]
    layers: tuple[LayerSpace, ...]
    rates: tuple[LayerRate, ...] = ()
    fusions: tuple[FusionRates, ...] = ()


def lift(
    candidates: int = 1000,
    seed: int = 0,
    trials: int = 0,
    only: Sequence[str] = (),
    measure: amos.MeasureOptions | None = None,
    fusion: int = 0,
) -> Lift:
    """Count the mappings of Listing 1, draw mappings of VGG-16's layers, and search these.

    Args:
        candidates: valid mappings to draw of each layer.
        trials: kernels to measure of each layer; none by default.
        only: layers, such as ``"V8"``; all by default.
        measure: where they are measured; by default on the first OpenCL device.
        fusion: candidates to measure of each way to fuse sequential loops, on the first OpenCL
            device; none by default.
    """
    layer_names = {name.partition(":")[2]: name for name in layers() if name.startswith("vgg16:")}
    for name in only:
        if name not in layer_names:
            raise UnknownNameError("layer of VGG-16", name, layer_names)
    names = [layer_names[name] for name in only or layer_names]
    measure = measure or amos.MeasureOptions(executor="opencl")
    rates = tuple(_search_layer(name, trials, seed, measure) for name in names if trials)
    spaces = tuple(_draw_layer(name, candidates, seed) for name in names)
    fusions: tuple[FusionRates, ...] = ()
    if fusion:
        name = FIG6_LAYER if not only else layer_names[only[0]]
        fusions = compare_fusions(layer_frame(name, whole=True), name, fusion, seed)
    return Lift(_count_listing1(), TABLE4, spaces, rates, fusions)


def _search_layer(name: str, trials: int, seed: int, measure: amos.MeasureOptions) -> LayerRate:
    op, start = layer(name), time.perf_counter()
    result = amos.explore(
        op, "opencl_mad_m8_f32", machine="pocl", trials=trials, seed=seed, measure=measure
    )
    seconds = time.perf_counter() - start
    rates = [result.operator.operations / trial.seconds / 1e9 for trial in result.trials]
    tensors = (*result.operator.inputs, *result.operator.results)
    return LayerRate(
        layer=name,
        trials=len(rates),
        gflops=max(rates),
        gflops_after={n: max(rates[:n]) for n in SHOWN if n < len(rates)},
        memory=result.memory_bytes(result.best) / sum(tensor.nbytes for tensor in tensors),
        seconds=seconds,
    )


def listing1_space() -> ParallelSpace:
    """Return the space of Listing 1: a buffer in local memory, allocated in the outer loop."""
    chain = Chain.parse(LISTING1, dict(i=8, j=4, k=4))
    return ParallelSpace(LoopNest.of(Tiling.of(chain, {"i": 1})), 2)


def layer_frame(name: str, *, whole: bool = False) -> ParallelCandidate:
    """Return a convolution with open loops whose tiles of image and weights are in local memory."""
    op = layer(name)
    sizes = {name: size for name, size in op.extents.items() if name != "n"}
    chain = Chain.parse(_CONVOLUTION, sizes)
    tiles = {name: min(size, sizes[name]) for name, size in _TILES.items()}
    copies = {"image": "local", "weight": "local"}
    if whole:
        del tiles["c"], copies["weight"]
    return ParallelCandidate(Tiling.of(chain, tiles), {}, copies=copies)


def layer_space(name: str) -> ParallelSpace:
    """Return all mappings of a layer's loops."""
    return ParallelSpace(layer_frame(name).nest)


def _count_listing1() -> Listing1:
    space = listing1_space()
    loops = [loop.name for loop in space.nest.loops]
    assignments = [
        dict(zip(loops, choice, strict=True))
        for choice in product(space.choices, repeat=len(loops))
    ]
    judged = []
    for name, code in TABLE1.items():
        words = [_WORDS[each[0]] + (f" {each[1]}" if each[1:] else "") for each in code]
        broken = space.violations(dict(zip(loops, words, strict=True)))
        rules = tuple(dict.fromkeys(text.partition(":")[0] for text in broken))
        valid = all(rule.startswith("rule 8") for rule in rules)
        judged.append(Judged(name, code, valid, rules))
    return Listing1(
        assignments=space.size,
        valid=space.count or 0,
        brute_force=sum(accepts(space.nest, each) for each in assignments),
        innermost_only=sum(accepts(space.nest, each, innermost_only=True) for each in assignments),
        mappings=tuple(judged),
    )


def _draw_layer(name: str, count: int, seed: int) -> LayerSpace:
    space = layer_space(name)
    start = time.process_time()
    drawn = space.draw(count, np.random.default_rng(seed))
    seconds = time.process_time() - start
    return LayerSpace(
        layer=name,
        loops=len(space.nest.loops),
        variables=len(space.csp.variables),
        constraints=space.by_rule(),
        assignments=space.size,
        drawn=len(drawn),
        seconds=seconds,
    )


def accepts(nest: LoopNest, assignment: Mapping[str, str], innermost_only: bool = False) -> bool:
    """Return whether a mapping keeps rules 1 to 8, by predicates instead of the solver."""
    memory = {each.buffer: each.memory for each in nest.allocations}
    used = []
    for path in nest.paths:
        choices = [assignment[loop.name] for loop in path.loops]
        if not _keeps_order(choices) or not _fuses(path, assignment):
            return False
        for buffer, depth in path.depths.items():
            inner = choices[-1:] if innermost_only else choices[depth:]
            levels = {"local"} if memory[buffer] == "local" else set()
            if any(_level(choice) in {*LEVELS} - levels for choice in inner):
                return False
        used.append({choice for choice in choices if _level(choice) in LEVELS})
    return all(each == used[0] for each in used)


def _keeps_order(choices: Sequence[str]) -> bool:
    """Return whether the loops around an access keep rules 3 to 6."""
    parallel = [choice for choice in choices if _level(choice) in LEVELS]
    for choice in parallel:
        level, dimension = choice.split()
        partner = {"local": "group", "group": "local"}.get(level)
        if parallel.count(choice) > 1:
            return False
        if partner is None:
            continue
        pair = f"{partner} {dimension}"
        if pair not in parallel:
            return False
        if level == "local" and parallel.index(pair) > parallel.index(choice):
            return False
    return True


def _fuses(path: LoopPath, assignment: Mapping[str, str]) -> bool:
    """Return whether fused loops are perfectly nested (rule 8), and reductions sequential."""
    runs = ""  # choice of the enclosing loop, if this one is perfectly nested in it
    for outer, loop in zip((None, *path.loops), path.loops, strict=False):
        perfect = outer is not None and outer.perfectly_nested is loop
        own = assignment[loop.name]
        if loop.is_reduce and _level(own) in LEVELS:
            return False
        if own == "fused":
            if not perfect:
                return False
            continue
        if perfect and own == "sequential" == runs:
            return False
        runs = own
    return True


def _level(choice: str) -> str:
    return choice.partition(" ")[0]
