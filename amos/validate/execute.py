"""Run a matching, right or wrong: intrinsic calls on a virtual accelerator.

AMOS, section 5.1 and Figure 3 i: one load engine, one compute engine and one
store engine of any capacity, so nothing is tiled yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.intrinsics import Intrinsic
from amos.intrinsics.meaning import Unit, scalar_unit
from amos.ir import BufferLoad, Operator
from amos.validate.buffers import (
    FlatAccess,
    check_inputs,
    initialize_output,
    nest_addresses,
    output_dtype,
    wide_dtype,
)
from amos.validate.epilogue import finish, source_values
from amos.validate.pairing import Pairing
from amos.validate.verdict import read_matching


def execute_matching(
    op: Operator,
    intrinsic: Intrinsic,
    matrix: Any,
    inputs: Mapping[str, np.ndarray],
    unit: Unit | None = None,
    *,
    order: Sequence[int] | None = None,
) -> Any:
    """Run a matching, valid or not, one call for each value of the unmatched iterations.

    A call loads the accumulator, gathers each source, lets the unit compute, and
    stores the accumulator. A fragment has a slot for each value of the fused
    iterations that index its operand **in the intrinsic**. Where a software
    iteration indexes the tensor but not the fragment, several elements claim one
    slot and the last one wins; where it indexes the fragment but not the tensor,
    the element is replicated, and of several slots stored to one element the last
    wins. So a wrong matching computes something else, on generic data and with
    every extent at least 2.

    Args:
        matrix: matching matrix, intrinsic × software iterations.
        unit: computes one call; the intrinsic's scalar statement if omitted.
        order: for each source of the intrinsic the index of the operator's source.

    Returns:
        array of the result's shape and dtype; a tuple of them if there are several.

    Raises:
        MappingError: the matrix is no matching, or the operator cannot use the
            intrinsic.
        OperatorError: the inputs are not the operator's.
    """
    pairing = Pairing.of(op, intrinsic, order)
    assignment = read_matching(pairing, matrix)
    arrays_by_name = check_inputs(op, inputs)
    arrays = source_values(op, arrays_by_name)
    work = wide_dtype(arrays)
    run = unit or scalar_unit(intrinsic)
    out = initialize_output(op, work)
    sources = [arrays[load.tensor.name].astype(work) for load in pairing.loads[:-1]]
    *engines, target = (
        _Engine.of(FlatAccess.of(load, array, op.extents), operand, pairing, assignment)
        for load, operand, array in zip(
            pairing.loads, intrinsic.operands, [*sources, out], strict=True
        )
    )
    with np.errstate(over="ignore", invalid="ignore"):
        for call in range(len(target.bases)):
            loaded = [engine.load(call) for engine in engines]
            target.store(call, run(target.load(call), loaded))
    result = target.buffer.reshape(out.shape).astype(output_dtype(op, arrays))
    return finish(op, result, arrays_by_name)


@dataclass(frozen=True)
class _Engine:
    """Moves the fragments of one operand: element addresses for each call and slot."""

    buffer: np.ndarray
    bases: np.ndarray  # calls
    slots: np.ndarray  # shape of the fragment
    last: np.ndarray  # flat slots, the last one of each element they are stored to

    @staticmethod
    def of(
        flat: FlatAccess, operand: BufferLoad, pairing: Pairing, assignment: Sequence[int]
    ) -> _Engine:
        def addresses(target: int) -> np.ndarray:
            return nest_addresses(
                (it.extent, flat.strides.get(it.name, 0))
                for it, at in zip(pairing.operator.iterations, assignment, strict=True)
                if at == target
            )

        fused = {it.name: addresses(t) for t, it in enumerate(pairing.intrinsic.iterations)}
        axes = [index.names[0] for index in operand.indices]
        slots = np.zeros([len(fused[name]) for name in axes], dtype=np.int64)
        for d, name in enumerate(axes):
            # Of a diagonal operand only the diagonal is computed with,
            # so the address need follow one of its dimensions only.
            if name not in axes[:d]:
                slots += fused[name].reshape([-1 if i == d else 1 for i in range(len(axes))])
        offset = flat.offset + sum(int(fused[name][-1]) for name in fused if name not in axes)
        last = slots.size - 1 - np.unique(slots.reshape(-1)[::-1], return_index=True)[1]
        return _Engine(flat.buffer, addresses(-1) + offset, slots, last)

    def load(self, call: int) -> np.ndarray:
        return np.asarray(self.buffer[self.slots + self.bases[call]])

    def store(self, call: int, fragment: np.ndarray) -> None:
        addresses = self.slots.reshape(-1)[self.last] + self.bases[call]
        self.buffer[addresses] = fragment.reshape(-1)[self.last]
