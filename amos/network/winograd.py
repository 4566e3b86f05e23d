"""Convolutions by :mod:`amos.operators.winograd`: which, whether it pays, and their kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from amos.codegen.scheduled import last_line
from amos.codegen.tir.arrays import from_tensor, to_tensor
from amos.errors import BuildError, MappingError
from amos.ir import Operator, dtype
from amos.machine import Machine
from amos.network.candidates import Choice, Chooser, moving
from amos.network.graph import Constant, Node
from amos.network.groups import Group, Task
from amos.network.kernels import TaskKernel, build_kernel, called, reshaped, value_of
from amos.network.levels import BYTES
from amos.network.program import Writer
from amos.network.tiles import LANES, into_tiles, out_of_tiles, read_behind
from amos.operators.winograd import Winograd
from amos.runtime.kernel import compile_loops

#: Axes between images and channels.
_CONVOLUTIONS = {"nn.conv2d": 2, "nn.conv3d": 3}
#: What rounds more and reads more weights has to be faster by a tenth.
_WORTH = 0.9


def winograd_of(task: Task) -> Winograd | None:
    """The convolution that a task's anchor is, if it can be computed so in all of its groups."""
    anchor = task.groups[0].nodes[0]
    axes = _CONVOLUTIONS.get(anchor.operation)
    if axes is None:
        return None
    image, weight = anchor.operands
    ones = {*anchor.integers("strides"), *anchor.integers("dilation")}
    plain = ones | {int(anchor.attributes.groups)} == {1} and weight.shape[-2:] == (3, 3)
    layout = str(anchor.attributes.data_layout)
    if not plain or not layout.endswith("C") or image.shape[-1] % LANES or weight.shape[0] % LANES:
        return None
    form = Winograd(
        image=image.shape,
        result=anchor.shape,
        padding=anchor.integers("padding")[:axes],
        depth=weight.shape[2] if axes == 3 else 1,
        dtype=image.dtype,
    )
    if form.integer and (image.dtype not in BYTES or weight.dtype != "int8"):
        return None
    return form if all(_taken(form, group.nodes[0]) for group in task.groups) else None


def _taken(form: Winograd, anchor: Node) -> bool:
    """Whether the windows of a place are known, and results of integers exact."""
    weight = anchor.operands[1]
    return isinstance(weight, Constant) and (not form.integer or form.exact(weight.array))


def predicted(task: Task, chooser: Chooser, *, thorough: bool = False) -> Choice:
    """What the model thinks best of a task, as it is or by tiles.

    Args:
        task: of a network.
        chooser: of the machine.
        thorough: as of :meth:`Chooser.predicted <amos.network.candidates.Chooser.predicted>`.

    Raises:
        MappingError: no instruction can be used; the message says why.
    """
    direct = chooser.predicted(task.operator, thorough=thorough)
    tiles = by_tiles(task, chooser, partial(chooser.predicted, thorough=thorough))
    return direct if tiles is None else faster(direct, tiles)


def searched(task: Task, chooser: Chooser) -> Task:
    """The task, or the product of it that is computed by tiles: what is worth measuring."""
    try:
        choice = predicted(task, chooser)
    except MappingError:
        return task
    return task if choice.winograd is None else Task(choice.winograd.operator, task.groups)


def by_tiles(task: Task, chooser: Chooser, chosen: Callable[[Operator], Choice]) -> Choice | None:
    """The choice of a convolution by tiles; ``None`` for what is none.

    Args:
        task: of a network.
        chooser: of the machine.
        chosen: what the product is computed by.
    """
    form = winograd_of(task)
    if form is None:
        return None
    try:
        product = chosen(form.operator)
    except MappingError:
        return None  # the machine has no instruction for integers of 16 bits
    around = _around(form, task.operator, chooser.target(()))
    return replace(product, winograd=form, around=around)


def faster(direct: Choice, tiles: Choice) -> Choice:
    """Which of two ways to compute a convolution is taken, without timing them in turns."""
    return tiles if tiles.expected < _WORTH * direct.expected else direct


def _around(form: Winograd, operator: Operator, machine: Machine) -> float:
    """Seconds that a convolution by tiles takes beside its product.

    Transforms take as long as moving their data. Inside a network weights come from memory, and
    those of tiles are more.
    """
    factor, sums = (dtype(kind).numpy.itemsize for kind in form.kinds)
    image = dtype(form.dtype).numpy.itemsize
    behind = [*read_behind(operator), operator.result]
    read, stored = factor * prod(form.factor), sums * prod(form.sums)
    around = moving(machine, prod(form.image) * image, read)
    results = [prod(x.shape) * dtype(str(x.dtype)).numpy.itemsize for x in behind]
    around += moving(machine, stored + sum(results[:-1]), results[-1])
    weights = prod(form.operator.inputs[1].shape)
    more = weights * factor - weights // 4 * image
    return around + more / machine.levels[-1].read_bandwidth


@dataclass(frozen=True, eq=False)
class WinogradKernel:
    """The compiled kernel of a task by tiles: two transforms and a product between them.

    It is used as a :class:`~amos.network.kernels.TaskKernel` is.

    Attributes:
        operator: what it computes.
        product: the kernel between transforms.
        library: TVM's module of transforms.
    """

    operator: Operator
    product: TaskKernel
    library: Any

    @property
    def choice(self) -> Choice:
        """What it was made from."""
        return self.product.choice

    @property
    def tiled(self) -> bool:
        """Whether it uses tile registers."""
        return self.product.tiled

    @property
    def symbol(self) -> str:
        """Name of the product's function."""
        return self.product.symbol

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of all functions that a call of it calls."""
        return (self.product.symbol, *_names(self.product.symbol))

    @property
    def libraries(self) -> tuple[Any, ...]:
        """TVM's modules that hold them."""
        return (*self.product.libraries, self.library.mod)

    @cached_property
    def form(self) -> Winograd:
        """The convolution."""
        assert self.choice.winograd is not None
        return self.choice.winograd

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Its result for the operator's inputs."""
        form, (into, out_of) = self.form, _names(self.product.symbol)
        factor, result = np.zeros(form.factor, form.kinds[0]), self.operator.result
        tiles, image = to_tensor(factor, form.kinds[0]), to_tensor(inputs["image"], form.dtype)
        self.library[into](image, tiles)
        x, weight = (each.name for each in form.operator.inputs)
        windows = form.windows(inputs["weight"])
        factors = {x: tiles.numpy().reshape(form.operator.inputs[0].shape), weight: windows}
        sums = to_tensor(self.product.run(factors).reshape(form.sums), form.kinds[1])
        behind = [to_tensor(inputs[x.name], str(x.dtype)) for x in read_behind(self.operator)]
        empty = np.zeros(result.shape, dtype(str(result.dtype)).numpy)
        results = to_tensor(empty, str(result.dtype))
        self.library[out_of](sums, *behind, results)
        return from_tensor(results, str(result.dtype))

    def call(self, group: Group, writer: Writer) -> Any:
        """The engine's expression that calls it for a group."""
        form, (into, out_of) = self.form, _names(self.product.symbol)
        values = {name: value_of(operand, writer) for name, operand in group.arguments.items()}
        tiles = called(into, [values["image"]], form.factor, form.kinds[0], writer)
        windows = form.windows(values["weight"].array)
        weight = Constant(windows, windows.shape, form.kinds[0])
        sums = self.product.applied({"x": tiles, "weight": weight}, writer)
        behind = [
            reshaped(values[each.name], each.shape, writer) for each in read_behind(self.operator)
        ]
        passed = [reshaped(sums, form.sums, writer), *behind]
        return called(out_of, passed, form.result, str(self.operator.result.dtype), writer)


def _names(symbol: str) -> tuple[str, str]:
    """Names of both transforms."""
    return f"{symbol}_into_tiles", f"{symbol}_out_of_tiles"


#: What runs in the place of a task's groups.
AnyKernel = TaskKernel | WinogradKernel


def build(choice: Choice, operator: Operator, symbol: str) -> AnyKernel:
    """Compile the kernel of a task.

    Args:
        choice: how it is computed.
        operator: of the task.
        symbol: name of its function.

    Raises:
        BuildError: TVM refuses it.
        ScheduleError: the schedule is not one of its mapping's space.
    """
    kernel, form = build_kernel(choice, symbol), choice.winograd
    if form is None:
        return kernel
    import tvm

    into, out_of = _names(symbol)
    functions = {into: into_tiles(form, into), out_of: out_of_tiles(form, operator, out_of)}
    try:
        library = compile_loops(tvm.IRModule(functions))
    except Exception as error:  # TVM's passes fail with errors of many types
        raise BuildError(f"{operator}: TVM cannot compile it: {last_line(error)}") from error
    return WinogradKernel(operator, kernel, library)
