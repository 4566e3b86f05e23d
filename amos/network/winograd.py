"""Convolutions by :mod:`amos.operators.winograd`: which ones, and whether it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError
from amos.ir import Operator, dtype
from amos.machine import Machine
from amos.network.candidates import WORTH, Choice, Chooser, moving
from amos.network.graph import Constant, Node
from amos.network.groups import Task
from amos.network.shapes import BYTES
from amos.network.tiles import LANES, read_behind
from amos.operators.winograd import Winograd

#: Numbers of axes between images and channels.
_IMAGE_AXES = (2, 3)
#: Of the largest cache tiles take a part, beside weights, images and what others compute.
_SHARE = 6


def winograd_of(task: Task) -> Winograd | None:
    """The convolution that a task's anchor is, if it can be computed so in all of its groups."""
    anchor = task.groups[0].nodes[0]
    axes, told = len(anchor.shape) - 2, anchor.attributes
    if anchor.operation != "Conv" or axes not in _IMAGE_AXES or not told["channels_last"]:
        return None
    image, weight = anchor.operands
    ones = {*told["strides"], *told["dilations"], told["group"]}
    if ones != {1} or weight.shape[-2:] != (3, 3):
        return None
    if image.shape[-1] % LANES or weight.shape[0] % LANES:
        return None
    form = Winograd(
        image=image.shape,
        result=anchor.shape,
        padding=told["pads"][:axes],
        depth=weight.shape[2] if axes == 3 else 1,
        dtype=image.dtype,
    )
    if form.integer and (image.dtype not in BYTES or weight.dtype != "int8"):
        return None
    if max(prod(form.image), prod(form.result)) > MOST_ELEMENTS:
        return None
    return form if all(_taken(form, group.nodes[0]) for group in task.groups) else None


def _taken(form: Winograd, anchor: Node) -> bool:
    """Whether the windows of a place are known, and results of integers exact."""
    weight = anchor.operands[1]
    return isinstance(weight, Constant) and (not form.integer or form.exact(weight.array))


def predicted(task: Task, chooser: Chooser) -> Choice:
    """What the model thinks best of a task, as it is or by tiles.

    Args:
        task: of a network.
        chooser: of the machine.

    Raises:
        MappingError: no instruction can be used; the message says why.
    """
    direct = chooser.predicted(task.operator)
    form = form_of(task, chooser)
    if form is None:
        return direct
    tiles = by_tiles(form, task.operator, chooser, chooser.predicted)
    return direct if tiles is None or not pays(tiles, direct) else tiles


def searched(task: Task, chooser: Chooser) -> Task:
    """The task, or the product of it that is computed by tiles: what is worth measuring.

    The product occurs once for each strip.
    """
    if winograd_of(task) is None:
        return task
    try:
        form = predicted(task, chooser).winograd
    except AmosError:
        return task  # whose own search says why
    return task if form is None else Task(form.operator, task.groups * form.strips)


def form_of(task: Task, chooser: Chooser) -> Winograd | None:
    """The convolution that a task is by tiles, cut into strips; ``None`` for what is none.

    Args:
        task: of a network.
        chooser: of the machine.
    """
    form = winograd_of(task)
    machine = chooser.target(())
    if form is None or not machine.cached:  # transforms are kernels of CPUs
        return None
    return form.within(_held(machine))


def by_tiles(
    form: Winograd, operator: Operator, chooser: Chooser, select: Callable[[Operator], Choice]
) -> Choice | None:
    """The choice of a convolution by tiles; ``None`` if no instruction computes its product.

    Args:
        form: of the convolution, as :func:`form_of` returns it.
        operator: the convolution.
        chooser: of the machine.
        select: what the product is computed by.
    """
    try:
        product = select(form.operator)
    except AmosError:
        return None  # the machine has no instruction for integers of 16 bits
    around = _around(form, operator, chooser.target(()))
    return replace(product, winograd=form, around=around)


def _held(machine: Machine) -> int:
    """Bytes that may stand between an image and the results at one time."""
    return max(level.capacity * level.units for level in machine.levels) // _SHARE


def pays(tiles: Choice, direct: Choice) -> bool:
    """Whether a convolution is computed by tiles: where only one way was measured, that one is."""
    if (tiles.seconds is None) == (direct.seconds is None):
        return tiles.expected < WORTH * direct.expected
    return direct.seconds is None


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
