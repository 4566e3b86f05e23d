"""Products with weights of a few bits, which stay packed in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos.codegen.tir.program import MOST_ELEMENTS, Argument
from amos.explore.choosing import Chooser
from amos.explore.contenders import executes
from amos.intrinsics import get
from amos.ir import Operator
from amos.measure.reference import References, tolerance
from amos.network.blocked import WORD_BITS, BlockedWeight, BlockFormat
from amos.network.graph import Constant
from amos.network.groups import Task
from amos.network.kernels import TaskKernel
from amos.network.lowerings.base import Example, Lowering, list_epilogue_tensors, predict_transfer
from amos.network.lowerings.panels import BlockedProduct, round_rows
from amos.network.lowerings.rounded_rows import RoundedRowsWriter
from amos.network.lowerings.unpacking import FloatRowsWriter
from amos.validate import evaluate, random_inputs

#: Names of the factors in an anchor.
_ROWS, _WEIGHT = "x", "weight"


#: Instructions that multiply floats, and bytes of codes and rows; the longest vectors first.
_FLOATS = ("avx512_fmadd_m16_f32_f32", "avx2_fmadd_m8_f32_f32")
_BYTES = (
    "vnni_dpbusd_m16k4_u8_s8_s32",
    "vnni_dpbusd_m8k4_u8_s8_s32",
    "avxvnni_dpbusd_m8k4_u8_s8_s32",
)
#: Lanes of vectors on CPUs that have twice as many of them.
_LONG = 16


@dataclass(frozen=True)
class UnpackedBlocks(Lowering):
    """A product whose weights are unpacked in registers.

    Attributes:
        unit: name of the instruction that multiplies.
        compute_seconds: predicted, of the instruction.
        transfer_seconds: predicted, to start the kernel and to move what it reads and stores.
    """

    operator: Operator
    form: BlockedProduct
    unit: str
    compute_seconds: float
    transfer_seconds: float

    @property
    def predicted(self) -> float:
        """The longer of arithmetic and transfer."""
        return max(self.compute_seconds, self.transfer_seconds)

    @property
    def instruction(self) -> str:
        """See :class:`Lowering`."""
        return self.unit

    @property
    def bound(self) -> str:
        """What limits it, by the model."""
        if self.compute_seconds > self.transfer_seconds:
            return "issue of the intrinsic"
        return f"reads of packed `{_WEIGHT}`"

    def write(self) -> tuple[Sequence[Argument], Any]:
        """Return rows, packed weights, what the epilogue reads, and the result; their function."""
        operator, form = self.operator, self.form
        arguments = (
            Argument(_ROWS, "float32", (form.rows * form.depth,)),
            Argument(_WEIGHT, "uint32", (form.words,)),
            *(Argument(x.name, str(x.dtype), x.shape) for x in list_epilogue_tensors(operator)),
            Argument(operator.result.name, str(operator.result_dtype), (form.rows * form.columns,)),
        )
        writer = RoundedRowsWriter if form.rounds_rows else FloatRowsWriter
        return arguments, writer(form, operator).write_function()

    def pack(self, argument: Argument, value: Constant) -> np.ndarray:
        """Bring an input into the form in which the kernel takes it."""
        if argument.tensor != _WEIGHT:
            return super().pack(argument, value)
        assert isinstance(value, BlockedWeight)
        return self.form.pack(value)

    def build(self, symbol: str) -> TaskKernel:
        """Compile the kernel; errors as of :meth:`Lowering.build`."""
        arguments, function = self.write()
        return self.compile(symbol, arguments, function, kind="generic")

    def example(self, references: References) -> Example:
        """Draw rows and codes, and compute the result with the floats of these."""
        rng, form = np.random.default_rng(0), self.form
        weight = random_weight(form.depth, form.columns, form.format, rng)
        inputs = random_inputs(self.operator, rng)
        rows = round_rows(inputs[_ROWS], form.format.block) if form.rounds_rows else inputs[_ROWS]
        read = inputs | {_ROWS: rows, _WEIGHT: weight.array}
        expected = np.asarray(evaluate(self.operator, read))
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
    """Return the lowering of a product that unpacks its weights; ``None`` if there is none."""
    names = (*(_BYTES if format.rounds_rows else ()), *_FLOATS)
    unit = next((each for each in map(get, names) if executes(chooser.machine, each)), None)
    if unit is None:
        return None
    rows, weight = (load.tensor for load in operator.sources)
    lanes = unit.compute.spatial[-1].extent
    form = BlockedProduct(
        rows=prod(rows.shape[:-1]),
        columns=weight.shape[1],
        depth=weight.shape[0],
        format=format,
        lanes=lanes,
        registers=2 * lanes,
        has_permutes=lanes == _LONG,
        rounds_rows=unit.name in _BYTES,
    )
    if max(form.words, form.rows * form.depth, form.rows * form.columns) > MOST_ELEMENTS:
        return None
    machine = chooser.target([unit])
    calls = operator.points / prod(unit.extents.values()) / machine.cores
    read_bytes = sum(each.stored_bytes for each in (*list_epilogue_tensors(operator), rows))
    return UnpackedBlocks(
        operator,
        form,
        unit.name,
        compute_seconds=calls * machine.peak(unit.name).interval,
        transfer_seconds=predict_transfer(
            machine, read_bytes + form.words * WORD_BITS // 8, operator.result.stored_bytes
        ),
    )
