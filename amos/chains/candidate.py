"""What a search over chains chooses between: tiles, and a mapping and schedule of each product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from amos.chains.merging import merge_loops
from amos.chains.tiling import SharedLoop, TiledStep, Tiling
from amos.intrinsics import Intrinsic
from amos.ir import Chain, Operator, Tensor
from amos.ir.chain import loads_of
from amos.plan import Candidate


@dataclass(frozen=True)
class ProductSlot:
    """A product of a tile, as an operator of its own.

    Attributes:
        tensor: the name of what it writes.
        operator: on the tensors of a tile; sources that are packed ahead are its constants.
        names: of the operator's tensors, by those of the chain.
        packed: for each source that tiles share the depth of the shared loops at which it is
            packed; further constants are packed once for all calls.
        runs: how often a kernel computes it.
    """

    tensor: str
    operator: Operator
    names: Mapping[str, str] = field(hash=False)
    packed: Mapping[str, int] = field(hash=False)
    runs: int


@dataclass(frozen=True, repr=False)
class ChainCandidate:
    """A kernel of a chain before it is built.

    Attributes:
        tiling: the shared loops, and their tiles.
        products: mapping and schedule of each product, by what it writes.
        packs: products of which sources that tiles share are packed once for all of these.
        merges: whether loops of products are merged; those of earlier records are not.
        cooperative: whether all cores compute each tile together, statement by statement; else
            each core computes tiles by itself.
    """

    tiling: Tiling
    products: Mapping[str, Candidate] = field(hash=False)
    packs: frozenset[str] = frozenset()
    merges: bool = True
    cooperative: bool = False

    @property
    def chain(self) -> Chain:
        """What is computed."""
        return self.tiling.chain

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """Those of its products."""
        return tuple(each.mapping.intrinsic for each in self.products.values())

    def row(self) -> dict[str, Any]:
        """Return columns of a table of trials, beside the tiles."""
        products = (
            f"{name}: {each.mapping.intrinsic.name} {each.mapping.name}"
            for name, each in self.products.items()
        )
        return {"products": "; ".join(products), "packed": bool(self.packs)}

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """What computes each product, behind a row of names."""
        rows = (
            (name, each.mapping.intrinsic.name, each.mapping.name, str(each.schedule))
            for name, each in self.products.items()
        )
        return (("product", "instruction", "mapping", "schedule"), *rows)

    def values(self) -> dict[str, int | str]:
        """Return flat values; :func:`amos.chains.records.candidate_from` restores it from them."""
        values: dict[str, int | str] = {
            "tiles": self.tiling.tiles_text,
            "packs": ",".join(sorted(self.packs)),
        }
        if self.tiling.rolls:
            values["rolling"] = self.tiling.rolling_loop
        steps = (tiled.step for tiled in self.tiling.steps)
        counts = {step.output.tensor.name: len(step.iterations) for step in steps}
        if any(
            len(each.mapping.operator.iterations) < counts[name]
            for name, each in self.products.items()
        ):
            values["merged"] = 1
        if self.cooperative:
            values["cooperative"] = 1
        for name, product in self.products.items():
            mapping = product.mapping
            own = product.schedule.as_dict()
            own |= {"intrinsic": mapping.intrinsic.name, "mapping": mapping.name}
            values |= {f"{name}/{key}": value for key, value in own.items()}
        return values

    @cached_property
    def slots(self) -> tuple[ProductSlot, ...]:
        """Its products."""
        return slots_of(self.tiling, self.packs, self.merges)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: tiles, and each product's instruction, mapping and schedule."""
        return {
            "tiles": self.tiling.tiles,
            "rolling": self.tiling.rolling_loop,
            "cooperative": self.cooperative,
            "products": {
                name: {
                    "intrinsic": each.mapping.intrinsic.name,
                    "mapping": each.mapping.name,
                    "schedule": each.schedule.as_dict(),
                    "packs": name in self.packs,
                }
                for name, each in self.products.items()
            },
        }

    def __str__(self) -> str:
        products = "; ".join(
            f"{name}: {each.mapping.intrinsic.name} {each.mapping.name}"
            + (" packed" if name in self.packs else "")
            for name, each in self.products.items()
        )
        tiles = f"tiles {self.tiling}" + " cooperative" * self.cooperative
        return f"{tiles}; {products}" if products else tiles

    def __repr__(self) -> str:
        return f"<kernel of {self.chain.name}: {self}>"


def external_shapes(tiling: Tiling) -> dict[str, tuple[int, ...]]:
    """Return the shapes in memory of inputs and the result where a tile sees them.

    Behind the first dimension of which a tile has several elements, all are as long as the whole's.
    """
    tensors: list[Tensor] = [*tiling.chain.inputs, tiling.chain.result]
    shapes = {}
    for tensor in tensors:
        if tensor.name in tiling.boxes:
            shapes[tensor.name] = _lying(tiling.size(tensor.name), tensor.shape)
    written = (tiled.step.output.tensor for tiled in tiling.steps)
    return shapes | {tensor.name: (1,) for tensor in written if not tensor.shape}


def shapes_of(tiling: Tiling, tiled: TiledStep) -> dict[str, tuple[int, ...]]:
    """Return the shapes in memory of all that a step sees: inputs whole, the rest as tiles."""
    if tiled.rows is None:
        return external_shapes(tiling)
    whole = {tensor.name: tensor.shape for tensor in tiling.chain.inputs}
    return {
        name: _lying(tiled.size(name), whole[name] if name in whole else tiling.size(name))
        for name in tiled.boxes
    }


def _lying(size: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """Return a part's shape, whole behind the first dimension of several elements."""
    first = next((d for d, count in enumerate(size) if count > 1), len(size))
    return (*size[: first + 1], *whole[first + 1 :]) or (1,)


def slots_of(tiling: Tiling, packs: frozenset[str], merges: bool = True) -> tuple[ProductSlot, ...]:
    """List the products of a tiling.

    Args:
        packs: those of which shared sources are packed ahead.
        merges: whether loops are merged that are one in memory.
    """
    slots = []
    for tiled in tiling.steps:
        if not isinstance(tiled.step, Operator):
            continue
        name = tiled.step.output.tensor.name
        packed = packable(tiling, tiled) if name in packs else {}
        boxes = {source: tiled.size(source) for source in packed}
        local = tiling.localize(tiled, shapes_of(tiling, tiled) | boxes)
        assert isinstance(local, Operator)
        names = _naming(local)
        constants = (*_constants_of(tiling, tiled), *packed)
        operator = replace(local, constants=constants).rename(names.__getitem__, str)
        if (size := tiled.size(name) or (1,)) != operator.output.tensor.shape:
            # A kernel fills the tensor that a statement writes, and of a stored one the results.
            dense = replace(operator.output.tensor, shape=size)
            output = replace(operator.output, tensor=dense)
            compute = replace(operator.compute, dst=output)
            operator = replace(operator, compute=compute, store=operator.stored)
        if merges:
            operator = merge_loops(operator, [names[source] for source in packed])
        slots.append(ProductSlot(name, operator, names, packed, runs_of(tiling, tiled)))
    return tuple(slots)


def runs_of(tiling: Tiling, tiled: TiledStep) -> int:
    """Count how often one core computes a step, or a unit of its rows, in all tiles."""
    if (rows := tiled.rows) is not None:
        first_tiles = prod(loop.count for loop in tiling.loops[:-1]) * count_first_tiles(
            tiling.loops[-1]
        )
        return (first_tiles * rows.halo + tiling.count * rows.fresh) // rows.unit
    parts = tiling.cut.count if tiling.cut and tiled.phase == "body" else 1
    return parts * prod(loop.count for loop in tiling.loops[: tiled.depth])


def count_first_tiles(loop: SharedLoop) -> int:
    """Count the tiles of a rolling loop that share no rows with the previous one.

    The last tile also moves less far, where tiles do not divide the loop.
    """
    return 1 + (loop.count > 1 and loop.extent % loop.tile > 0)


def _naming(operator: Operator) -> dict[str, str]:
    """Return names without dots for the tensors of a product."""
    tensors = [load.tensor.name for load in (*operator.operands, *operator.epilogue_loads)]
    names: dict[str, str] = {}
    for tensor in dict.fromkeys(tensors):
        plain = tensor.replace(".", "_")
        while plain in names.values() or (plain != tensor and plain in tensors):
            plain += "_"
        names[tensor] = plain
    return names


def _constants_of(tiling: Tiling, tiled: TiledStep) -> list[str]:
    """List a product's constants that each tile sees whole, and no other step sees."""
    assert isinstance(tiled.step, Operator)
    inputs = {tensor.name: tensor for tensor in tiling.chain.inputs}
    reads = Counter(load.tensor.name for step in tiling.chain.steps for load in loads_of(step))
    return [
        name
        for name in tiled.step.constants
        if name in inputs and reads[name] == 1 and tiled.size(name) == inputs[name].shape
    ]


def packable(tiling: Tiling, tiled: TiledStep) -> dict[str, int]:
    """Return sources that several tiles share, with the depth of the loops they depend on."""
    order = {loop.name: n for n, loop in enumerate(tiling.loops, 1)}
    writers = {each.step.output.tensor.name: each for each in tiling.steps}
    depths: dict[str, int] = {}
    assert isinstance(tiled.step, Operator)
    constants = _constants_of(tiling, tiled)
    for load in tiled.step.sources:
        name = load.tensor.name
        if name in constants:
            continue  # it is packed ahead of all calls
        origins = {n for place in tiled.boxes[name] for n in place.start.names}
        if not origins <= order.keys():
            continue  # it moves with the parts of a row
        depth = max((order[n] for n in origins), default=0)
        depth = max(depth, writers[name].depth if name in writers else 0)
        shared = 1
        for loop in tiling.loops[depth : tiled.depth]:
            shared *= loop.count
        once = [each.tensor.name for each in tiled.step.sources].count(name) == 1
        if shared > 1 and once and (name not in writers or writers[name].phase == "before"):
            depths[name] = depth
    return depths
