"""What is shown of operators, intrinsics, mappings, verdicts and mapping spaces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from amos.viz.blocks import Block, Code, Formula, Grid, Heading, Matrices, Matrix, Note, Table
from amos.viz.latex import compute_latex, memory_latex, operator_latex

if TYPE_CHECKING:
    import numpy as np

    from amos.intrinsics import Intrinsic
    from amos.ir import BufferLoad, Operator
    from amos.mapping import Mapping, MappingSpace, VirtualMapping
    from amos.validate import Pairing, Verdict

__all__ = ["intrinsic", "mapping", "operator", "placing", "space", "verdict", "xyz"]

#: Mappings of a space that are listed.
_LISTED = 200
#: Lanes beyond which a fragment is not coloured.
_LANES = 1024


def operator(op: Operator) -> list[Block]:
    """Statement, loops, tensors and access matrix."""
    loops = tuple((it.name, it.kind, it.extent) for it in op.iterations)
    tensors = tuple(
        (
            str(load),
            "output" if load is op.output else "input",
            " × ".join(map(str, load.tensor.shape)) or "scalar",
            load.tensor.dtype or "open",
            "constant" if load.tensor.name in op.constants else "",
        )
        for load in op.operands
    )
    return [
        Heading(f"Operator {op.name}", f"{op.operations:,} operations"),
        Formula(operator_latex(op), str(op)),
        Table(("loop", "kind", "extent"), loops),
        Table(("tensor", "", "shape", "dtype", ""), tensors),
        Matrices((_accesses("X: access matrix", op.operands, op.access_matrix, _names(op)),)),
    ]


def intrinsic(unit: Intrinsic) -> list[Block]:
    """Both abstractions, access matrix, and a picture of each fragment."""
    z = _accesses("Z: access matrix", unit.operands, unit.access_matrix, _names(unit))
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
        Formula(compute_latex(unit), str(unit)),
        Formula(memory_latex(unit), "\n".join(map(str, unit.memory))),
        Matrices((z,)),
        *(_fragment(unit, load) for load in unit.operands),
    ]


def mapping(found: Mapping) -> list[Block]:
    """X, Y and Z side by side (Figure 4), groups, and the physical mapping."""
    physical = found.physical()
    outer = ", ".join(found.outer) or "none"
    fused = found.fused_extents
    groups = tuple(
        (t, ", ".join(group) or "nothing", fused[t], physical.sizes[t], physical.tiles[t])
        for t, group in found.groups.items()
    )
    return [
        Heading(f"Mapping {found.name}", f"{found.operator.name} on {found.intrinsic.name}"),
        Code(str(found)),
        xyz(found.pairing, found.matching),
        Table(("dimension", "loops", "extent", "problem size", "tiles"), groups),
        Note(
            (
                f"loops around the call: {outer}",
                f"{physical.calls:,} calls, utilization {physical.utilization:.1%}",
                f"found under rule {found.rule!r}",
            )
        ),
        *placing(physical),
    ]


def placing(place: VirtualMapping) -> list[Block]:
    """Compute and memory mapping as expressions."""
    kind = "Physical" if type(place).__name__ == "PhysicalMapping" else "Virtual"
    return [
        Heading(f"{kind} mapping {place.mapping.name}"),
        Formula(place.latex(), str(place)),
    ]


def verdict(said: Verdict) -> list[Block]:
    """What speaks against a matching, with the cells it is about."""
    if said:
        title, note = "Valid", f"under rule {said.rule!r}"
    else:
        title = "Not valid" if said.wrong else "Idle"
        note = f"under rule {said.rule!r}"
    blocks: list[Block] = [Heading(title, note, good=bool(said))]
    if said.pairing is not None and said.matching is not None:
        blocks.append(xyz(said.pairing, said.matching, said.cells, said.rows))
    if said.reasons:
        blocks.append(Note(said.reasons, bad=True))
    if said.hint:
        blocks.append(Note((said.hint,)))
    return blocks


def space(found: MappingSpace) -> list[Block]:
    """A table that can be sorted; the first ones of a large space."""
    steps = tuple(it.name for it in found.intrinsic.iterations)
    rows = []
    for one in islice(found, _LISTED):
        physical = one.physical()
        groups = (", ".join(one.groups[t]) for t in steps)
        rows.append((one.name, *groups, physical.calls, round(physical.utilization, 6)))
    note = f"{found.count:,} mapping{'' if found.count == 1 else 's'} under rule {found.rule!r}"
    if found.count > len(rows):
        note += f"; the first {len(rows)} are shown, to_frame() or an index give the others"
    return [
        Heading(f"{found.operator.name} on {found.intrinsic.name}", note),
        Table(("mapping", *steps, "calls", "utilization"), tuple(rows), sortable=True),
    ]


def xyz(
    pairing: Pairing,
    matching: np.ndarray,
    wrong: Sequence[tuple[str, str]] = (),
    idle: Sequence[str] = (),
) -> Matrices:
    """X, Y and Z of Algorithm 1, one colour for each intrinsic iteration."""
    software, hardware = _names(pairing.operator), _names(pairing.intrinsic)
    at = {name: n for n, name in enumerate(hardware)}
    x = tuple(tuple(name in load.names for name in software) for load in pairing.loads)
    targets = tuple(int(column.argmax()) if column.any() else None for column in matching.T)
    y = tuple(tuple(map(bool, row)) for row in matching)
    z = pairing.intrinsic.access_matrix
    own = tuple(range(len(hardware)))
    pairs = zip(pairing.loads, pairing.intrinsic.operands, strict=True)
    return Matrices(
        (
            _coloured("X: tensors × loops", pairing.labels, software, x, targets),
            _coloured(
                "Y: dimensions × loops",
                hardware,
                software,
                y,
                targets,
                frozenset((at[t], software.index(s)) for t, s in wrong),
                frozenset(at[t] for t in idle),
            ),
            _coloured(
                "Z: operands × dimensions",
                tuple(f"{unit.tensor.name} = {load.tensor.name}" for load, unit in pairs),
                hardware,
                tuple(tuple(map(bool, row)) for row in z),
                own,
            ),
        )
    )


def _names(thing: Operator | Intrinsic) -> tuple[str, ...]:
    return tuple(it.name for it in thing.iterations)


def _coloured(
    title: str,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    values: tuple[tuple[bool, ...], ...],
    colours: Sequence[int | None],
    wrong: frozenset[tuple[int, int]] = frozenset(),
    idle: frozenset[int] = frozenset(),
) -> Matrix:
    """A matrix whose ones have the colour of their column."""
    painted = tuple(
        tuple(n if value else None for value, n in zip(row, colours, strict=True)) for row in values
    )
    return Matrix(title, rows, columns, values, painted, wrong, idle)


def _accesses(
    title: str, loads: Sequence[BufferLoad], values: np.ndarray, columns: tuple[str, ...]
) -> Matrix:
    names = [load.tensor.name for load in loads]
    rows = tuple(
        str(load) if names.count(load.tensor.name) > 1 else load.tensor.name for load in loads
    )
    cells = tuple(tuple(map(bool, row)) for row in values)
    return _coloured(title, rows, columns, cells, tuple(range(len(columns))))


def _fragment(unit: Intrinsic, load: BufferLoad) -> Grid:
    shape, axes = load.tensor.shape, tuple(index.names[0] for index in load.indices)
    statement = next(m for m in unit.memory if m.operand == load.tensor.name)
    flat = (shape + (1, 1))[:2] if len(shape) <= 2 else (shape[0], load.tensor.elements // shape[0])
    names = ((*axes, "", "")[:2]) if len(axes) <= 2 else (axes[0], " ".join(axes[1:]))
    lanes: tuple[tuple[int, ...], ...] = ()
    moved = f"{load.tensor.dtype}, {unit.fragment_bytes(load)} bytes, {statement.scope}"
    if statement.layout is not None and load.tensor.elements <= _LANES:
        lanes = _lanes(unit, load, flat)
        moved += f", {statement.layout.lanes} lanes of {statement.layout.elements}"
    if statement.broadcast:
        moved += f", broadcast along {', '.join(statement.broadcast)}"
    return Grid(load.tensor.name, (flat[0], flat[1]), (names[0], names[1]), lanes, moved)


def _lanes(unit: Intrinsic, load: BufferLoad, flat: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """For each element the first lane that holds it."""
    import numpy as np

    layout = next(m.layout for m in unit.memory if m.operand == load.tensor.name)
    assert layout is not None
    places = tuple(layout.table(index.names[0]) for index in load.indices)
    held = np.full(load.tensor.shape, layout.lanes)
    lane = np.broadcast_to(np.arange(layout.lanes)[:, None], (layout.lanes, layout.elements))
    np.minimum.at(held, places, lane)
    return tuple(tuple(row) for row in held.reshape(flat).tolist())
