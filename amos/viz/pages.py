"""Displays of operators, intrinsics, mappings, verdicts and mapping spaces."""

from __future__ import annotations

import numpy as np

from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.ir import BufferLoad, Operator
from amos.mapping import Mapping, MappingSpace, VirtualMapping
from amos.validate import FusionVerdict, Verdict
from amos.viz.blocks import Block, Code, Heading, Note, Table
from amos.viz.drawings import Grid, Matrices, Matrix
from amos.viz.latex import compute_latex, memory_latex

#: Mappings of a space that are listed.
_LISTED = 200
#: Lanes beyond which a fragment is not coloured.
_LANES = 1024


def operator(op: Operator) -> list[Block]:
    """Show statement, loops, tensors and access matrix."""
    loops = tuple((it.name, it.kind, it.extent) for it in op.iterations)
    tensors = tuple(
        (
            str(load),
            "output" if load is op.output else "input",
            " × ".join(map(str, load.tensor.shape)) or "scalar",
            kind.declared if (kind := load.tensor.kind) else "open",
            "constant" if load.tensor.name in op.constants else "",
        )
        for load in op.operands
    )
    return [
        Heading(f"Operator {op.name}", f"{op.operations:,} operations"),
        Code(str(op), compute_latex(op.compute)),
        Table(("loop", "kind", "extent"), loops),
        Table(("tensor", "", "shape", "dtype", ""), tensors),
        Matrices((_accesses("X: access matrix", op),)),
    ]


def intrinsic(unit: Intrinsic) -> list[Block]:
    """Show both abstractions, the access matrix, and a picture of each fragment."""
    about = [unit.description, f"{unit.family}: {unit.source}"]
    if unit.requires:
        about.append(f"needs {', '.join(unit.requires)}")
    if unit.registers:
        about.append(f"{unit.registers} fragments of {unit.destination.tensor.name} fit registers")
    if str(unit.arithmetic):
        about.append(f"rounding: {unit.arithmetic}")
    for timing in unit.timing:
        latency = "" if timing.latency is None else f", latency {timing.latency:g}"
        about.append(
            f"{timing.machine or 'anywhere'}: a call every {timing.interval:g} cycles{latency} "
            f"({timing.source})"
        )
    return [
        Heading(f"Intrinsic {unit.name}", f"{unit.operations:,} operations a call"),
        Note(tuple(line for line in about if line)),
        Code(str(unit), compute_latex(unit.compute)),
        Code("\n".join(map(str, unit.memory)), memory_latex(unit)),
        Matrices((_accesses("Z: access matrix", unit),)),
        *(_fragment(unit, load) for load in unit.operands),
    ]


def mapping(mapping: Mapping) -> list[Block]:
    """Show X, Y and Z side by side (Figure 4), groups, and the physical mapping."""
    physical, fused = mapping.physical(), mapping.fused_extents
    groups = tuple(
        (t, ", ".join(group) or "nothing", fused[t], physical.sizes[t], physical.tiles[t])
        for t, group in mapping.groups.items()
    )
    lines = (
        f"loops around the call: {', '.join(mapping.outer) or 'none'}",
        f"{physical.calls:,} calls, utilization {physical.utilization:.1%}",
        f"found under rule {mapping.rule!r}",
    )
    return [
        Heading(f"Mapping {mapping.name}", f"{mapping.operator.name} on {mapping.intrinsic.name}"),
        Code(str(mapping)),
        xyz(mapping),
        Table(("dimension", "loops", "extent", "problem size", "tiles"), groups),
        Note(lines),
        *placing(physical),
    ]


def placing(place: VirtualMapping) -> list[Block]:
    """Compute and memory mapping as expressions."""
    kind = type(place).__name__.removesuffix("Mapping")
    return [Heading(f"{kind} mapping {place.mapping.name}"), Code(str(place), place.latex())]


def verdict(verdict: Verdict) -> list[Block]:
    """Show the reasons against a matching, with the cells at fault."""
    title = "Valid" if verdict else "Not valid" if verdict.wrong else "Idle"
    blocks: list[Block] = [Heading(title, f"under rule {verdict.rule!r}", good=bool(verdict))]
    if verdict.pairing is not None:
        blocks.append(xyz(verdict))
    if verdict.reasons:
        blocks.append(Note(verdict.reasons, bad=True))
    if verdict.hint:
        blocks.append(Note((verdict.hint,)))
    return blocks


def fusion(verdict: FusionVerdict) -> list[Block]:
    """Show the fused operator, or the reasons against fusion."""
    title = f"Fusable: {verdict.rule}" if verdict else "Not fusable"
    blocks: list[Block] = [Heading(title, verdict.how, good=bool(verdict))]
    if verdict.fused is not None:
        return [*blocks, Code(str(verdict.fused))]
    return [*blocks, Note(verdict.reasons, bad=True)]


def space(mappings: MappingSpace) -> list[Block]:
    """Show a sortable table, of a large space the first mappings."""
    frame = mappings.to_frame(_LISTED).round({"utilization": 6})
    count, plural = mappings.count, "" if mappings.count == 1 else "s"
    note = f"{count:,} mapping{plural} under rule {mappings.rule!r}"
    if count > len(frame):
        note += f"; the first {len(frame)} are shown, to_frame() or an index give the others"
    rows = tuple(frame.itertuples(index=False, name=None))
    return [
        Heading(f"{mappings.operator.name} on {mappings.intrinsic.name}", note),
        Table(("mapping", *frame.columns[1:]), rows, sortable=True),
    ]


def xyz(judged: Mapping | Verdict) -> Matrices:
    """Return X, Y and Z of Algorithm 1, one colour for each intrinsic iteration."""
    pairing, matching = judged.pairing, judged.matching
    if pairing is None or matching is None:
        raise MappingError("this verdict was made by hand: it does not say what was judged")
    op, unit = pairing.operator, pairing.intrinsic
    loops, steps = _names(op), _names(unit)
    cells, rows = (judged.cells, judged.rows) if isinstance(judged, Verdict) else ((), ())
    wrong = frozenset((steps.index(t), loops.index(s)) for t, s in cells)
    idle = frozenset(map(steps.index, rows))
    targets = tuple(int(column.argmax()) if column.any() else None for column in matching.T)
    own, x = tuple(range(len(steps))), pairing.access_matrix
    return Matrices(
        (
            Matrix("X: tensors × loops", pairing.labels, loops, x, targets),
            Matrix("Y: dimensions × loops", steps, loops, matching, targets, wrong, idle),
            Matrix("Z: operands × dimensions", pairing.fed, steps, unit.access_matrix, own),
        )
    )


def _names(subject: Operator | Intrinsic) -> tuple[str, ...]:
    return tuple(it.name for it in subject.iterations)


def _accesses(title: str, subject: Operator | Intrinsic) -> Matrix:
    """Return X or Z; a tensor that occurs twice is named by its whole access."""
    names = [load.tensor.name for load in subject.operands]
    rows = tuple(
        str(load) if names.count(name) > 1 else name
        for name, load in zip(names, subject.operands, strict=True)
    )
    columns = _names(subject)
    return Matrix(title, rows, columns, subject.access_matrix, tuple(range(len(columns))))


def _fragment(unit: Intrinsic, load: BufferLoad) -> Grid:
    tensor = load.tensor
    statement = next(m for m in unit.memory if m.operand == tensor.name)
    steps = [index.names[0] for index in load.indices]
    rows = tensor.shape[0] if tensor.shape else 1
    lanes = None
    kind = dict(zip(unit.operands, unit.kinds, strict=True))[load]
    note = f"{kind.declared}, {unit.fragment_bytes(load)} bytes, {statement.scope}"
    if (layout := statement.layout) is not None and tensor.elements <= _LANES:
        first = np.full(tensor.shape, layout.lanes)
        places = tuple(map(layout.table, steps))
        np.minimum.at(first, places, np.arange(layout.lanes)[:, None])
        lanes = first.reshape(rows, -1)
        note += f", {layout.lanes} lanes of {layout.elements}"
    if statement.broadcast:
        note += f", broadcast along {', '.join(statement.broadcast)}"
    axes = " × ".join(f"{step} {size}" for step, size in zip(steps, tensor.shape, strict=True))
    return Grid(tensor.name, (rows, tensor.elements // rows), axes, lanes, note)
