"""Products of a chain that an instruction on vectors computes, several fragments in registers.

A work-item holds accumulators along the loops of a product; each step of the reduction loads a
vector or a scalar of each source and multiplies all pairs, as kernels of single products do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from math import prod
from typing import Any

from amos.chains.tiling import TiledStep, Tiling
from amos.errors import MappingError, UnknownNameError
from amos.intrinsics import Intrinsic
from amos.intrinsics import get as get_intrinsic
from amos.ir import BufferLoad, Operator, dtype
from amos.ir.chain import Step
from amos.machine import Machine
from amos.mapping import Mapping as LoopMapping
from amos.mapping import enumerate_mappings
from amos.opencl.groups import is_serial
from amos.opencl.plan import list_problems, unit_of
from amos.validate.naming import read_name

#: Mappings of an instruction that are looked at, fragments along its loop and along another one.
_MAPPINGS, _VECTORS, _ROWS = 32, (1, 2, 3, 4), (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True)
class VectorOperand:
    """An operand of the instruction, as a work-item sees it.

    Attributes:
        loop: along which its vectors lie; empty for scalars.
    """

    load: BufferLoad
    loop: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class VectorProduct:
    """How work-items compute a product: the instruction, and how many fragments at once.

    Attributes:
        mapping: of the product; each iteration of the instruction has one loop.
        tile: fragments of a work-item along each spatial loop; 1 where omitted.
    """

    mapping: LoopMapping
    tile: Mapping[str, int] = field(hash=False)

    @cached_property
    def lanes(self) -> dict[str, int]:
        """Values of a loop in a fragment, where these are several."""
        steps = {step.name: step.extent for step in self.mapping.intrinsic.iterations}
        return {group[0]: steps[name] for name, group in self.mapping.groups.items() if group}

    @property
    def spans(self) -> dict[str, int]:
        """Values of each loop that a work-item computes at once."""
        loops = [it.name for it in self.mapping.operator.iterations]
        return {name: self.lanes.get(name, 1) * self.tile.get(name, 1) for name in loops}

    @property
    def accumulators(self) -> int:
        """Fragments of the result that a work-item holds."""
        return prod(self.tile.values())

    @cached_property
    def operands(self) -> tuple[VectorOperand, ...]:
        """Sources in the instruction's order, then the result."""
        operator, groups = self.mapping.operator, self.mapping.groups
        loads = (*(operator.sources[n] for n in self.mapping.order), operator.output)
        operands = []
        for own, load in zip(self.mapping.intrinsic.operands, loads, strict=True):
            names = [name for index in own.indices for name in index.names]
            loop = groups[names[0]][0] if names and groups[names[0]] else ""
            kind = dtype(str(own.tensor.dtype)).name
            operands.append(VectorOperand(load, loop, own.tensor.elements, kind))
        return tuple(operands)

    def own(self, operand: VectorOperand) -> int:
        """Count the fragments of an operand that a step needs."""
        return prod(n for name, n in self.tile.items() if name in operand.load.names)

    @property
    def whole_source(self) -> int:
        """Number of the source whose fragments of a step are held all at once."""
        first, second = self.operands[:2]
        return int(self.own(second) * second.elements < self.own(first) * first.elements)

    def register_bytes(self, machine: Machine) -> int:
        """Count register bytes of a work-item; a core replicates a scalar to a vector."""
        sizes = [dtype(x.dtype).bits // 8 * x.elements for x in self.operands]
        if is_serial(machine):
            sizes = [max(size, sizes[-1]) for size in sizes]
        whole = self.whole_source
        source_bytes = self.own(self.operands[whole]) * sizes[whole] + sizes[1 - whole]
        return self.accumulators * sizes[-1] + source_bytes

    def problems(self, tiled: TiledStep) -> Iterator[str]:
        """Yield why a product of a tile cannot be computed so."""
        name, intrinsic = tiled.step.output.tensor.name, self.mapping.intrinsic.name
        where = f"{name} on {intrinsic}"
        yield from list_problems(self.mapping)
        if any(len(group) != 1 for group in self.mapping.groups.values()):
            yield f"{where}: expected one loop for each iteration, got {self.mapping.name}"
        if any(len(own.indices) > 1 for own in self.mapping.intrinsic.operands):
            yield f"{where}: expected vectors along one loop"
        if self.operands[-1].dtype not in ("float32", "int32"):
            yield f"{where}: expected sums of float32 or int32, got {self.operands[-1].dtype}"
        reduced = {it.name for it in self.mapping.operator.reduce}
        for loop, span in self.spans.items():
            size = tiled.ranges[loop].size
            if loop in reduced and (self.tile.get(loop, 1) > 1 or size % span):
                yield f"{where}: expected {span} to divide the {size} terms of {loop}"
            elif not 1 <= span <= size:
                yield f"{where}: expected 1 to {size} values of {loop} at once, got {span}"

    def values(self, name: str) -> dict[str, int | str]:
        """Return flat values, from which :func:`product_from` restores it."""
        values: dict[str, int | str] = {
            f"intrinsic.{name}": self.mapping.intrinsic.name,
            f"mapping.{name}": self.mapping.name,
        }
        return values | {f"fragments.{name}.{loop}": n for loop, n in self.tile.items() if n > 1}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        mapping = self.mapping
        return {
            "intrinsic": mapping.intrinsic.name,
            "mapping": mapping.name,
            "fragments": dict(self.tile),
        }

    def __str__(self) -> str:
        tile = " x ".join(f"{n} {name}" for name, n in self.tile.items() if n > 1)
        text = f"{self.mapping.intrinsic.name} {self.mapping.name}"
        return f"{text}, {tile} fragments" if tile else text


def product_of(step: Step) -> Operator | None:
    """Return the product of a statement, without an epilogue; ``None`` if it is none."""
    return replace(step, epilogue=None) if isinstance(step, Operator) else None


def product_from(
    tiling: Tiling, name: str, intrinsic: str, mapping: str, tile: Mapping[str, int]
) -> VectorProduct:
    """Restore the product of a statement from :meth:`VectorProduct.values`.

    Raises:
        UnknownNameError: there is no such product or instruction.
        MappingError: the instruction does not compute it so.
    """
    steps = {tiled.step.output.tensor.name: tiled.step for tiled in tiling.steps}
    operator = product_of(steps[name]) if name in steps else None
    if operator is None:
        products = [each for each, step in steps.items() if product_of(step)]
        raise UnknownNameError("product", name, products)
    unit = get_intrinsic(intrinsic)
    assignment, order = read_name(mapping, operator, unit)
    matrix = [[place == step for place in assignment] for step in range(len(unit.iterations))]
    return VectorProduct(LoopMapping.of(operator, unit, matrix, order=order), tile)


def list_products(
    tiling: Tiling, tiled: TiledStep, machine: Machine, units: Sequence[Intrinsic]
) -> Iterator[VectorProduct]:
    """Yield ways to compute a product of a tile that fit the registers of a work-item."""
    operator = product_of(tiled.step)
    for unit in units if operator is not None else ():
        assert operator is not None
        try:
            mappings = enumerate_mappings(operator, unit, commute=True)
        except MappingError:
            continue
        for mapping in islice(mappings, _MAPPINGS):
            if all(len(group) == 1 for group in mapping.groups.values()):
                yield from _tiles(mapping, tiled, machine)


def _tiles(mapping: LoopMapping, tiled: TiledStep, machine: Machine) -> Iterator[VectorProduct]:
    """Yield the tiles of a mapping: along the loop of its vectors and one other."""
    plain = VectorProduct(mapping, {})
    if any(plain.problems(tiled)):
        return
    spatial = [it.name for it in mapping.operator.spatial]
    vector = [name for name in spatial if name in plain.lanes]
    rows = [name for name in spatial if name not in plain.lanes and tiled.ranges[name].size > 1]
    most = unit_of(machine).item_bytes
    for along, count in product(rows or [""], _VECTORS if vector else (1,)):
        for n in _ROWS if along else (1,):
            tile = {along: n, **dict.fromkeys(vector, count)}
            own = VectorProduct(mapping, {name: k for name, k in tile.items() if k > 1})
            if own.register_bytes(machine) <= most and not any(own.problems(tiled)):
                yield own
