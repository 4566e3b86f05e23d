"""Reading fragments of sources: from tensors into vectors and local memory, and from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from amos.codegen.device.access import STEP, Access
from amos.codegen.device.arithmetic import write_source
from amos.codegen.device.text import WIDE_OPENCL, block, identifier, unroll
from amos.ir.index_text import Expr, Value, text, variable
from amos.ir.tasks import TaskMapping, decode
from amos.opencl.codegen.borders import list_read_conditions
from amos.opencl.codegen.stages import count_last_steps, loop_over_steps, stage_step, step_axes
from amos.opencl.codegen.text import OPENCL, vector_at, vector_type
from amos.opencl.groups import VectorFragment
from amos.opencl.plan import OpenClPlan
from amos.plan.nest import Group

#: Names of the loops over the pieces of a fragment, and over the elements of one that is cut.
_PIECE, _LANE = "piece", "lane"


class _Piece(Access):
    """A piece of a fragment."""

    keeps_sums = True


class _LivePiece(_Piece):
    """A piece that is read in a loop that ends with the reduction."""

    is_live_step = True


class _InteriorPiece(_Piece):
    """A piece of a fragment of a work-item, or group, that reads nothing beyond a border."""

    is_interior = True


@dataclass(frozen=True)
class LocalAxis:
    """One direction in which fragments are staged in local memory.

    Attributes:
        unit: steps of it that count as one.
        stride: fragments between neighbours.
    """

    name: str
    unit: int
    extent: int
    stride: int

    def place(self, values: Mapping[str, Value]) -> Value:
        """Write the fragments from the first to the loop's position along this direction."""
        return values[self.name] // self.unit % self.extent * self.stride


def local_axes(plan: OpenClPlan, source: VectorFragment) -> list[LocalAxis]:
    """Return directions of the staged fragments of a source, fastest first.

    What one step of the reduction reads lies side by side: of all work-items where they run at
    the same time, else of each. Scalars of a work-item lie as in the tensor, so that a core copies
    whole rows as vectors.
    """
    steps = step_axes(plan) if source.reduced else []
    moved = [(axis.name, 1, axis.extent) for axis in steps]
    loops, schedule = [*reversed(source.loops)], plan.schedule
    if plan.is_serial:
        tiles = [(loop, plan.distances(loop)[1], schedule.tile[loop]) for loop in loops]
        items = [(loop, plan.distances(loop)[0], schedule.items[loop]) for loop in loops]
        own = [*tiles, *moved]
        if source.elements == 1:
            strides = _strides(plan, source)
            own.sort(key=lambda direction: strides[direction[0]])
        counts = [*own, *items]
    else:
        counts = [*((loop, 1, plan.spans[loop]) for loop in loops), *moved]
    axes, stride = [], 1
    for name, unit, extent in counts:
        axes.append(LocalAxis(name, unit, extent, stride))
        stride *= extent
    return axes


def declare_local(plan: OpenClPlan, source: VectorFragment) -> str:
    """Declare a source's local memory."""
    count = prod(axis.extent for axis in local_axes(plan, source))
    kind = vector_type(source.dtype, source.elements)
    return f"__local {kind} local_{source.staged.name}[{count}];"


def copy_local(plan: OpenClPlan, source: VectorFragment) -> list[str]:
    """Write a group's copies to the local memory of a source for one stage.

    As many of the directions with the smallest strides in the tensor as give every work-item
    something to do are one loop that work-items divide; the others are loops. Where a core
    computes the work-items one after another, the first copies everything. Groups that reach no
    border copy without conditions.
    """
    divided, names = _divide_copies(plan, source)
    conditions = list_read_conditions(plan, source, of_group=True)
    if STEP in divided and count_last_steps(plan) < plan.staged:
        conditions.append(f"(stage < {plan.sequence - 1})")
    border = _Piece if STEP in divided else _LivePiece
    lines = _copy_stage(plan, source, divided, names, border)
    if conditions:
        interior = _copy_stage(plan, source, divided, names, _InteriorPiece)
        head = f"if ({' & '.join(dict.fromkeys(conditions))}) {{"
        lines = [head, *block(interior), "} else {", *block(lines), "}"]
    if plan.is_serial and plan.items > 1:
        return ["if (item == 0) {", *block(lines), "}"]
    return lines


def _count_pieces(plan: OpenClPlan, source: VectorFragment) -> dict[str, int]:
    """Count pieces that a group copies in a stage along each direction."""
    extents = {_PIECE: source.pieces} if source.pieces > 1 else {}
    extents |= {loop: plan.spans[loop] for loop in reversed(source.loops)}
    return extents | {axis.name: axis.extent for axis in step_axes(plan) if source.reduced}


def _divide_copies(plan: OpenClPlan, source: VectorFragment) -> tuple[list[str], list[str]]:
    """Return directions whose copies work-items divide, and the others, fastest first."""
    extents = _count_pieces(plan, source)
    strides = _strides(plan, source)
    flat, names = 1, sorted(extents, key=lambda name: strides[name])
    divided: list[str] = []
    while names and flat < plan.items and not plan.is_serial:
        divided.insert(0, names.pop(0))
        flat *= extents[divided[0]]
    return divided, names


def _copy_stage(
    plan: OpenClPlan,
    source: VectorFragment,
    divided: Sequence[str],
    names: Sequence[str],
    kind_of_access: type[_Piece],
) -> list[str]:
    """Write loops that copy a stage of a source."""
    axes, extents = local_axes(plan, source), _count_pieces(plan, source)
    flat = prod(extents[name] for name in divided)
    places = decode([extents[name] for name in divided], variable("e", flat))
    digits: dict[str, Value] = dict(zip(divided, places, strict=True))
    digits |= {name: variable(f"at_{identifier(name)}", extents[name]) for name in names}
    piece = digits.pop(_PIECE, 0)
    fragment = sum((axis.place(digits) for axis in axes), start=0)
    digits[STEP] = stage_step(plan, digits)
    target = fragment * source.pieces + piece
    slot = f"((__local {_piece_type(source)} *)local_{source.staged.name})[{text(target)}]"
    body = _read_piece(plan, source, digits, piece, slot, kind_of_access)
    if not plan.is_serial and (flat > 1 or plan.items > 1):
        body = [f"for (int e = item; e < {flat}; e += {plan.items}) {{", *block(body), "}"]
    steps = {axis.name: axis for axis in step_axes(plan)}
    for name in names:
        if (extent := extents[name]) > 1:
            at = f"at_{identifier(name)}"
            head = f"for (int {at} = 0; {at} < {extent}; ++{at}) {{"
            if name in steps:
                head = loop_over_steps(plan, steps[name], at)
            body = [head, *block(body), "}"]
    return body if body[0].startswith("for") else ["{", *block(body), "}"]


def _strides(plan: OpenClPlan, source: VectorFragment) -> dict[str, int]:
    """Return the tensor's elements between neighbours along each copied direction."""
    strides = {axis.name: _stride(source, axis.loop) for axis in step_axes(plan)}
    strides |= {loop: _stride(source, loop) for loop in source.loops}
    if source.pieces > 1:
        strides[_PIECE] = source.width * source.stride(_last_side(source))
    return strides


def _stride(source: VectorFragment, loop: str) -> int:
    for side in source.nest.groups.values():
        if side.tile == loop:
            return side.lanes * source.stride(side)
    return abs(source.staged.load.flat.coefficient(loop))


def _last_side(source: VectorFragment) -> Group:
    return source.nest.groups[source.staged.fragment[-1]]


def load_fragment(
    plan: OpenClPlan,
    source: VectorFragment,
    slot: str,
    local: Mapping[str, Value],
    *,
    interior: bool = False,
) -> list[str]:
    """Write statements that fill a vector with a fragment of a source.

    Args:
        slot: the vector.
        interior: whether :func:`.list_read_conditions` hold.
        local: the work-item's steps within the group by spatial loop, the ``STEP``, and the
            variables of its axes.
    """
    if plan.is_local(source):
        axes = local_axes(plan, source)
        place = sum((axis.place(local) for axis in axes), start=0)
        return [f"{slot} = local_{source.staged.name}[{text(place)}];"]
    piece = variable(_PIECE, source.pieces)
    target = slot
    if source.pieces > 1:
        target = f"(({_piece_type(source)} *)&{slot})[{text(piece)}]"
    body = _read_piece(
        plan, source, local, piece, target, _InteriorPiece if interior else _LivePiece
    )
    if source.pieces > 1:
        return unroll(_PIECE, source.pieces, body)
    return ["{", *block(body), "}"]


def _piece_type(source: VectorFragment) -> str:
    return vector_type(source.dtype, source.width)


def _read_piece(
    plan: OpenClPlan,
    source: VectorFragment,
    local: Mapping[str, Value],
    piece: Value,
    target: str,
    kind_of_access: type[_Piece],
) -> list[str]:
    """Write statements that read one piece of a fragment into a target.

    Where it may be cut, its elements are read one by one unless it is whole.
    """
    width = source.width
    whole = _read_elements(plan, source, local, piece, target, width, kind_of_access)
    if not source.is_cut:
        return whole
    last = kind_of_access(plan, source, WIDE_OPENCL)
    last.locate(split_lanes(source, piece * width + (width - 1), 1), local)
    if not last.guards:
        return whole
    qualifier = "__local " if plan.is_local(source) else ""
    element = f"(({qualifier}{vector_type(source.dtype, 1)} *)&{target})[{_LANE}]"
    at = piece * width + variable(_LANE, width)
    single = _read_elements(plan, source, local, at, element, 1, kind_of_access)
    return [
        *last.lines,
        f"if ({_all(last.guards)}) {{",
        *block(whole),
        "} else {",
        *block(unroll(_LANE, width, single)),
        "}",
    ]


def split_lanes(source: VectorFragment, piece: Value, width: int) -> dict[str, Value]:
    """Return the place along each side of a fragment at which a piece of some elements begins."""
    lanes: dict[str, Value] = {}
    for name in reversed(source.staged.fragment):
        extent = source.nest.groups[name].lanes // (1 if lanes else width)
        digit: Value = piece % extent
        lanes[name] = digit if lanes else digit * width
        piece = piece // extent
    return lanes


def _read_elements(
    plan: OpenClPlan,
    source: VectorFragment,
    local: Mapping[str, Value],
    piece: Value,
    target: str,
    width: int,
    kind_of_access: type[_Piece],
) -> list[str]:
    """Write statements that read several elements as one."""
    access = kind_of_access(plan, source, WIDE_OPENCL)
    address = access.locate(split_lanes(source, piece, width), local)
    prologue, lines = source.staged.prologue, access.lines
    conditions = [*access.guards, *access.in_bounds]
    if conditions and prologue is None:
        # Without a branch, compilers move the reads of several steps ahead of their use.
        lines.append(f"const int valid = {_all(conditions)};")
        address = f"valid ? {address} : 0"
    value = f"{source.staged.load.tensor.name}[{address}]"
    if width > 1:
        place = f"{source.staged.load.tensor.name} + ({address})"
        value = vector_at(vector_type(source.dtype, width), place)
    kind = vector_type(source.dtype, width)
    if prologue is not None:
        at = dict(zip(prologue.dimensions, access.indices, strict=True))
        value = write_source(OPENCL, prologue, at)
    elif conditions:
        lines.append(f"const {kind} element = {value};")
        value = "element"
    if access.in_bounds:
        padding = f"({kind})({source.staged.load.padding})"
        value = f"({_all(access.in_bounds)} ? {value} : {padding})"
    if access.guards:
        guard = _all(access.guards) if access.in_bounds or prologue is not None else "valid"
        value = f"{guard} ? {value} : ({kind})(0)"
    return [*lines, f"{target} = {value};"]


def _all(conditions: Sequence[str]) -> str:
    """Write whether all conditions hold, each of which is evaluated."""
    return " & ".join(f"({condition})" for condition in conditions)


def number_groups(plan: OpenClPlan, grid: TaskMapping) -> list[str]:
    """Write the group's first value of each loop, and the work-item's place in it."""
    lines = []
    for worker, name, tasks in (("group", "first", grid), ("item", "item", plan.worker_tasks)):
        places = zip(plan.spatial, tasks.at(variable(worker, tasks.workers)), strict=True)
        for loop, place in places:
            value = place * plan.spans[loop.name] if name == "first" else place
            if isinstance(value, Expr):
                lines.append(f"const int {name}_{identifier(loop.name)} = {value.code};")
    return lines
