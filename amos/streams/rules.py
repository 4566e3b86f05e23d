"""Rules for the schedule of a streamed unit: tiles that fit its buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amos.schedule.draft import Draft, Rule
from amos.schedule.memory_rules import limit_buffer
from amos.schedule.rules import fused_sizes, limit_by_description, permutations, tile_sizes
from amos.streams.operand import StreamOperand, stream_operands
from amos.streams.tiles import list_memories

#: Numbers of tiles of an operand on chip.
_BUFFERS = (1, 2)
#: A stream has at most one tile for this many instructions: more tiles only make it slower.
_PER_TILE = 128
#: Instructions of a step of the sums besides transfers: a product and its micro-operations.
_PRODUCTS = 2


def tiles(draft: Draft) -> None:
    """Declare the steps of each loop that are in one tile on chip (C1)."""
    context = draft.context
    operands = stream_operands(context)
    most = max(op.depth for op in operands)
    for kind, loops in (("tile", context.spatial), ("step", context.reduce)):
        for loop in loops:
            divisors = context.tiling == "divisors"
            draft.tunable(f"{kind}.{loop.name}", tile_sizes(loop.extent, most, divisors=divisors))
    counts = []
    for loop in (*context.spatial, *context.reduce):
        name = f"{'tile' if loop in context.spatial else 'step'}.{loop.name}"
        steps = (-(-loop.extent // int(size)) for size in draft.variables[name].domain)
        counts.append(draft.select(f"steps.{loop.name}", name, steps))
    assert context.machine is not None
    assert context.machine.stream is not None
    draft.limit(
        draft.product("tiles", counts),
        draft.constant("tiles.most", context.machine.stream.instructions // _PER_TILE),
        "{left} tiles, but a stream has instructions for {right}",
    )
    draft.product("tiles.out", counts[: len(context.spatial)])
    sums = [f"tile.{loop.name}" for loop in context.spatial]
    draft.product(f"fragments.{context.destination.name}", sums)


def orders(draft: Draft) -> None:
    """Declare the order of tiles (C3)."""
    for name, loops in (("order", draft.context.spatial), ("reduce", draft.context.reduce)):
        if loops:
            draft.tunable(name, permutations(loops))


def buffers(draft: Draft) -> None:
    """Fit the tiles of operands into their buffers (C5; Heron, Table 6: S2, S3)."""
    kinds = dict.fromkeys((x.name for x in draft.context.reduce), "step")
    kinds |= dict.fromkeys((x.name for x in draft.context.spatial), "tile")
    operands, tiles = stream_operands(draft.context), dict[str, tuple[str, ...]]()
    lines = dict[str, list[str]]()
    for op in operands:
        draft.tunable(f"buffers.{op.name}", _BUFFERS if op.pad.double else _BUFFERS[:1])
        size = draft.constant(f"bytes.{op.name}", op.bytes)
        lines[op.name] = [_line(draft, op, number, kinds) for number in range(len(op.dims))]
        tiles[op.name] = size, *filter(None, lines[op.name])
    _limit_instructions(draft, operands, lines)
    assert draft.context.machine is not None
    for pad in list_memories(draft.context.mapping.intrinsic, draft.context.machine):
        counts = [f"buffers.{name}" for name in pad.operands]
        if pad.banks == 1:
            limit_buffer(
                draft, pad, {x: (tiles[x][0], f"buffers.{x}", *tiles[x][1:]) for x in pad.operands}
            )
            continue
        # Each tile has a bank to itself: filling one does not conflict with using another.
        bank = draft.constant(f"{pad.name}.bank", pad.capacity // pad.banks)
        for name in pad.operands:
            draft.limit(
                draft.product(f"{pad.name}.{name}", tiles[name], "other"),
                bank,
                f"a tile of {name} has {{left}} bytes, but a bank of {pad.name} {{right}}",
            )
        draft.limit(
            draft.sum(f"{pad.name}.tiles", counts),
            draft.constant(f"{pad.name}.banks", pad.banks),
            f"{{left}} tiles in buffer {pad.name}, but it has {{right}} banks",
        )


def _limit_instructions(
    draft: Draft, operands: Sequence[StreamOperand], lines: Mapping[str, Sequence[str]]
) -> None:
    """Limit the instructions of a stream that loads each tile for each product.

    A transfer covers two dimensions; each step of the others takes one more. Where accumulators are
    too few for the write interval, as at the ends of loops, each step of the sums has a product of
    its own.
    """
    unit, epilogue = draft.context.machine, draft.context.mapping.operator.epilogue
    assert unit is not None
    assert unit.stream is not None
    *sources, stored = (
        draft.product(
            f"transfers.{op.name}",
            filter(
                None,
                [x for x, dim in zip(lines[op.name], op.dims, strict=True) if x or dim.extent > 1][
                    :-2
                ],
            ),
            "other",
        )
        for op in operands
    )
    # Zeros before the first sum, and operations of the ALU after the last one.
    steps = 0 if epilogue is None else 2 + sum(1 for _ in epilogue.expression.nodes())
    per_result = draft.constant("instructions.out", _PRODUCTS * (1 + steps), "other")
    steps_of = [f"step.{loop.name}" for loop in draft.context.reduce]
    per_product = draft.constant("instructions.step", _PRODUCTS, "other")
    sums = draft.product("instructions.sum", [per_product, *steps_of], "other")
    per_tile = draft.sum("instructions.tile", [sums, *sources])
    results = draft.sum("instructions.result", [per_result, stored])
    parts = [
        draft.product("instructions.tiles", ["tiles", per_tile], "other"),
        draft.product("instructions.results", ["tiles.out", results], "other"),
    ]
    draft.limit(
        draft.sum("instructions", parts),
        draft.constant("instructions.most", unit.stream.instructions - 1),
        "{left} instructions may be needed, but a stream has room for {right}",
    )


def _line(draft: Draft, op: StreamOperand, number: int, kinds: dict[str, str]) -> str:
    """Return the variable of a tile's fragments along a dimension; empty if that is always one."""
    terms = [(name, abs(step)) for name, step in op.dims[number].index.terms if name in kinds]
    if [step for _, step in terms] == [1]:
        return f"{kinds[terms[0][0]]}.{terms[0][0]}"
    if not terms:
        return ""
    # A window: where the last step begins, and one more.
    parts = [draft.constant("one", 1)]
    for name, step in terms:
        variable = draft.variables[f"{kinds[name]}.{name}"]
        reach = [step * (int(value) - 1) for value in variable.domain]
        parts.append(draft.select(f"reach.{op.name}.{number}.{name}", variable.name, reach))
    return draft.sum(f"window.{op.name}.{number}", parts, "length")


#: In the order of application.
STREAM_RULES = [
    Rule("C1", tiles),
    Rule("C2", fused_sizes),
    Rule("C3", orders),
    Rule("C5", buffers),
    Rule("C6", limit_by_description),
]
