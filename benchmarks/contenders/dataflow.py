"""A unit, a layer and a stream of AMOS in the words of ZigZag's files.

The unit has to be a matrix product whose rows enter one a cycle: columns and sums are unrolled in
space, and weights stay in the array during a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator, dtype
from amos.machine import Level, Machine
from amos.perfmodel.energy import level_of
from amos.streams.operand import StreamOperand
from amos.streams.plan import StreamPlan

#: ZigZag's memory operands of inputs, weights and results, and its names of them in layers.
MEMORY = {"I": "I1", "W": "I2", "O": "O"}
#: Bits of a memory that holds everything.
UNBOUNDED = 10**12


@dataclass(frozen=True)
class Array:
    """A unit as an array of multipliers.

    Attributes:
        rows: iteration whose steps enter one after the other.
        columns: unrolled iteration of the results.
        sums: unrolled iteration of the reduction.
        operands: names of the sources with rows, with columns, and of the destination.
    """

    unit: Intrinsic
    rows: str
    columns: str
    sums: str
    operands: tuple[str, str, str]

    @staticmethod
    def of(unit: Intrinsic, machine: Machine) -> Array:
        """Read a unit so.

        Raises:
            AmosError: it is no matrix product, or a call takes more or fewer cycles than rows.
        """
        spatial, reduce = (unit.compute.spatial, unit.compute.reduce)
        if (len(spatial), len(reduce), len(unit.sources)) != (2, 1, 2):
            raise AmosError(f"{unit.name}: expected a matrix product, got {unit.compute}")
        rows, columns = (iteration.name for iteration in spatial)
        cycles = round(machine.peak(unit.name).interval * machine.clock)
        if cycles != unit.extents[rows]:
            raise AmosError(f"{unit.name}: expected a cycle a row, got {cycles} cycles a call")
        streamed = next(x.tensor.name for x in unit.sources if rows in x.names)
        stationary = next(x.tensor.name for x in unit.sources if columns in x.names)
        destination = unit.destination.tensor.name
        return Array(unit, rows, columns, reduce[0].name, (streamed, stationary, destination))

    @property
    def dtypes(self) -> dict[str, str]:
        """Dtype of each operand, by name."""
        return {load.tensor.name: str(load.tensor.dtype) for load in self.unit.operands}

    @property
    def names(self) -> dict[str, str]:
        """ZigZag's name of each operand, by the unit's."""
        return dict(zip(self.operands, MEMORY, strict=True))


def describe_hardware(
    array: Array, machine: Machine, sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Describe a unit and its board as ZigZag's hardware.

    Args:
        array: the unit.
        machine: with energies.
        sizes: bytes of the buffer of each operand, instead of its capacity.
    """
    unit, extents, dram = array.unit, array.unit.extents, machine.levels[-1]
    port = round(dram.read_bandwidth / machine.clock * 8)
    memories = {}
    for operand, name in array.names.items():
        pad = next(pad for pad in unit.scratchpads if operand in pad.operands)
        if len(pad.operands) > 1:
            raise AmosError(f"{unit.name}: expected a buffer for each operand, got {pad}")
        level = level_of(pad, machine)
        assert level is not None
        load = next(x for x in unit.operands if x.tensor.name == operand)
        # The widest access: what the array takes or leaves at once, or what the port brings.
        row = extents[array.rows] if array.rows in load.names else 1
        bits = prod(load.tensor.shape) // row * dtype(str(load.tensor.dtype)).bits
        size = pad.capacity if sizes is None else sizes[operand]
        memories[pad.name] = _memory(size * 8, level, [name], max(bits, port), is_shared=False)
    memories[dram.name] = _memory(UNBOUNDED, dram, [*MEMORY], port, is_shared=True)
    return {
        "name": machine.name,
        "memories": memories,
        "operational_array": {
            "unit_energy": machine.operation_pj,
            "unit_area": 0.0,
            "dimensions": ["D1", "D2"],
            "sizes": [extents[array.columns], extents[array.sums]],
        },
    }


def _memory(
    bits: int, level: Level, operands: Sequence[str], width: int, *, is_shared: bool
) -> dict[str, Any]:
    """Describe a memory; accesses have any number of bytes up to its width.

    Args:
        is_shared: whether all accesses go through one port; otherwise each direction has its own.
    """
    inputs, outputs = ("tl", "fh"), ("tl", "fl", "fh", "th")
    directions = outputs if "O" in operands else inputs
    ports = []
    for number, group in enumerate([directions] if is_shared else zip(directions), 1):
        allocation = [
            f"{MEMORY[name]}, {direction}"
            for name in operands
            for direction in group
            if direction in (outputs if name == "O" else inputs)
        ]
        kind = "read_write" if is_shared else "read" if group[0][0] == "t" else "write"
        ports.append(
            {
                "name": f"{''.join(word[0] for word in kind.split('_'))}_port_{number}",
                "type": kind,
                "bandwidth_min": 8,
                "bandwidth_max": width,
                "allocation": allocation,
            }
        )
    return {
        "size": bits,
        "r_cost": (level.read_pj_per_byte or 0.0) * width / 8,
        "w_cost": (level.write_pj_per_byte or 0.0) * width / 8,
        "area": 0.0,
        "latency": 1,
        "operands": [MEMORY[name] for name in operands],
        "ports": ports,
        "served_dimensions": ["D1", "D2"],
    }


def describe_layer(operator: Operator, array: Array) -> dict[str, Any]:
    """Describe a convolution of the layer tables as ZigZag's layer.

    Raises:
        AmosError: it is none.
    """
    if operator.extents.keys() != {*"nkpqcrs"}:
        raise AmosError(f"{operator.name}: expected a convolution, got {operator}")
    sizes = {name.upper(): extent for name, extent in operator.extents.items()}
    image = next(load for load in operator.sources if "k" not in load.names)
    steps = {
        name: step
        for index in image.indices
        if len(index.terms) > 1
        for name, step in index.terms
        if step > 0
    }
    names = {"N": "B", "P": "OY", "Q": "OX", "R": "FY", "S": "FX"}
    return _layer(
        "O[b][k][oy][ox]+=W[k][c][fy][fx]*I[b][c][iy][ix]",
        {names.get(name, name): size for name, size in sizes.items()},
        {
            "iy": f"iy={steps.get('p', 1)}*oy+1*fy",
            "ix": f"ix={steps.get('q', 1)}*ox+1*fx",
        },
        array,
    )


def _layer(
    equation: str, sizes: Mapping[str, int], windows: Mapping[str, str], array: Array
) -> dict[str, Any]:
    bits = {array.names[name]: dtype(kind).bits for name, kind in array.dtypes.items()}
    return {
        "id": 0,
        "name": "layer",
        "operator_type": "Conv",
        "equation": equation,
        "dimension_relations": [*windows.values()],
        "loop_dims": [*sizes],
        "loop_sizes": [*sizes.values()],
        "operand_precision": bits | {"O_final": bits["O"]},
        "operand_source": {"I": 0, "W": 0},
    }


@dataclass(frozen=True)
class Loops:
    """A stream as loops of ZigZag.

    Attributes:
        layer: whose loops are those over fragments, and those within one.
        mapping: what is unrolled, and all other loops from the innermost out.
        sizes: bytes of the tiles of each operand that the stream keeps on chip.
    """

    layer: dict[str, Any]
    mapping: dict[str, Any]
    sizes: dict[str, int]


def describe_stream(plan: StreamPlan, array: Array) -> Loops:
    """Describe a stream whose tiles divide its loops.

    Raises:
        AmosError: a tile does not divide its loop, or an index has three loops.
    """
    loops = (*plan.structure.spatial, *plan.structure.reduce)
    names = {loop.name: f"L{number}" for number, loop in enumerate(loops)}
    inner = {array.rows: "ROWS", array.columns: "COLS", array.sums: "SUMS"}
    windows: dict[str, str] = {}
    texts = {
        array.names[op.name]: "".join(_indices(op, names, inner, windows))
        for op in plan.tiles.operands
    }
    sizes = {names[loop.name]: loop.extent for loop in loops}
    sizes |= {inner[name]: size for name, size in array.unit.extents.items()}
    equation = f"O{texts['O']}+=W{texts['W']}*I{texts['I']}"
    return Loops(
        _layer(equation, sizes, windows, array),
        describe_mapping(
            array, inner[array.columns], inner[array.sums], [*_ordering(plan, names, inner, array)]
        ),
        {op.name: _resident_bytes(plan, number) for number, op in enumerate(plan.tiles.operands)},
    )


def describe_mapping(
    array: Array, columns: str, sums: str, ordering: Sequence[list[Any]] = ()
) -> dict[str, Any]:
    """Describe what is unrolled, and loops from the innermost out if they are fixed."""
    extents = array.unit.extents
    mapping: dict[str, Any] = {
        "name": "default",
        "spatial_mapping": {
            "D1": [f"{columns}, {extents[array.columns]}"],
            "D2": [f"{sums}, {extents[array.sums]}"],
        },
        "memory_operand_links": MEMORY,
    }
    return mapping | ({"temporal_ordering": [*ordering]} if ordering else {})


def _indices(
    op: StreamOperand,
    names: Mapping[str, str],
    inner: Mapping[str, str],
    windows: dict[str, str],
) -> Iterator[str]:
    """Yield the indices of an operand; a window becomes a dimension of its own."""
    for dim in op.dims:
        terms = [(names[name], abs(step)) for name, step in dim.index.terms if name in names]
        if len(terms) > 2:
            raise AmosError(f"{op.name}: expected at most two loops in an index, got {dim.index}")
        if len(terms) == 2:
            (first, a), (second, b) = terms
            window = f"w{len(windows)}"
            windows[window] = f"{window}={a}*{first.lower()}+{b}*{second.lower()}"
            yield f"[{window}]"
        elif terms:
            yield f"[{terms[0][0].lower()}]"
    for name in op.staged.fragment:
        yield f"[{inner[name].lower()}]"


def _ordering(
    plan: StreamPlan, names: Mapping[str, str], inner: Mapping[str, str], array: Array
) -> Iterator[list[Any]]:
    """Yield loops from the innermost out: rows, those of a tile, those over tiles."""
    yield [inner[array.rows], array.unit.extents[array.rows]]
    loops = (*plan.structure.spatial, *plan.structure.reduce)
    lengths = {x.name: int(n) for x, n in zip(loops, plan.tiles.lengths[:, 0], strict=True)}
    stationary = next(op for op in plan.sources if op.name == array.operands[1])
    weights = {name for dim in stationary.dims for name in dim.index.names}
    # Loops of the weights come first: a call reads them anew.
    tiled = [*plan.reduce_loops, *sorted(plan.spatial, key=lambda loop: loop.name not in weights)]
    for loop in tiled:
        if loop.extent % lengths[loop.name]:
            raise AmosError(f"tiles of {lengths[loop.name]} do not divide {loop.name}")
        yield [names[loop.name], lengths[loop.name]]
    for loop in (*reversed(plan.reduce_loops), *reversed(plan.spatial)):
        yield [names[loop.name], loop.extent // lengths[loop.name]]


def _resident_bytes(plan: StreamPlan, number: int) -> int:
    """Bytes of the tiles of an operand that stay while they are used."""
    op, tiles = plan.tiles.operands[number], plan.tiles
    staying = int(tiles.visits(number)[1][0])
    return int(tiles.fragments(op)[0]) * op.bytes * staying
