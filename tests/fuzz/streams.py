"""Streams of VTA's instructions: on its own sizes and on others, with epilogues of its ALU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

import amos
from amos.errors import BuildError, StreamError
from amos.intrinsics import Intrinsic
from amos.machine import Machine, Peak
from amos.mapping.mapping import Mapping
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.streams.runtime import StreamKernel
from tests.fuzz.case import Refused, Wrong, case, compare
from tests.fuzz.kernels import schedule_of
from tests.support.drawing.operators import Problem, chance

__all__ = ["stream"]

#: Rows, columns and depth of units, and fragments that their buffers hold.
_SIZES = ((1, 16, 16), (1, 16, 32), (2, 16, 16), (1, 32, 16), (4, 8, 8), (2, 4, 8))
_NUMBERS = (0, 1, 3, -7, 100, 4096, -32767, 32767)


def stream(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A candidate as a stream: what the simulator makes of it."""
    unit, machine = _unit(rng)
    assert machine.stream is not None
    sizes = [m.capacity for m in unit.memory]
    text = f"unit of {unit.shape} with buffers of {sizes}, {machine.stream.micro_ops} micro_ops"
    drawn = case(
        rng, about, lambda _: (unit, text), finished=chance(rng, 0.4), epilogue=_alu, most=6000
    )
    schedule = schedule_of(rng, drawn, about, machine)
    try:
        kernel = StreamKernel(Candidate(drawn.mapping, schedule), machine)
        kernel.run(arguments := kernel.prepare(drawn.inputs))
    except amos.AmosError as error:
        if "micro-operations that have room" in str(error):
            raise Refused(str(error)) from None
        raise Wrong(f"a schedule of the space is no sound stream: {error}") from error
    compare(drawn, kernel.result(arguments), "stream")
    return "right"


@cache
def _mappings(layer: int) -> list[Mapping]:
    op = amos.operators.resolve(f"resnet18:C{layer}", dtype="s8")
    return list(amos.enumerate_mappings(op, "vta_gemm_m1n16k16_s8_s32"))


def layer(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A candidate of a layer of ResNet-18 on VTA: whether its stream is sound, not its values."""
    number, machine = int(rng.integers(1, 12)), amos.machines.get("vta_pynq")
    mapping = _mappings(number)[int(rng.integers(len(_mappings(number))))]
    schedule = ScheduleSpace(mapping, machine).sample(rng)
    about(f"C{number} {mapping.name} {schedule}")
    try:
        StreamKernel(Candidate(mapping, schedule), machine).run()
    except BuildError as error:
        raise Refused(str(error)) from None
    except StreamError as error:
        raise Wrong(f"a schedule of the space is no sound stream: {error}") from error
    return "right"


def _unit(rng: np.random.Generator) -> tuple[Intrinsic, Machine]:
    """VTA, or a unit like it of another size, with buffers that few fragments fill."""
    vta, machine = amos.intrinsics.get("vta_gemm_m1n16k16_s8_s32"), amos.machines.get("vta_pynq")
    if chance(rng, 0.5):
        return vta, machine
    m, n, k = _SIZES[int(rng.integers(len(_SIZES)))]
    depths = 2 ** rng.integers(3, 8, 3)
    memory = tuple(
        replace(each, capacity=int(depth) * size, alignment=1, indices=(), strides=())
        for each, depth, size in zip(vta.memory, depths, (m * k, n * k, 4 * m * n), strict=True)
    )
    own = Intrinsic.define(
        "own_gemm",
        str(vta.compute),
        {"i1": m, "i2": n, "r1": k},
        {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        memory,
        family="vta",
        source="test",
    )
    assert machine.stream is not None
    queues = replace(machine.stream, micro_ops=int(rng.choice([16, 64, 8192])))
    peaks = {own.name: Peak(latency=3e-8, interval=1e-8)}
    return own, replace(machine, peaks=peaks, stream=queues)


def _alu(rng: np.random.Generator, start: Problem) -> Problem:
    """The operator with an epilogue of what the ALU has."""
    text = "acc"
    for _ in range(int(rng.integers(1, 4))):
        low, high = sorted(int(n) for n in rng.choice(_NUMBERS, 2))
        forms: tuple[str, ...] = (
            f"({text} + 8 >> {high % 19})",
            f"{text} + {low}",
            f"{text} - {high}",
            f"max({text}, {low})",
            f"relu({text})",
        )
        forms += (f"{high} + ({text})", f"min({high}, {text})", f"clip({text}, {low}, {high})")
        text = str(rng.choice(forms))
    return replace(
        start, epilogue=str(rng.choice(["{}", "s8({})", "u8({})", "s16({})"])).format(text)
    )
