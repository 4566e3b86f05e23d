"""Convolutions by :mod:`amos.operators.winograd`: which ones, and whether it pays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.errors import AmosError
from amos.ir import Operator, dtype
from amos.machine import Machine
from amos.measure.reference import References, tolerance
from amos.network.candidates import Chooser, Product, moving
from amos.network.graph import Constant, Node
from amos.network.groups import Task
from amos.network.lowerings.base import WORTH, Example, Lowering, Scheduled
from amos.network.lowerings.tiles import LANES, read_behind, write_tiles
from amos.network.shapes import BYTES
from amos.operators.winograd import Winograd
from amos.validate import evaluate

#: Numbers of axes between images and channels.
_IMAGE_AXES = (2, 3)
#: Of the largest cache tiles take a part, beside weights, images and what others compute.
_SHARE = 6


@dataclass(frozen=True)
class WinogradTiles(Lowering):
    """A convolution by tiles, whose product is of a strip.

    Attributes:
        form: of the convolution.
        around: predicted seconds of all that is beside the product.
    """

    operator: Operator
    form: Winograd
    around: float
    by_tiles: ClassVar = True

    def total(self, seconds: Sequence[float]) -> float:
        """Those of all strips, and around them."""
        return self.form.strips * seconds[0] + self.around

    @property
    def spreads(self) -> bool:
        """Whether tiles are of floats."""
        return not self.form.integer

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """The product, for each strip."""
        return ((self.form.operator, self.form.strips),)

    def write(self, parts: Sequence[Scheduled]) -> tuple[Sequence[Argument], Any]:
        """Transforms, with the product between them."""
        form, operator, (product,) = self.form, self.operator, parts
        (weight,) = (each for each in product.program.arguments if each.packed is not None)
        behind = (Argument(x.name, str(x.dtype), x.shape) for x in read_behind(operator))
        result = Argument(operator.result.name, str(operator.result_dtype), form.result)
        arguments = (Argument("image", form.dtype, form.image), weight, *behind, result)
        return arguments, write_tiles(form, operator, product)

    def parts(self, argument: Argument, array: np.ndarray) -> list[np.ndarray]:
        """Windows are transformed."""
        return [array if argument.packed is None else self.form.windows(array)]

    def example(self, references: References) -> Example:
        """Random inputs and results of the convolution."""
        inputs, (expected,) = references.get(self.operator)
        return inputs, expected, self._limits(inputs, expected)

    def _limits(self, inputs: dict[str, np.ndarray], expected: np.ndarray) -> Iterator[float]:
        """What results may differ by, and what the sums behind them may.

        Tiles round more than sums do, and behind a sigmoid results say nothing of their size.
        """
        yield (allowed := tolerance(self.operator, expected))
        if self.operator.output.tensor.dtype == self.operator.result_dtype == "float32":
            sums = replace(self.operator, epilogue=None)
            accumulators = evaluate(sums, {each.name: inputs[each.name] for each in sums.inputs})
            yield max(allowed, tolerance(sums, np.asarray(accumulators)))


def winograd_of(task: Task) -> Winograd | None:
    """The convolution that a task's anchor is, if it can be computed so in all of its groups."""
    anchor = task.groups[0].nodes[0]
    axes, attributes = len(anchor.shape) - 2, anchor.attributes
    if anchor.operation != "Conv" or axes not in _IMAGE_AXES or not attributes["channels_last"]:
        return None
    image, weight = anchor.operands
    ones = {*attributes["strides"], *attributes["dilations"], attributes["group"]}
    if ones != {1} or weight.shape[-2:] != (3, 3):
        return None
    if image.shape[-1] % LANES or weight.shape[0] % LANES:
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
    return form if all(_taken(form, group.nodes[0]) for group in task.groups) else None


def _taken(form: Winograd, anchor: Node) -> bool:
    """Whether the windows of a place are known, and results of integers exact."""
    weight = anchor.operands[1]
    return isinstance(weight, Constant) and (not form.integer or form.exact(weight.array))


def forms_of(task: Task, chooser: Chooser) -> tuple[Winograd, ...]:
    """The convolution that a task is by tiles, cut into strips; nothing where it is none.

    Args:
        task: of a network.
        chooser: of the machine.
    """
    form = winograd_of(task)
    machine = chooser.target(())
    if form is None or not machine.cached:  # transforms are kernels of CPUs
        return ()
    return (form.within(_held(machine)),)


def by_tiles(
    form: Winograd, operator: Operator, chooser: Chooser, select: Callable[[Operator], Product]
) -> WinogradTiles | None:
    """A convolution by tiles; ``None`` if no instruction computes its product.

    Args:
        form: of the convolution, one of :func:`forms_of`.
        operator: the convolution.
        chooser: of the machine.
        select: what the product is computed by.
    """
    try:
        product = select(form.operator)
    except AmosError:
        return None  # the machine has no instruction for integers of 16 bits
    around = _around(form, operator, chooser.target(()))
    return WinogradTiles(operator, (product,), form, around)


def _held(machine: Machine) -> int:
    """Bytes that may stand between an image and the results at one time."""
    return max(level.capacity * level.units for level in machine.levels) // _SHARE


def pays(tiles: Lowering, direct: Lowering) -> bool:
    """Whether a convolution is computed by tiles: where only one way was measured, that one is."""
    if (tiles.measured is None) == (direct.measured is None):
        return tiles.expected < WORTH * direct.expected
    return direct.measured is None


def _around(form: Winograd, operator: Operator, machine: Machine) -> float:
    """Seconds that a convolution by tiles takes beside its product.

    Transforms take as long as moving their data. Inside a network weights come from memory, and
    those of tiles are more.
    """
    factor, sums = (dtype(kind).numpy.itemsize for kind in form.kinds)
    image = dtype(form.dtype).numpy.itemsize
    *read, stored = (x.nbytes for x in (*read_behind(operator), operator.result))
    parts = form.strips
    tiles, products = factor * prod(form.factor), sums * prod(form.sums)
    into = moving(machine, prod(form.image) * image // parts, tiles)
    out_of = moving(machine, products + sum(read) // parts, stored // parts)
    weights = prod(form.operator.inputs[1].shape)
    more = weights * factor - weights // 4 * image
    return parts * (into + out_of) + more / machine.levels[-1].read_bandwidth
