"""C5 (GTA's R5): the working set of each memory fits it, for each that operands pass through.

These are the registers, the scratchpad that the intrinsic names or the innermost cache, and buffers
of single operands (Heron, Table 6: S2 and S3). Without a spatial loop there is nothing to choose.
"""

from __future__ import annotations

from collections.abc import Iterable

from amos.intrinsics.scratchpad import Scratchpad
from amos.plan.operand import Operand
from amos.schedule.draft import Draft


def registers(draft: Draft) -> None:
    """Limit the register tile: one source is resident, the others need only the fragment in use."""
    context = draft.context
    if not context.spatial:
        return
    *sources, accumulators = count_fragments(draft)
    terms = [accumulators]
    if len(sources) == 1:
        terms += sources
    elif sources:
        resident = draft.select("held", draft.free("kept", len(sources)), sources)
        terms += [resident, draft.constant("in use", 1)]
    # A number that the description does not state is no property of the hardware.
    described = bool(context.mapping.intrinsic.registers)
    most = context.registers
    limit = draft.constant("registers", most, "architecture" if described else "other")
    total = draft.sum("fragments", terms, "length")
    draft.limit(total, limit, f"{{left}} fragments live at once, but {most} registers")


def count_fragments(draft: Draft) -> list[str]:
    """Count the fragments of each operand in a register tile."""
    context = draft.context
    return [
        draft.product(f"fragments.{op.name}", context.along("tile", op)) for op in context.operands
    ]


def count_registers(draft: Draft, sizes: Iterable[int]) -> tuple[str, str]:
    """Count the registers of a thread's accumulators, and of its sources: one of them is resident.

    The variable ``kept`` chooses the resident source; the others need one fragment.
    """
    context = draft.context
    count_fragments(draft)
    single, whole = {}, {}
    for op, size in zip(context.operands, sizes, strict=True):
        single[op.name] = draft.constant(f"registers.one.{op.name}", size)
        parts = (single[op.name], f"fragments.{op.name}")
        whole[op.name] = draft.product(f"registers.{op.name}", parts, "other")
    choices = []
    for op in context.sources:
        singles = [single[peer.name] for peer in context.sources if peer is not op]
        choices.append(draft.sum(f"registers.with.{op.name}", (whole[op.name], *singles)))
    resident = draft.select("registers.held", draft.free("kept", len(choices)), choices, "other")
    return whole[context.destination.name], resident


def memories(draft: Draft) -> None:
    """Limit the bytes in the scratchpad or the innermost cache, of each core that shares it."""
    context = draft.context
    if not context.spatial or context.machine is None:
        return
    inner = context.machine.levels[0]
    scopes = context.scratchpads
    if not scopes and inner.capacity:
        scopes = {op.name: inner.name for op in context.operands}
    for level in sorted(context.machine.levels, key=lambda level: level.name):
        sharing = [op for op in context.operands if scopes.get(op.name) == level.name]
        if not sharing:
            continue
        # The working set of one step of the reduction.
        kind = "span" if context.scratchpads else "tile"
        amounts = [
            draft.product(
                f"{level.name}.{op.name}", (_fragment(draft, op), *context.along(kind, op)), "other"
            )
            for op in sharing
        ]
        room = level.capacity // -(-context.machine.cores // level.units)
        draft.limit(
            draft.sum(f"{level.name}.used", amounts),
            draft.constant(f"{level.name}.capacity", room),
            f"{{left}} bytes of {level.name} in use by one core, but {room} are there for it",
        )


def own_buffers(draft: Draft) -> None:
    """Limit the bytes of a block of tiles in the buffer that operands share (VTA has three)."""
    context = draft.context
    for pad in context.mapping.intrinsic.scratchpads if context.spatial else ():
        sharing = [op for op in context.operands if op.name in pad.operands]
        amounts = {op.name: (_fragment(draft, op), *context.along("span", op)) for op in sharing}
        limit_buffer(draft, pad, amounts)


def limit_buffer(draft: Draft, pad: Scratchpad, amounts: dict[str, tuple[str, ...]]) -> None:
    """Limit the bytes that operands place in one buffer, each a product of variables."""
    used_bytes = [
        draft.product(f"{pad.name}.used" + f".{name}" * (len(amounts) > 1), amount, "other")
        for name, amount in amounts.items()
    ]
    draft.limit(
        used_bytes[0] if len(used_bytes) == 1 else draft.sum(f"{pad.name}.used", used_bytes),
        draft.constant(f"{pad.name}.capacity", pad.capacity),
        f"{{left}} bytes of {' and '.join(amounts)} in buffer {pad.name}, but it has "
        f"{pad.capacity}",
    )


def _fragment(draft: Draft, op: Operand) -> str:
    return draft.constant(f"bytes.{op.name}", max(1, int(op.fragment)))
