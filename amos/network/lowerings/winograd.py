"""Convolutions by :mod:`amos.operators.winograd`: which ones, and whether that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.errors import AmosError
from amos.explore.choosing import Chooser, Product
from amos.ir import Operator, dtype
from amos.machine import Machine
from amos.machine.limits import CpuLimits
from amos.measure.reference import References, tolerance
from amos.network.candidates import predict_transfer
from amos.network.graph import Constant, Node
from amos.network.groups import Task
from amos.network.lowerings.base import (
    SAFETY_FACTOR,
    Example,
    Lowering,
    ProductLowering,
    ScheduledProduct,
)
from amos.network.lowerings.tiles import (
    LEAST_LANES,
    count_operations,
    count_steps,
    list_epilogue_tensors,
    write_tiles,
)
from amos.network.shapes import BYTES
from amos.operators.winograd import INTO_TILES, OUT_OF_TILES, Winograd
from amos.validate import evaluate

#: Numbers of axes between images and channels.
_IMAGE_AXES = (2, 3)
#: Share of a cache that bands of tiles take: weights and images need it, too.
_SHARED_SHARE, _PRIVATE_SHARE = 1 / 6, 1 / 2


@dataclass(frozen=True)
class WinogradTiles(ProductLowering):
    """A convolution by tiles, whose product is of a band of them.

    Attributes:
        form: of the convolution.
        overhead_seconds: predicted, of all but the product.
    """

    form: Winograd
    overhead_seconds: float
    by_tiles: ClassVar = True

    def total(self, seconds: float) -> float:
        """Return the seconds of all bands, and the overhead."""
        return self.form.rounds * seconds + self.overhead_seconds

    @property
    def spreads(self) -> bool:
        """Whether tiles are of floats."""
        return not self.form.integer

    @property
    def limits(self) -> CpuLimits:
        """Limits of the cores that compute the product of a band."""
        return CpuLimits.here() if self.form.cores == 1 else CpuLimits.here().core

    @property
    def tuned(self) -> tuple[Operator, ...]:
        """The product of all cores; none of one core."""
        return (self.form.operator,) if self.form.cores == 1 else ()

    def write(self, product: ScheduledProduct) -> tuple[Sequence[Argument], Any]:
        """Write the transforms, with the product between them."""
        form, operator = self.form, self.operator
        (weight,) = (each for each in product.program.arguments if each.packed is not None)
        tensors = list_epilogue_tensors(operator)
        operands = (Argument(each.name, str(each.dtype), each.shape) for each in tensors)
        result = Argument(operator.result.name, str(operator.result_dtype), form.result)
        arguments = (Argument("image", form.dtype, form.image), weight, *operands, result)
        return arguments, write_tiles(form, operator, product)

    def pack(self, argument: Argument, value: Constant) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it: transformed weights."""
        is_weight = argument.packed is not None
        return super().pack(
            argument, Constant(self.form.windows(value.array)) if is_weight else value
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
    if image.shape[-1] % LEAST_LANES or weight.shape[0] % LEAST_LANES:
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


def list_forms(task: Task, chooser: Chooser) -> tuple[Winograd, ...]:
    """Return the forms of a task's convolution by tiles, cut into bands; empty if it has none.

    All cores compute each band, in the cache that they share; or each computes bands in its own.
    """
    form = match_winograd(task)
    machine = chooser.target(())
    if form is None or not machine.cached:  # transforms are kernels of CPUs
        return ()
    shared = form.with_bands(_shared_capacity_bytes(machine))
    own = replace(form, cores=machine.cores).with_bands(int(machine.private_cache * _PRIVATE_SHARE))
    return (shared, own) if own.count >= own.cores > 1 else (shared,)


def _shared_capacity_bytes(machine: Machine) -> int:
    """Return the bytes that a band of tiles and its products may take of all caches."""
    return int(max(level.capacity * level.units for level in machine.levels) * _SHARED_SHARE)


def lower_winograd(
    form: Winograd, operator: Operator, chooser: Chooser, select: Callable[[Operator], Product]
) -> WinogradTiles | None:
    """Lower a convolution to tiles; ``None`` if no instruction computes its product.

    Args:
        form: of the convolution, one of :func:`list_forms`.
        select: returns the product that computes an operator on all cores.
    """
    select = select if form.cores == 1 else chooser.core.choose
    try:
        product = select(form.operator)
    except AmosError:
        return None  # the machine has no instruction for integers of 16 bits
    overhead_seconds = _predict_overhead(form, operator, chooser.target(()))
    return WinogradTiles(operator, product, form, overhead_seconds)


def is_winograd_faster(tiles: Lowering, direct: Lowering) -> bool:
    """Return whether tiles are expected to be faster.

    If only one of both was measured, it is chosen, but products of a core are never measured.
    """
    if not tiles.tuned or (tiles.measured is None) == (direct.measured is None):
        return tiles.expected < SAFETY_FACTOR * direct.expected
    return direct.measured is None


def _predict_overhead(form: Winograd, operator: Operator, machine: Machine) -> float:
    """Predict the seconds of a convolution by tiles beyond its product.

    A transform takes as long as its vector operations, or as moving its tiles: by the cache of a
    core, or by one that all share where others read them. Inside a network weights come from
    memory, and transformed ones are more.
    """
    core, alone = machine.core, form.cores >= machine.cores
    caches = zip(machine.levels, core.levels, strict=True)
    level = next(
        own
        for each, own in caches
        if (alone or each.units < machine.cores) and not 0 < own.capacity < form.bytes
    )
    factor_bytes, sum_bytes = (dtype(kind).numpy.itemsize for kind in form.kinds)
    into = max(
        count_steps(form.factor) * count_operations(INTO_TILES[form.integer]) / core.clock,
        factor_bytes * prod(form.factor) / level.write_bandwidth,
    )
    out_of = max(
        count_steps(form.sums) * count_operations(OUT_OF_TILES[form.integer]) / core.clock,
        sum_bytes * prod(form.sums) / level.read_bandwidth,
    )
    band = into + out_of if alone else (into + out_of) / machine.cores + 2 * machine.launch
    image_bytes = dtype(form.dtype).numpy.itemsize
    *read, stored = (x.stored_bytes for x in (*list_epilogue_tensors(operator), operator.result))
    outer = predict_transfer(machine, prod(form.image) * image_bytes + sum(read), stored)
    weights = prod(form.operator.inputs[1].shape)
    more = weights * factor_bytes - weights // 4 * image_bytes
    return form.rounds * band + outer + more / machine.levels[-1].read_bandwidth
