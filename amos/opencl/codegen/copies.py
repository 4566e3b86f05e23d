"""Reading fragments of sources: from tensors into vectors and local memory, and from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from amos.codegen.device.access import STEP, Access
from amos.codegen.device.arithmetic import computed
from amos.codegen.device.text import WIDE_OPENCL, block, identifier, unrolled
from amos.ir.index_text import Expr, Value, text, variable
from amos.ir.tasks import decode
from amos.opencl.codegen.text import OPENCL, vector_type
from amos.opencl.groups import VectorFragment
from amos.opencl.plan import OpenClPlan

#: Name of the loop over the pieces of a fragment.
_PIECE = "piece"


class _Piece(Access):
    """A piece of a fragment."""

    keeps_sums = True


@dataclass(frozen=True)
class LocalAxis:
    """One direction in which fragments are staged in local memory.

    Attributes:
        name: the loop, or ``"step"``.
        extent: how many fragments of it are staged together.
        stride: fragments between neighbours.
    """

    name: str
    extent: int
    stride: int


def local_axes(plan: OpenClPlan, source: VectorFragment) -> list[LocalAxis]:
    """Directions of the staged fragments of a source, fastest first, steps last.

    So what one step of the reduction reads lies side by side.
    """
    counts = [(loop, plan.spans[loop]) for loop in reversed(source.loops)]
    counts += [(STEP, plan.staged)] if source.reduced else []
    axes, stride = [], 1
    for name, extent in counts:
        axes.append(LocalAxis(name, extent, stride))
        stride *= extent
    return axes


def declare_local(plan: OpenClPlan, source: VectorFragment) -> str:
    """The declaration of a source's local memory."""
    count = prod(axis.extent for axis in local_axes(plan, source))
    kind = vector_type(source.dtype, source.elements)
    return f"__local {kind} local_{source.staged.name}[{count}];"


def copy_local(plan: OpenClPlan, source: VectorFragment) -> list[str]:
    """Copies of a group that fill the local memory of a source for one stage.

    As many of the innermost directions as give every work-item something to do are one loop
    that work-items divide; the others are loops, so that few work-items decode little.
    """
    axes = local_axes(plan, source)
    extents = {_PIECE: source.pieces} | {axis.name: axis.extent for axis in axes}
    flat, names = 1, list(extents)
    while names and flat < plan.items:
        flat *= extents[names.pop(0)]
    divided = [name for name in extents if name not in names][::-1]
    places = decode([extents[name] for name in divided], variable("e", flat))
    digits: dict[str, Value] = dict(zip(divided, places, strict=True))
    digits |= {name: variable(f"at_{identifier(name)}", extents[name]) for name in names}
    piece = digits.pop(_PIECE)
    fragment = sum((digits[axis.name] * axis.stride for axis in axes), start=0)
    target = fragment * source.pieces + piece
    slot = f"((__local {_piece_type(source)} *)local_{source.staged.name})[{text(target)}]"
    body = _read_piece(plan, source, digits, piece, slot)
    if flat > 1 or plan.items > 1:
        body = [f"for (int e = item; e < {flat}; e += {plan.items}) {{", *block(body), "}"]
    for name in names:
        if (extent := extents[name]) > 1:
            at = f"at_{identifier(name)}"
            body = [f"for (int {at} = 0; {at} < {extent}; ++{at}) {{", *block(body), "}"]
    return body if body[0].startswith("for") else ["{", *block(body), "}"]


def load_fragment(
    plan: OpenClPlan, source: VectorFragment, slot: str, local: Mapping[str, Value]
) -> list[str]:
    """Statements that fill a vector with a fragment of a source.

    Args:
        slot: the vector.
        local: the work-item's steps within the group by spatial loop, and the ``STEP``.
    """
    if plan.is_local(source):
        axes = local_axes(plan, source)
        place = sum((local[axis.name] * axis.stride for axis in axes), start=0)
        return [f"{slot} = local_{source.staged.name}[{text(place)}];"]
    piece = variable(_PIECE, source.pieces)
    target = slot
    if source.pieces > 1:
        target = f"(({_piece_type(source)} *)&{slot})[{text(piece)}]"
    body = _read_piece(plan, source, local, piece, target)
    if source.pieces > 1:
        return unrolled(_PIECE, source.pieces, body)
    return ["{", *block(body), "}"]


def _piece_type(source: VectorFragment) -> str:
    return vector_type(source.dtype, source.width)


def _read_piece(
    plan: OpenClPlan,
    source: VectorFragment,
    local: Mapping[str, Value],
    piece: Value,
    target: str,
) -> list[str]:
    """Statements that read one piece of a fragment into a target."""
    access, width = _Piece(plan, source, WIDE_OPENCL), source.width
    lanes: dict[str, Value] = {}
    remaining = piece
    for name in reversed(source.staged.fragment):
        extent = source.nest.groups[name].lanes // (1 if lanes else width)
        digit: Value = remaining % extent
        lanes[name] = digit if lanes else digit * width
        remaining = remaining // extent
    address = access.locate(lanes, local)
    value = f"{source.staged.load.tensor.name}[{address}]"
    if width > 1:
        value = f"vload{width}(0, {source.staged.load.tensor.name} + {address})"
    kind = _piece_type(source)
    prologue = source.staged.prologue
    if prologue is not None:
        at = dict(zip(prologue.dimensions, access.indices, strict=True))
        value = computed(OPENCL, prologue, at)
    if access.in_bounds:
        padding = f"({kind})({source.staged.load.padding})"
        value = f"{' && '.join(access.in_bounds)} ? {value} : {padding}"
    if access.guards:
        nested = f"({value})" if access.in_bounds else value
        value = f"{' && '.join(access.guards)} ? {nested} : ({kind})(0)"
    return [*access.lines, f"{target} = {value};"]


def loop_steps(plan: OpenClPlan) -> dict[str, Value]:
    """The steps of a work-item's fragment within the group, by spatial loop."""
    steps: dict[str, Value] = {}
    for loop in plan.spatial:
        name, tile = identifier(loop.name), plan.schedule.tile[loop.name]
        own = variable(f"item_{name}", plan.schedule.items[loop.name])
        steps[loop.name] = own * tile + variable(f"t_{name}", tile)
    return steps


def number_groups(plan: OpenClPlan) -> list[str]:
    """Where the group begins along each loop, and the place of the work-item in it."""
    lines = []
    for worker, name, tasks in (
        ("group", "first", plan.grid_tasks),
        ("item", "item", plan.item_tasks),
    ):
        places = zip(plan.spatial, tasks.at(variable(worker, tasks.workers)), strict=True)
        for loop, place in places:
            value = place * plan.spans[loop.name] if name == "first" else place
            if isinstance(value, Expr):
                lines.append(f"const int {name}_{identifier(loop.name)} = {value.code};")
    return lines
