"""Copies from the tensors to shared memory, with the gather that the mapping asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amos.cuda.codegen.epilogue import computed
from amos.cuda.codegen.text import block, cuda_type, element_at, identifier, unrolled
from amos.cuda.plan import GpuPlan
from amos.cuda.shared_operand import STEP, SharedOperand
from amos.ir import dtype
from amos.ir.floats import pack
from amos.ir.index_text import Expr, Value, at_most, text, variable
from amos.ir.tasks import decode
from amos.machine.gpu_costs import HELD_COPIES, LOOPED_COPIES, ROW_ALIGNMENT
from amos.plan.nest import Group

_MOVED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}


def column_text(source: SharedOperand, row: str, column: str) -> str:
    """C of the place of a column in its row, where pieces of a row may change places."""
    if not source.period:
        return column
    pieces, piece = source.row * source.size // ROW_ALIGNMENT, ROW_ALIGNMENT // source.size
    turn = f"({row})" if source.period == 1 else f"({row}) / {source.period}"
    return f"(({column}) ^ ({turn} % {pieces} * {piece}))"


def may_part(plan: GpuPlan, source: SharedOperand) -> bool:
    """Whether the threads of a warp may go different ways while they copy a source."""
    if source.copies % plan.threads:
        return True
    gather = _Gather(plan, source)
    return bool(gather.in_bounds) or (not source.is_async and bool(gather.guards))


def loop_values(
    plan: GpuPlan, local: dict[str, Value], loops: Sequence[str]
) -> tuple[dict[str, Value], list[str]]:
    """Values of spatial loops from the steps within the block, and when they exist."""
    values: dict[str, Value] = {}
    guards = []
    extents = {x.name: x.extent for x in plan.spatial}
    for loop in loops:
        count, span = plan.blocks[loop], plan.spans[loop]
        value = local.get(loop, 0)
        if count > 1:
            value = Expr(f"first_{identifier(loop)}", 0, (count - 1) * span) + value
        values[loop] = value
        if at_most(value) >= extents[loop]:
            guards.append(f"{text(value)} < {extents[loop]}")
    return values, guards


class _Gather:
    """One copy of a source: from where, to where, and if there is anything to read.

    Attributes:
        lines: declarations of the values that the others mention.
        shared: element of a stage that the copy goes to.
        address: element of the tensor that it begins at.
        guards: conditions under which there is something to read; else zeros are copied.
        in_bounds: conditions under which it is in the tensor; else its padding is copied.
            Where that is zero, they are among the guards.
        indices: where it begins along each dimension of the tensor.
    """

    def __init__(self, plan: GpuPlan, source: SharedOperand) -> None:
        self.plan, self.source = plan, source
        self.lines: list[str] = []
        self.guards: list[str] = []
        self.in_bounds: list[str] = []
        self.indices: list[Value] = []
        op = plan.mapping.operator
        self._used_names = {tensor.name for tensor in (*op.inputs, op.output.tensor)}
        row, column, local = self._position()
        place = column_text(source, text(row), text(column))
        begin: Value = column if place == text(column) else Expr(place, 0, source.row - 1)
        self.shared = text(
            sum(
                (local[axis.name] * axis.stride for axis in source.axes),
                row * source.row + begin,
            )
        )
        #: Lines that the place in shared memory needs.
        self.placing = list(self.lines)
        self.address = self._read(row, column, local)

    def _let(self, name: str, value: Value) -> Value:
        """Give a compound value a name."""
        if isinstance(value, int) or value.code.isidentifier():
            return value
        name = identifier(name)
        while name in self._used_names:
            name += "_"
        self._used_names.add(name)
        self.lines.append(f"const int {name} = {value.code};")
        return Expr(name, value.low, value.high)

    def _position(self) -> tuple[Value, Value, dict[str, Value]]:
        """Row and first column in the fragment, and which fragment, of copy ``e``.

        Columns vary fastest, then rows: neighbouring threads write into different
        banks, and read whole sectors of 32 bytes where the tensor is contiguous.
        """
        source = self.source
        turn = variable("i", source.turns)
        (number,) = source.assignment.at(variable("thread", source.threads), turn)
        if isinstance(number, Expr):
            # Compilers do not know how many threads there are: what depends on ``i`` alone becomes
            # an immediate offset of one address, where each copy would have one of its own.
            number = number.limited(source.copies - 1).named("e")
        names = ["column", "row", *(axis.name for axis in source.axes)]
        digits: dict[str, Value] = {}
        for name, value in zip(names, reversed(decode(source.pieces, number)), strict=True):
            place = value * source.vector if name == "column" else value
            digits[name] = self._let(f"at_{name}", place)
        return digits.pop("row"), digits.pop("column"), digits

    def _read(self, row: Value, column: Value, local: dict[str, Value]) -> str:
        source = self.source
        values, guards = loop_values(self.plan, local, source.tile.loops)
        self.guards += guards
        values |= self._reduction(local)
        lanes = {source.tile.rows.target: row, source.tile.columns.target: column}
        for target in source.tile.staged.fragment:
            group = source.tile.nest.groups[target]
            lane = lanes[target]
            if not set(group.members) & source.tile.staged.load.names:
                if group.kind == "reduce" and not group.members:
                    self.guards.append(f"{text(lane)} < 1")
                continue
            fused = self._let(target, values.get(group.tile, 0) * group.lanes + lane)
            if at_most(fused) >= group.size:
                self.guards.append(f"{text(fused)} < {group.size}")
            values |= group.decode(fused)
        load, extents = source.tile.staged.load, self.plan.mapping.operator.extents
        where = {name: self._let(name, values.get(name, 0)) for name in sorted(load.names)}
        indices = []
        ends = self.in_bounds if load.padding else self.guards
        for index, size in zip(load.indices, load.tensor.shape, strict=True):
            at = index.evaluate(where)
            low, high = index.bounds(extents)
            if low < 0:
                ends.append(f"{text(at)} >= 0")
            if high >= size:
                ends.append(f"{text(at)} < {size}")
            indices.append(at)
        self.indices = indices
        self.guards, self.in_bounds = (
            list(dict.fromkeys(x)) for x in (self.guards, self.in_bounds)
        )
        return element_at(load.tensor.shape, indices)

    def _reduction(self, local: dict[str, Value]) -> dict[str, Value]:
        """Values of the reduction loops at this step of this stage."""
        plan = self.plan
        if not self.source.tile.reduced:
            return {}
        stage = variable("stage", plan.sequence)
        flat = self._let("at_reduction", stage * plan.staged + local.get(STEP, 0))
        if at_most(flat) >= plan.reduction:
            self.guards.append(f"{text(flat)} < {plan.reduction}")
        names, extents = zip(*((x.name, x.extent) for x in plan.reduce_loops), strict=True)
        return Group("", "reduce", 1, names, extents).decode(flat)


def copy_code(plan: GpuPlan, source: SharedOperand) -> list[str]:
    """``fetch_NAME`` and, where registers lie between, ``put_NAME``, as local functions."""
    gather, name = _Gather(plan, source), source.name
    size = source.vector * source.size
    moved = _MOVED[size]
    live = " && ".join(gather.guards) or "true"
    if source.tile.computed:
        gather.lines += _computed(source, gather)
        live = "true"
    slot = f"shared_{name}"
    if plan.depth > 1:
        slot += f" + stage % {plan.depth} * {source.elements}"
    to = [f"{cuda_type(source.tile.dtype)} *const to = {slot};"]
    address = f"{source.tile.staged.load.tensor.name} + {gather.address}"
    stored = f"*reinterpret_cast<{moved} *>(to + {gather.shared})"
    read = f"*reinterpret_cast<const {moved} *>({address})"
    in_bounds, padding = " && ".join(gather.in_bounds), _padding(source)
    if source.tile.computed:
        read = "put_piece"
    elif in_bounds:
        read = f"({in_bounds}\n            ? {read}\n            : {padding})"
    if live != "true":
        zero = f"static_cast<{moved}>(0)" if size < 8 else f"{moved}{{}}"
        read = f"{live}\n            ? {read}\n            : {zero}"
    if source.is_kept:
        registers = f"kept_{name}"
        return [
            f"{moved} {registers}[{source.turns}];",
            *_function(plan, source, "fetch", [], [*gather.lines, f"{registers}[i] = {read};"]),
            *_function(plan, source, "put", to, [*gather.placing, f"{stored} = {registers}[i];"]),
        ]
    copied = f"{stored} = {read};"
    if source.is_async:
        copied = f"copy_async<{size}>(to + {gather.shared}, {address}, {live});"
        if in_bounds:
            out_of_bounds = f"{live} && !({in_bounds})" if gather.guards else f"!({in_bounds})"
            copied = f"if ({out_of_bounds}) {stored} = {padding};\nelse {copied}"
    return _function(plan, source, "fetch", to, [*gather.lines, copied])


def _computed(source: SharedOperand, gather: _Gather) -> list[str]:
    """Declares ``put_piece``: as many elements of a source as one copy moves, computed."""
    staged, moved = source.tile.staged, _MOVED[source.vector * source.size]
    assert staged.prologue is not None
    at = list(gather.indices)
    if source.vector > 1:
        # They are in the tensor all together or not at all, and in one row of it.
        at[-1] = at[-1] + variable("put_element", source.vector)
    value = computed(staged.prologue, dict(zip(staged.prologue.dimensions, at, strict=True)))
    lines = [
        f"__align__({source.vector * source.size}) {cuda_type(source.tile.dtype)} "
        f"put_values[{source.vector}];",
        *unrolled("put_element", source.vector, [f"put_values[put_element] = {value};"]),
        f"put_piece = *reinterpret_cast<const {moved} *>(put_values);",
    ]
    if gather.in_bounds:
        in_bounds = " && ".join(gather.in_bounds)
        otherwise = f"put_piece = {_padding(source)};"
        lines = [f"if ({in_bounds}) {{", *block(lines), "} else {", *block([otherwise]), "}"]
    if gather.guards:
        lines = [f"if ({' && '.join(gather.guards)}) {{", *block(lines), "}"]
    return [f"{moved} put_piece{{}};", *lines]


def _padding(source: SharedOperand) -> str:
    """C of as many values of a source's padding as one copy moves."""
    kind, value = dtype(source.tile.dtype), source.tile.staged.load.padding
    element = pack(np.array([value]).astype(kind.numpy), kind).tobytes()
    data, moved = element * source.vector, _MOVED[len(element) * source.vector]
    if len(data) < 8:
        return f"static_cast<{moved}>({int.from_bytes(data, 'little')}u)"
    words = [int.from_bytes(data[n : n + 4], "little") for n in range(0, len(data), 4)]
    return f"{moved}{{{', '.join(f'{word}u' for word in words)}}}"


def _function(
    plan: GpuPlan, source: SharedOperand, verb: str, head: list[str], body: list[str]
) -> list[str]:
    """The copies of one thread, as a local function."""
    whole = source.copies % plan.threads == 0
    few = source.turns <= HELD_COPIES
    lines = [
        *head,
        "#pragma unroll" if few else f"#pragma unroll {LOOPED_COPIES}",
        f"for (int i = 0; i < {source.turns}; ++i) {{",
        f"  const int e = thread + i * {plan.threads};",
        *([] if whole else [f"  if (e >= {source.copies}) break;"]),
        *block(body),
        "}",
    ]
    return [f"auto {verb}_{source.name} = [&](int stage) {{", *block(lines), "};"]
