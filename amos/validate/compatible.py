"""Can an operator use an intrinsic at all? (AMOS, section 4.1)"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from amos.errors import MappingError
from amos.ir import dtype
from amos.ir.floats import integer_limits
from amos.validate.candidates import Pairing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amos.intrinsics import Intrinsic
    from amos.ir import Operator

__all__ = ["check_compatible", "check_structure"]


def check_structure(op: Operator, intrinsic: Intrinsic, order: Sequence[int] | None = None) -> None:
    """Compare arithmetic, number of sources and dtypes, and nothing about indices.

    A sum of an operator wraps around. A saturating intrinsic computes the same
    only where no sum can leave the destination's range, whatever the data; else
    it is refused.

    Args:
        op: the operator; a tensor without a dtype takes that of its operand.
        intrinsic: the intrinsic.
        order: for each source of the intrinsic the index of the operator's source.

    Raises:
        MappingError: they differ; the message says in what.
    """
    pairing = Pairing.of(op, intrinsic, order)
    if op.compute.arithmetic != intrinsic.compute.arithmetic:
        raise MappingError(
            f"{op.name} cannot use {intrinsic.name}: its arithmetic is "
            f"{op.compute.arithmetic}, the intrinsic's is {intrinsic.compute.arithmetic}"
        )
    taken: dict[str, tuple[str, str]] = {}
    for load, operand in zip(pairing.loads, intrinsic.operands, strict=True):
        tensor, expected = load.tensor, str(operand.tensor.dtype)
        into = operand.tensor.name
        if tensor.dtype is not None and tensor.dtype != expected:
            raise MappingError(
                f"{op.name} cannot use {intrinsic.name}: `{tensor.name}` is "
                f"{dtype(tensor.dtype).name}, its operand `{into}` is {expected}"
            )
        other, found = taken.setdefault(tensor.name, (into, expected))
        if found != expected:
            raise MappingError(
                f"{op.name} cannot use {intrinsic.name}: `{tensor.name}` feeds both "
                f"`{other}` ({found}) and `{into}` ({expected})"
            )
    if intrinsic.arithmetic.saturate:
        _check_sums(op, intrinsic)


def _check_sums(op: Operator, intrinsic: Intrinsic) -> None:
    """Refuse an operator whose sums can reach what the intrinsic saturates at."""
    *sources, target = (dtype(kind) for kind in intrinsic.dtypes)
    low, high = integer_limits(target)
    products = [prod(corner) for corner in product(*map(integer_limits, sources))]
    # Padding adds zeros, and a partial sum has fewer products.
    least, most = min(0, *products), max(0, *products)
    count = prod(it.extent for it in op.reduce)
    if low <= count * least and count * most <= high:
        return
    safe = min(limit // value for limit, value in ((low, least), (high, most)) if value)
    raise MappingError(
        f"{op.name} cannot use {intrinsic.name}: its sums wrap around, the intrinsic's saturate, "
        f"and {count} products can leave {target.name}; up to {safe} products cannot"
    )


def check_compatible(
    op: Operator, intrinsic: Intrinsic, order: Sequence[int] | None = None
) -> None:
    """Raise unless some mapping of the operator onto the intrinsic can exist.

    Beyond :func:`check_structure`, at least one software iteration must have an
    intrinsic iteration to go to, under the widest rule.

    Raises:
        MappingError: the operator cannot use the intrinsic; the message says why.
    """
    check_structure(op, intrinsic, order)
    pairing = Pairing.of(op, intrinsic, order)
    if pairing.rank:
        return
    why = "; ".join(
        f"`{it.name}` ({it.kind}): {_nothing_fits(pairing, t)}"
        for t, it in enumerate(intrinsic.iterations)
    )
    raise MappingError(
        f"{op.name} cannot use {intrinsic.name}: no iteration can go anywhere. {why}"
    )


def _nothing_fits(pairing: Pairing, t: int) -> str:
    """Why no software iteration can go to intrinsic iteration ``t``."""
    it = pairing.intrinsic.iterations[t]
    same = [
        (s, other.name)
        for s, other in enumerate(pairing.operator.iterations)
        if other.kind == it.kind
    ]
    if not same:
        return f"{pairing.operator.name} has no {it.kind} iteration"
    reasons = []
    for s, name in same:
        extra = pairing.columns[s] & ~pairing.slots[t]
        m = (extra & -extra).bit_length() - 1
        operand = pairing.intrinsic.operands[m].tensor.name
        reasons.append(f"`{name}` indexes `{pairing.labels[m]}`, not indexed in `{operand}`")
    return ", ".join(reasons)
