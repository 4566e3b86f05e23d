"""Division of a task between a unit and its host.

Loads and stores of a unit compute little: its host takes the epilogue on the sums that the unit
leaves. Bytes without a sign reach a unit of signed bytes less 128. A zero point moves no sum by
more than a constant for each channel, which the host adds with the bias: this is exact, also for
padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from amos.errors import AmosError, MappingError
from amos.explore.choosing import Chooser, Product
from amos.ir import BufferLoad, Operator

#: From an unsigned byte to the signed one of the same bits with the first one flipped.
ZERO_POINT = 128


@dataclass(frozen=True)
class Offload:
    """An operator for a unit, and the steps of the task that stay with the host.

    Attributes:
        host_steps: in words, in the order in which they are done.
    """

    operator: Operator
    host_steps: tuple[str, ...] = ()


def predict_offload(operator: Operator, chooser: Chooser) -> tuple[Offload, Product]:
    """Select the largest part of a task that the machine computes; raise MappingError if none."""
    reason = ""
    for offload in offloads(operator):
        try:
            return offload, chooser.choose(offload.operator)
        except AmosError as error:
            reason = " ".join(str(error).split())
    if refused := refuse_shift(operator):
        reason = f"{reason}; {refused}"
    raise MappingError(reason)


def offloads(operator: Operator) -> Iterator[Offload]:
    """Yield the task as it is, its sums alone, and its sums with unsigned bytes shifted."""
    yield Offload(operator)
    sums = Operator(compute=operator.compute, name=operator.name, constants=operator.constants)
    steps = [f"prologue {each}" for each in operator.prologues]
    steps += [f"epilogue {each}" for each in operator.epilogues]
    steps += ["stores of results in another order"] * operator.redirected
    if sums != operator:
        yield Offload(sums, tuple(steps))
    if unsigned := _list_unsigned(operator):
        if refuse_shift(operator):
            return
        shifted = [f"{name} less {ZERO_POINT}, a constant more in the bias" for name in unsigned]
        yield Offload(replace(sums, compute=sums.compute.with_loads(_shift)), (*shifted, *steps))


def refuse_shift(operator: Operator) -> str:
    """Explain why the zero points of unsigned sources are no constants; empty if they are.

    Shifting a factor adds a multiple of the sum of the other one.
    """
    for name in _list_unsigned(operator):
        for load in operator.sources:
            partner = load.tensor.name
            if partner != name and partner not in operator.constants:
                return (
                    f"`{name}` is u8: shifted to s8 it needs the sums of `{partner}`, which is "
                    "no constant"
                )
    return ""


def _list_unsigned(operator: Operator) -> list[str]:
    """List the sources of unsigned bytes."""
    return [x.tensor.name for x in operator.sources if x.tensor.dtype == "uint8"]


def _shift(load: BufferLoad) -> BufferLoad:
    """Return the access to a source less 128, whose padding is less 128 as well."""
    if load.tensor.dtype != "uint8":
        return load
    bounds = load.tensor.bounds
    moved = None if bounds is None else (bounds[0] - ZERO_POINT, bounds[1] - ZERO_POINT)
    tensor = replace(load.tensor, dtype="int8", bounds=moved)
    padding = load.padding - ZERO_POINT if load.padded else load.padding
    return replace(load, tensor=tensor, padding=padding)
