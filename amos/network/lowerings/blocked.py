"""Products with weights of a few bits, which stay packed in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.errors import AmosError
from amos.ir import Operator
from amos.measure.reference import References, tolerance
from amos.network.blocked import BlockedWeight, BlockFormat
from amos.network.candidates import Chooser, predict_transfer
from amos.network.graph import Constant
from amos.network.groups import Task
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Example, Lowering, ScheduledProduct
from amos.network.lowerings.panels import BlockedProduct
from amos.network.lowerings.tiles import list_epilogue_tensors
from amos.network.lowerings.unpacking import write_product
from amos.validate import evaluate, random_inputs

#: Names of the factors in an anchor.
_ROWS, _WEIGHT = "x", "weight"


@dataclass(frozen=True)
class UnpackedBlocks(Lowering):
    """A product whose weights are unpacked in registers.

    Attributes:
        form: how it is cut.
        traffic_seconds: predicted, to start the kernel and to move what it reads and stores.
    """

    operator: Operator
    form: BlockedProduct
    traffic_seconds: float

    def total(self, seconds: Sequence[float]) -> float:
        """Return the longer of arithmetic and traffic."""
        return max(self._compute_seconds, self.traffic_seconds)

    @property
    def _compute_seconds(self) -> float:
        return self.products[0].prediction.rows[0].compute

    @property
    def measured(self) -> float | None:
        """Nothing is recorded of it."""
        return None

    @property
    def tuned(self) -> tuple[tuple[Operator, int], ...]:
        """None: it has no schedule."""
        return ()

    @property
    def bound(self) -> str:
        """What limits it, by the model."""
        arithmetic = self._compute_seconds > self.traffic_seconds
        return "issue of the intrinsic" if arithmetic else f"reads of packed `{_WEIGHT}`"

    def write(self, products: Sequence[ScheduledProduct]) -> tuple[Sequence[Argument], Any]:
        """Return rows, packed weights, what the epilogue reads, and the result."""
        operator, form = self.operator, self.form
        arguments = (
            Argument(_ROWS, "float32", (form.rows * form.depth,)),
            Argument(_WEIGHT, "uint32", (form.words,)),
            *(Argument(x.name, str(x.dtype), x.shape) for x in list_epilogue_tensors(operator)),
            Argument(operator.result.name, str(operator.result_dtype), (form.rows * form.columns,)),
        )
        return arguments, write_product(form, operator)

    def pack(self, argument: Argument, value: Constant) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it."""
        if argument.tensor != _WEIGHT:
            return super().pack(argument, value)
        assert isinstance(value, BlockedWeight)
        return self.form.pack(value)

    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel; errors as of :meth:`Lowering.build`."""
        arguments, function = self.write(())
        return self.compile(symbol, arguments, function, kind="generic")

    def example(self, references: References) -> Example:
        """Draw rows and codes, and compute the result with the floats of these."""
        rng, form = np.random.default_rng(0), self.form
        weight = random_weight(form.depth, form.columns, form.format, rng)
        inputs = random_inputs(self.operator, rng)
        expected = np.asarray(evaluate(self.operator, inputs | {_WEIGHT: weight.array}))
        return inputs | {_WEIGHT: weight}, expected, (tolerance(self.operator, expected),)


def random_weight(
    rows: int, columns: int, format: BlockFormat, rng: np.random.Generator
) -> BlockedWeight:
    """Draw a matrix of weights between about -2 and 2."""
    blocks, top = -(-rows // format.block), 1 << format.bits
    packed = rng.integers(0, 256, (columns, blocks * format.block * format.bits // 8), np.uint8)
    scales = rng.uniform(1, 4, (columns, blocks)) / top
    zeros = rng.integers(0, top, (columns, blocks)) if format.has_zeros else None
    return BlockedWeight(packed, scales, zeros, format, rows)


def format_of(task: Task) -> BlockFormat | None:
    """Return the format of a task's weights; ``None`` if they are floats."""
    weights = [group.arguments.get(_WEIGHT) for group in task.groups]
    formats = {each.format if isinstance(each, BlockedWeight) else None for each in weights}
    return formats.pop() if len(formats) == 1 else None


def lower_blocks(
    operator: Operator, format: BlockFormat, chooser: Chooser
) -> UnpackedBlocks | None:
    """Return the lowering of a product that unpacks its weights; ``None`` if there is none.

    Args:
        operator: the product.
        format: of its weights.
        chooser: of the machine.
    """
    machine = chooser.target(())
    rows, weight = (load.tensor for load in operator.sources)
    wide = "avx512f" in machine.features
    form = BlockedProduct(
        rows=prod(rows.shape[:-1]),
        columns=weight.shape[1],
        depth=weight.shape[0],
        format=format,
        lanes=16 if wide else 8,
        registers=32 if wide else 16,
        has_permutes=wide,
    )
    sizes = form.words, form.rows * form.depth, form.rows * form.columns
    if not machine.cached or max(sizes) > MOST_ELEMENTS:
        return None
    try:
        product = chooser.choose(operator)
    except AmosError:
        return None  # the machine has no instruction for floats
    read_bytes = (
        sum(each.nbytes for each in (*list_epilogue_tensors(operator), rows)) + 4 * form.words
    )
    seconds = predict_transfer(machine, read_bytes, operator.result.nbytes)
    return UnpackedBlocks(operator, (product,), form, seconds)
