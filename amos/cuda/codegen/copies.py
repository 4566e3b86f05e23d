"""Copies from the tensors to shared memory, with the gather that the mapping asks for."""

from __future__ import annotations

import numpy as np

from amos.codegen.device.access import Access
from amos.codegen.device.text import block, unroll
from amos.cuda.codegen.epilogue import write_source
from amos.cuda.codegen.text import cuda_type
from amos.cuda.plan import GpuPlan
from amos.cuda.shared_operand import SharedOperand
from amos.ir import dtype
from amos.ir.floats import pack
from amos.ir.index_text import Expr, Value, text, upper_bound, variable
from amos.ir.tasks import decode
from amos.machine.gpu_costs import HELD_COPIES, LOOPED_COPIES, ROW_ALIGNMENT

_MOVED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}


def column_text(source: SharedOperand, row: str, column: str) -> str:
    """Write the place of a column in its row, whose pieces may be swizzled."""
    if not source.period:
        return column
    pieces, piece = source.row * source.size // ROW_ALIGNMENT, ROW_ALIGNMENT // source.size
    turn = f"({row})" if source.period == 1 else f"({row}) / {source.period}"
    return f"(({column}) ^ ({turn} % {pieces} * {piece}))"


def may_part(plan: GpuPlan, source: SharedOperand) -> bool:
    """Return whether the threads of a warp may diverge while they copy a source."""
    if source.copies % plan.threads or source.is_realigned:
        return True
    gather = _Gather(plan, source)
    return bool(gather.in_bounds) or (not source.is_async and bool(gather.guards))


class _Gather(Access):
    """One copy of a source: from where, to where, and if there is anything to read."""

    def __init__(self, plan: GpuPlan, source: SharedOperand) -> None:
        super().__init__(plan, source.tile)
        self.source = source
        row, column, local = self._position()
        place = column_text(source, text(row), text(column))
        begin: Value = column if place == text(column) else Expr(place, 0, source.row - 1)
        self.shared = text(
            sum((local[axis.name] * axis.stride for axis in source.axes), row * source.row + begin)
        )
        #: Lines that the place in shared memory needs.
        self.placing = list(self.lines)
        lanes = {source.tile.rows.target: row, source.tile.columns.target: column}
        self.address = self.locate(lanes, local)

    def _position(self) -> tuple[Value, Value, dict[str, Value]]:
        """Write row and first column in the fragment of copy ``e``, and its fragment.

        Columns vary fastest, then rows: neighbouring threads write into different
        banks, and read whole sectors of 32 bytes where the tensor is contiguous.
        """
        source = self.source
        turn = variable("i", source.turns)
        (number,) = source.assignment.at(variable("thread", source.threads), turn)
        if isinstance(number, Expr):
            # Compilers do not know how many threads there are: what depends on ``i`` alone becomes
            # an immediate offset of one address, where each copy would have one of its own.
            number = number.limit(source.copies - 1).with_name("e")
        names = ["column", "row", *(axis.name for axis in source.axes)]
        digits: dict[str, Value] = {}
        for name, value in zip(names, reversed(decode(source.pieces, number)), strict=True):
            place = value * source.vector if name == "column" else value
            digits[name] = self.let(f"at_{name}", place)
        return digits.pop("row"), digits.pop("column"), digits

    @property
    def count(self) -> str:
        """C of how many elements there are up to the end of the row, at least."""
        source = self.source
        size, first = source.tile.columns.size, self.fused[source.tile.columns.target]
        whole = upper_bound(first) + source.vector <= size
        return str(source.vector) if whole else f"{size} - ({text(first)})"


def copy_code(plan: GpuPlan, source: SharedOperand) -> list[str]:
    """Write ``fetch_NAME``, and ``put_NAME`` for copies through registers, as local functions."""
    gather, name = _Gather(plan, source), source.name
    size = source.vector * source.size
    moved = _MOVED[size]
    live = " && ".join(gather.guards) or "true"
    if source.tile.computed:
        gather.lines += _declare_computed(source, gather)
        live = "true"
    slot = f"shared_{name}"
    if plan.depth > 1:
        slot += f" + stage % {plan.depth} * {source.elements}"
    to = [f"{cuda_type(source.tile.dtype)} *const to = {slot};"]
    address = f"{source.tile.staged.load.tensor.name} + {gather.address}"
    stored = f"*reinterpret_cast<{moved} *>(to + {gather.shared})"
    read = f"*reinterpret_cast<const {moved} *>({address})"
    if source.is_realigned:
        tensor = source.tile.staged.load.tensor
        read = f"read_unaligned({address}, {gather.count}, {tensor.name} + {tensor.elements})"
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


def _declare_computed(source: SharedOperand, gather: _Gather) -> list[str]:
    """Declare ``put_piece``: the elements of a computed source that one copy moves."""
    staged, moved = source.tile.staged, _MOVED[source.vector * source.size]
    assert staged.prologue is not None
    at = list(gather.indices)
    if source.vector > 1:
        # They are in the tensor all together or not at all, and in one row of it.
        at[-1] = at[-1] + variable("put_element", source.vector)
    value = write_source(staged.prologue, dict(zip(staged.prologue.dimensions, at, strict=True)))
    lines = [
        f"__align__({source.vector * source.size}) {cuda_type(source.tile.dtype)} "
        f"put_values[{source.vector}];",
        *unroll("put_element", source.vector, [f"put_values[put_element] = {value};"]),
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
    """Write the padding values that one copy of a source moves."""
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
    """Write the copies of one thread as a local function."""
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
