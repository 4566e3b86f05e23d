"""The mapped program in NumPy: staging, calls at physical addresses, un-staging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as Dict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import MappingError
from amos.intrinsics.meaning import scalar_unit
from amos.validate.buffers import FlatAccess, check_inputs, nest_addresses, output_dtype, wide_dtype
from amos.validate.epilogue import finish, source_values

if TYPE_CHECKING:
    from amos.mapping.mapping import Mapping
    from amos.mapping.physical import Layout, PhysicalMapping

#: Calls computed together, which bounds the fragments held at a time.
_TOGETHER = 1 << 14

#: A loop around the calls: ``"outer"`` and a software iteration, or ``"tile"`` and
#: an intrinsic iteration; the two may well have the same name.
_Loop = tuple[str, str]


def simulate(mapping: Mapping, inputs: Dict[str, np.ndarray]) -> Any:
    """Run a physical mapping call by call.

    Each operand is staged in a flat buffer of fragments with the reduction's neutral value,
    of a sum zero, in slots that no iteration fills; a call reads and writes fragments at the
    mapping's base addresses and strides. Calls with the same accumulator run one after
    another; the others are independent, and are computed together.

    Args:
        inputs: an array for each input tensor, by name.

    Returns:
        array of the result's shape and dtype; a tuple of them if there are several. Integers equal
        :func:`amos.validate.evaluate`; floats are accumulated in float64, so they
        equal it but for the order of additions.

    Raises:
        MappingError: this is no mapping.
        OperatorError: an input is missing, or its shape or dtype is another.
    """
    if not hasattr(mapping, "physical"):
        raise MappingError(f"simulate: expected a Mapping, got {type(mapping).__name__}")
    op, physical = mapping.operator, mapping.physical()
    checked = check_inputs(op, inputs)
    arrays = source_values(op, checked)
    work = wide_dtype(arrays)
    out = np.zeros(op.output.tensor.shape, work)
    layouts = list(physical.layouts.values())
    staged = [
        _stage(layout, arrays[layout.load.tensor.name].astype(work), physical)
        for layout in layouts[:-1]
    ]
    start = op.compute.neutral(mapping.intrinsic.dtypes[-1])
    accumulators = np.full(layouts[-1].elements, start, work)
    with np.errstate(over="ignore", invalid="ignore"):
        _run(physical, staged, accumulators)
    flat = FlatAccess.of(op.output, out, op.extents)
    addresses, is_valid = _elements(layouts[-1], flat, physical)
    flat.buffer[addresses[is_valid]] = accumulators[layouts[-1].places[is_valid]]
    with np.errstate(over="ignore"):
        result = flat.buffer.reshape(out.shape).astype(output_dtype(op, arrays))
    return finish(op, result, checked)


def _elements(
    layout: Layout, flat: FlatAccess, physical: PhysicalMapping
) -> tuple[np.ndarray, np.ndarray]:
    """Return each staged element's address in the tensor, and whether it has one."""
    extents, k, d = physical.mapping.operator.extents, len(layout.outer), len(layout.tiles)
    address = np.full(layout.shape, flat.offset)
    is_valid = np.ones(layout.shape, dtype=bool)

    def spread(values: np.ndarray, *axes: int) -> np.ndarray:
        return values.reshape([n if i in axes else 1 for i, n in enumerate(layout.shape)])

    for axis, (name, extent, _) in enumerate(layout.outer):
        address += spread(np.arange(extent) * flat.strides[name], axis)
    seen: set[str] = set()
    for i, (step, count, _) in enumerate(layout.tiles):
        value = np.arange(count * layout.fragment[i])
        axes = (k + i, k + d + i)
        is_valid &= spread(value < physical.mapping.fused_extents[step], *axes)
        if step in seen:  # the second dimension of a diagonal repeats the first
            continue
        seen.add(step)
        for name, radix in physical.mapping.fused[step].terms:
            digit = value // radix % extents[name]
            address += spread(digit * flat.strides.get(name, 0), *axes)
    return address, is_valid


def _stage(layout: Layout, array: np.ndarray, physical: PhysicalMapping) -> np.ndarray:
    """Gather a source into its flat buffer; fill unused slots with a neutral value."""
    flat = FlatAccess.of(layout.load, array, physical.mapping.operator.extents)
    addresses, is_valid = _elements(layout, flat, physical)
    read = flat.buffer[np.where(is_valid, addresses, 0)]
    empty = physical.mapping.operator.compute.neutral(str(layout.load.tensor.dtype))
    staged = np.full(layout.elements, empty, read.dtype)
    staged[layout.places] = np.where(is_valid, read, empty)
    return staged


@dataclass(frozen=True)
class _Fragments:
    """Addresses of one operand's fragments."""

    bases: np.ndarray  # independent calls
    steps: np.ndarray  # calls with the same accumulator, beyond the first
    slots: np.ndarray  # shape of the fragment

    @staticmethod
    def of(layout: Layout, independent: Dict[_Loop, int], repeated: Dict[_Loop, int]) -> _Fragments:
        strides = Counter[_Loop]({("outer", n): stride for n, _, stride in layout.outer})
        for step, _, stride in layout.tiles:
            strides["tile", step] += stride
        bases, steps = (
            nest_addresses((count, strides[loop]) for loop, count in loops.items())
            for loops in (independent, repeated)
        )
        slots = nest_addresses(zip(layout.fragment, layout.strides, strict=True))
        return _Fragments(bases, steps, slots.reshape(layout.fragment))

    def addresses(self, calls: slice, step: np.int64) -> np.ndarray:
        """Return addresses of elements for some independent calls and one of the repeated ones."""
        bases = self.bases[calls].reshape([-1] + [1] * self.slots.ndim)
        return np.asarray(bases + (self.slots + step))


def _run(physical: PhysicalMapping, staged: list[np.ndarray], accumulators: np.ndarray) -> None:
    mapping = physical.mapping
    loops: dict[_Loop, int] = {("outer", n): mapping.operator.extents[n] for n in mapping.outer}
    loops |= {("tile", step): count for step, count in physical.tiles.items()}
    target = list(physical.layouts.values())[-1]
    target_loops = {("outer", n) for n, _, _ in target.outer} | {
        ("tile", n) for n, _, _ in target.tiles
    }
    independent = {loop: count for loop, count in loops.items() if loop in target_loops}
    repeated = {loop: count for loop, count in loops.items() if loop not in target_loops}
    fragments = [
        _Fragments.of(layout, independent, repeated) for layout in physical.layouts.values()
    ]
    unit = scalar_unit(mapping.intrinsic)
    for first in range(0, len(fragments[-1].bases), _TOGETHER):
        calls = slice(first, first + _TOGETHER)
        for steps in zip(*(each.steps for each in fragments), strict=True):
            *sources, at = (
                each.addresses(calls, step) for each, step in zip(fragments, steps, strict=True)
            )
            loaded = [buffer[source] for buffer, source in zip(staged, sources, strict=True)]
            accumulators[at] = unit(accumulators[at], loaded)
