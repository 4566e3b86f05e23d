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
from amos.measure.reference import References, tolerance
from amos.network.candidates import predict_transfer
from amos.network.graph import Constant, Node
from amos.network.groups import Task
from amos.network.lowerings.base import SAFETY_FACTOR, Example, Lowering, ScheduledProduct
from amos.network.lowerings.tiles import LEAST_LANES, list_epilogue_tensors, write_tiles
from amos.network.shapes import BYTES
from amos.operators.winograd import Winograd
from amos.validate import evaluate

#: Numbers of axes between images and channels.
_IMAGE_AXES = (2, 3)
#: Bands of tiles take a sixth of the largest cache, which weights and images need too.
_CACHE_SHARE = 6


@dataclass(frozen=True)
class WinogradTiles(Lowering):
    """A convolution by tiles, whose product is of a band of them.

    Attributes:
        form: of the convolution.
        overhead_seconds: predicted, of all but the product.
    """

    operator: Operator
    form: Winograd
    overhead_seconds: float
    by_tiles: ClassVar = True

    def total(self, seconds: Sequence[float]) -> float:
        """Return the seconds of all bands, and the overhead."""
        return self.form.strips * seconds[0] + self.overhead_seconds

    @property
    def spreads(self) -> bool:
        """Whether tiles are of floats."""
        return not self.form.integer

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The product, for each band."""
        return ((self.form.operator, self.form.strips),)

    def write(self, products: Sequence[ScheduledProduct]) -> tuple[Sequence[Argument], Any]:
        """Write the transforms, with the product between them."""
        form, operator, (product,) = self.form, self.operator, products
        (weight,) = (each for each in product.program.arguments if each.packed is not None)
        tensors = list_epilogue_tensors(operator)
        operands = (Argument(each.name, str(each.dtype), each.shape) for each in tensors)
        result = Argument(operator.result.name, str(operator.result_dtype), form.result)
        arguments = (Argument("image", form.dtype, form.image), weight, *operands, result)
        return arguments, write_tiles(form, operator, product)

    def split(self, argument: Argument, array: np.ndarray) -> list[np.ndarray]:
        """Transform the weights."""
        return [array if argument.packed is None else self.form.windows(array)]

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
    """Whether weights are constant, and their transform exact where they are integers."""
    weight = anchor.operands[1]
    return isinstance(weight, Constant) and (not form.integer or form.exact(weight.array))


def list_forms(task: Task, chooser: Chooser) -> tuple[Winograd, ...]:
    """Return the form of a task's convolution by tiles, cut into bands; empty if it has none.

    Args:
        task: of a network.
        chooser: of the machine.
    """
    form = match_winograd(task)
    machine = chooser.target(())
    if form is None or not machine.cached:  # transforms are kernels of CPUs
        return ()
    return (form.within(_band_capacity_bytes(machine)),)


def _band_capacity_bytes(machine: Machine) -> int:
    """Return the bytes that a band of tiles and its products may take."""
    return max(level.capacity * level.units for level in machine.levels) // _CACHE_SHARE


def lower_winograd(
    form: Winograd, operator: Operator, chooser: Chooser, select: Callable[[Operator], Product]
) -> WinogradTiles | None:
    """Lower a convolution to tiles; ``None`` if no instruction computes its product.

    Args:
        form: of the convolution, one of :func:`list_forms`.
        operator: the convolution.
        chooser: of the machine.
        select: returns the product that computes an operator.
    """
    try:
        product = select(form.operator)
    except AmosError:
        return None  # the machine has no instruction for integers of 16 bits
    overhead_seconds = _predict_overhead(form, operator, chooser.target(()))
    return WinogradTiles(operator, (product,), form, overhead_seconds)


def is_winograd_faster(tiles: Lowering, direct: Lowering) -> bool:
    """Whether tiles are expected to be faster; if only one of both was measured, it is chosen."""
    if (tiles.measured is None) == (direct.measured is None):
        return tiles.expected < SAFETY_FACTOR * direct.expected
    return direct.measured is None


def _predict_overhead(form: Winograd, operator: Operator, machine: Machine) -> float:
    """Predict the seconds of a convolution by tiles beyond its product.

    Transforms take as long as moving their data. Inside a network weights come from memory, and
    transformed ones are more.
    """
    factor_bytes, sum_bytes = (dtype(kind).numpy.itemsize for kind in form.kinds)
    image_bytes = dtype(form.dtype).numpy.itemsize
    *read, stored = (x.stored_bytes for x in (*list_epilogue_tensors(operator), operator.result))
    bands = form.strips
    tiles, products = factor_bytes * prod(form.factor), sum_bytes * prod(form.sums)
    into = predict_transfer(machine, prod(form.image) * image_bytes // bands, tiles)
    out_of = predict_transfer(machine, products + sum(read) // bands, stored // bands)
    weights = prod(form.operator.inputs[1].shape)
    more = weights * factor_bytes - weights // 4 * image_bytes
    return bands * (into + out_of) + more / machine.levels[-1].read_bandwidth
