"""Convolutions by :mod:`amos.operators.winograd`: which ones, and whether that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.model import predict_chain, temporary_bytes
from amos.chains.tiling import Tiling
from amos.chains.writer import TileProduct, write_chain
from amos.codegen.tir.program import MOST_ELEMENTS, Argument, Program
from amos.errors import AmosError
from amos.explore.choosing import Chooser, Product
from amos.ir import Chain, Operator
from amos.machine import Machine
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.measure.reference import References, tolerance
from amos.network.graph import Constant, Node
from amos.network.groups import Task
from amos.network.lowerings.base import (
    SAFETY_FACTOR,
    Example,
    Lowering,
    ProductLowering,
    predict_transfer,
)
from amos.network.shapes import BYTES
from amos.operators.winograd import Winograd
from amos.validate import evaluate

#: Numbers of axes between images and channels.
_IMAGE_AXES = (2, 3)
#: Share of a cache that bands of tiles take: weights and images need it, too.
_SHARED_SHARE, _PRIVATE_SHARE = 1 / 6, 1 / 2
#: Share of rows that the busiest core may have too many, of those that it needs to have.
_IMBALANCE = 1 / 16
#: Channels that vectors of transforms divide.
_LEAST_LANES = 8


@dataclass(frozen=True)
class BandedTiles:
    """A convolution by tiles, cut into bands of rows of them.

    Attributes:
        tiling: its chain with its bands.
        cooperative: whether all cores compute each band, of all images; else each core computes
            bands of single images by itself.
    """

    form: Winograd
    tiling: Tiling
    cooperative: bool

    @cached_property
    def operator(self) -> Operator:
        """The product of a band."""
        (slot,) = slots_of(self.tiling, frozenset())
        return replace(slot.operator, name="winograd")


@dataclass(frozen=True)
class WinogradTiles(ProductLowering):
    """A convolution by tiles, as a chain whose product is of a band of them."""

    bands: BandedTiles
    machine: Machine
    by_tiles: ClassVar = True
    shared: ClassVar = False
    views: ClassVar = True

    @property
    def candidate(self) -> ChainCandidate:
        """The kernel of the chain."""
        own, cooperative = self.product.candidate, self.bands.cooperative
        return ChainCandidate(self.bands.tiling, {"product": own}, cooperative=cooperative)

    def total(self, seconds: float) -> float:
        """Return the seconds of all bands, with inputs and the result in memory.

        Inside a network weights come from memory, and transformed ones are more.
        """
        machine, chain = self.machine, self.bands.tiling.chain
        products = {"product": seconds}
        chained = predict_chain(self.bands.tiling, products, False, machine, self.bands.cooperative)
        image, weight, *read = (each.stored_bytes for each in chain.inputs)
        transfer = predict_transfer(machine, image + sum(read), chain.result.stored_bytes)
        taps = next(x for x in self.operator.inputs if x.name in self.operator.constants)
        more = (weight - taps.stored_bytes) / machine.levels[-1].read_bandwidth
        return chained.seconds + transfer - machine.launch + more

    @property
    def spreads(self) -> bool:
        """Whether tiles are of floats."""
        return not self.bands.form.integer

    @property
    def limits(self) -> CpuLimits:
        """Limits of the cores that compute the product of a band."""
        return CpuLimits.here() if self.bands.cooperative else CpuLimits.here().core

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """The product of all cores; none of one core."""
        return (self.bands.operator,) if self.bands.cooperative else ()

    def write(self, program: Program, function: Any) -> tuple[Sequence[Argument], Any]:
        """Write the transforms, with the product between them."""
        candidate = self.candidate
        tiles = TileProduct(candidate.slots[0], program, function)
        return write_chain(candidate, [tiles], cpu().cores)

    def pack(self, argument: Argument, value: Constant) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it: transformed weights."""
        is_weight = argument.packed is not None
        return super().pack(
            argument, Constant(self.bands.form.windows(value.array)) if is_weight else value
        )

    def example(self, references: References) -> Example:
        """Draw inputs and compute the convolution."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, self._limits(inputs, expected)

    def _limits(self, inputs: dict[str, np.ndarray], expected: np.ndarray) -> Iterator[float]:
        """Yield the tolerance of the results, and that of the sums ahead of the epilogue.

        Tiles round more than plain sums do, and a sigmoid hides how large those are.
        """
        yield (allowed := tolerance(self.operator, expected))
        if self.operator.output.tensor.dtype == self.operator.result_dtype == "float32":
            sums = replace(self.operator, epilogue=None)
            accumulators = evaluate(sums, {each.name: inputs[each.name] for each in sums.inputs})
            yield max(allowed, tolerance(sums, np.asarray(accumulators)))


def match_winograd(task: Task) -> Winograd | None:
    """Return the form of a task's convolution, if all of its groups can be computed by tiles."""
    anchor = task.groups[0].nodes[0]
    axes, attributes = len(anchor.shape) - 2, anchor.attributes
    if anchor.operation != "Conv" or axes not in _IMAGE_AXES or not attributes["channels_last"]:
        return None
    image, weight = anchor.operands
    ones = {*attributes["strides"], *attributes["dilations"], attributes["group"]}
    if ones != {1} or weight.shape[-2:] != (3, 3):
        return None
    if image.shape[-1] % _LEAST_LANES or weight.shape[0] % _LEAST_LANES:
        return None
    form = Winograd(
        image=image.shape,
        result=anchor.shape,
        padding=attributes["pads"][:axes],
        depth=weight.shape[2] if axes == 3 else 1,
        dtype=image.dtype,
    )
    if form.integer and (image.dtype not in BYTES or weight.dtype != "int8"):
        return None
    if not form.integer and image.dtype != "float32":
        return None
    if max(prod(form.image), prod(form.result)) > MOST_ELEMENTS:
        return None
    return form if all(_has_exact_weight(form, group.nodes[0]) for group in task.groups) else None


def _has_exact_weight(form: Winograd, anchor: Node) -> bool:
    """Return whether weights are constant, and their transform exact where they are integers."""
    weight = anchor.operands[1]
    return isinstance(weight, Constant) and (not form.integer or form.is_exact(weight.array))


def list_bands(task: Task, chooser: Chooser) -> tuple[BandedTiles, ...]:
    """Return the bands of a task's convolution by tiles; empty if it has no tiles.

    All cores compute each band, in the cache that they share; or each computes bands in its own.
    """
    form = match_winograd(task)
    machine = chooser.target(())
    if form is None or not machine.cached:  # transforms are kernels of CPUs
        return ()
    chain = form.build_chain(task.operator)
    shared = max(level.capacity * level.units for level in machine.levels) * _SHARED_SHARE
    tiles = fit_band(chain, {}, 1, shared)
    bands = [BandedTiles(form, Tiling.of(chain, tiles), cooperative=True)]
    if machine.cores > 1:
        private = machine.private_cache * _PRIVATE_SHARE
        tiling = Tiling.of(chain, fit_band(chain, {"n": 1}, machine.cores, private))
        if tiling.count >= machine.cores:
            bands.append(BandedTiles(form, tiling, cooperative=False))
    return tuple(bands)


def fit_band(chain: Chain, tiles: dict[str, int], cores: int, capacity: float) -> dict[str, int]:
    """Return the tiles of a band that fits a capacity in bytes, or that is a single row of tiles.

    Of those that leave the busiest core few excess rows, it takes the largest.

    Args:
        tiles: of outer loops.
        cores: each of which computes bands.
    """
    rows, images = chain.extents["y"], prod(chain.extents[name] for name in tiles)
    row_bytes = temporary_bytes(Tiling.of(chain, tiles | {"y": 1}))
    sizes = [-(-rows // count) for count in range(1, rows + 1)]
    fitting = [size for size in sizes if size * row_bytes <= capacity] or [1]
    counts = {size: -(-rows // size) * images for size in fitting}
    busiest = {size: -(-count // cores) * size for size, count in counts.items()}
    most = (1 + _IMBALANCE) * min(busiest.values())
    return tiles | {"y": next(size for size in fitting if busiest[size] <= most)}


def lower_winograd(
    bands: BandedTiles,
    operator: Operator,
    chooser: Chooser,
    select: Callable[[Operator], Product],
) -> WinogradTiles | None:
    """Lower a convolution to tiles; ``None`` if no instruction computes its product.

    Args:
        select: returns the product that computes an operator on all cores.
    """
    select = select if bands.cooperative else chooser.core.choose
    try:
        product = select(bands.operator)
    except AmosError:
        return None  # the machine has no instruction for integers of 16 bits
    return WinogradTiles(operator, product, bands, chooser.target(()))


def is_winograd_faster(tiles: Lowering, direct: Lowering) -> bool:
    """Return whether tiles are expected to be faster.

    If only one of both was measured, it is chosen, but products of a core are never measured.
    """
    if not tiles.tuned or (tiles.measured is None) == (direct.measured is None):
        return tiles.expected < SAFETY_FACTOR * direct.expected
    return direct.measured is None
