"""What a search over chains chooses between: tiles, and a mapping and schedule of each product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from amos.chains.tiling import TiledStep, Tiling
from amos.ir import Chain, Operator, Tensor
from amos.plan import Candidate


@dataclass(frozen=True)
class ProductSlot:
    """A product of a tile, as an operator of its own.

    Attributes:
        tensor: the name of what it writes.
        operator: on the tensors of a tile; sources that are packed ahead are its constants.
        packed: for each of these the depth of the shared loops at which it is packed.
        runs: how often a kernel computes it.
    """

    tensor: str
    operator: Operator
    packed: Mapping[str, int] = field(hash=False)
    runs: int


@dataclass(frozen=True, repr=False)
class ChainCandidate:
    """A kernel of a chain before it is built.

    Attributes:
        tiling: the shared loops, and their tiles.
        products: mapping and schedule of each product, by what it writes.
        packs: products of which sources that tiles share are packed once for all of these.
    """

    tiling: Tiling
    products: Mapping[str, Candidate] = field(hash=False)
    packs: frozenset[str] = frozenset()

    @property
    def chain(self) -> Chain:
        """What is computed."""
        return self.tiling.chain

    @cached_property
    def slots(self) -> tuple[ProductSlot, ...]:
        """Its products."""
        return slots_of(self.tiling, self.packs)

    def as_dict(self) -> dict[str, Any]:
        """Plain values: tiles, and each product's instruction, mapping and schedule."""
        return {
            "tiles": self.tiling.tiles,
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
        return f"tiles {self.tiling}; {products}" if products else f"tiles {self.tiling}"

    def __repr__(self) -> str:
        return f"<kernel of {self.chain.name}: {self}>"


def external_shapes(tiling: Tiling) -> dict[str, tuple[int, ...]]:
    """How inputs and the result lie in memory where a tile sees them.

    Behind the first dimension of which a tile has several elements, all are as long as the whole's.
    """
    tensors: list[Tensor] = [*tiling.chain.inputs, tiling.chain.result]
    shapes = {}
    for tensor in tensors:
        if tensor.name in tiling.boxes:
            size = tiling.size(tensor.name)
            first = next((d for d, count in enumerate(size) if count > 1), len(size))
            shapes[tensor.name] = (*size[: first + 1], *tensor.shape[first + 1 :]) or (1,)
    written = (tiled.step.output.tensor for tiled in tiling.steps)
    return shapes | {tensor.name: (1,) for tensor in written if not tensor.shape}


def slots_of(tiling: Tiling, packs: frozenset[str]) -> tuple[ProductSlot, ...]:
    """The products of a tiling.

    Args:
        tiling: of a chain.
        packs: those of which shared sources are packed ahead.
    """
    shapes = external_shapes(tiling)
    slots = []
    for tiled in tiling.steps:
        if not isinstance(tiled.step, Operator):
            continue
        name = tiled.step.output.tensor.name
        packed = packable(tiling, tiled) if name in packs else {}
        boxes = {source: tiling.size(source) for source in packed}
        local = tiling.localized(tiled, shapes | boxes)
        assert isinstance(local, Operator)
        names = naming(local)
        operator = replace(local, constants=tuple(packed)).renamed(names.__getitem__, str)
        if (size := tiling.size(name)) != operator.output.tensor.shape:
            # A kernel fills the tensor that a statement writes, and of a stored one the results.
            dense = replace(operator.output.tensor, shape=size)
            output = replace(operator.output, tensor=dense)
            compute = replace(operator.compute, dst=output)
            operator = replace(operator, compute=compute, store=operator.stored)
        parts = tiling.cut.count if tiling.cut and tiled.phase == "body" else 1
        runs = parts
        for loop in tiling.loops[: tiled.depth]:
            runs *= loop.count
        slots.append(ProductSlot(name, operator, packed, runs))
    return tuple(slots)


def naming(operator: Operator) -> dict[str, str]:
    """Names without dots for the tensors of a product."""
    tensors = [load.tensor.name for load in (*operator.operands, *operator.epilogue_loads)]
    names: dict[str, str] = {}
    for tensor in dict.fromkeys(tensors):
        plain = tensor.replace(".", "_")
        while plain in names.values() or (plain != tensor and plain in tensors):
            plain += "_"
        names[tensor] = plain
    return names


def packable(tiling: Tiling, tiled: TiledStep) -> dict[str, int]:
    """Sources of a product that several tiles share, with the depth of the loops they depend on."""
    order = {loop.name: n for n, loop in enumerate(tiling.loops, 1)}
    writers = {each.step.output.tensor.name: each for each in tiling.steps}
    depths: dict[str, int] = {}
    assert isinstance(tiled.step, Operator)
    for load in tiled.step.sources:
        name = load.tensor.name
        origins = {n for place in tiling.boxes[name] for n in place.start.names}
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
