"""Streams of described units: Gemmini's, and units of nobody, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import amos
from amos import validate
from amos.errors import BuildError, IntrinsicError, ScheduleError, StreamError
from amos.intrinsics import Intrinsic, Memory
from amos.ir import Operator
from amos.machine import Machine
from amos.machine.machine import Peak as Peak
from amos.machine.stream_unit import StreamUnit
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.streams import StreamSchedule
from amos.streams.codegen import Store
from amos.streams.plan import StreamPlan
from amos.streams.runtime import StreamKernel, simulate
from tests.support.streams import OPERATORS

MATMUL = amos.intrinsics.get("gemmini_matmul_m16n16k16_s8_s32")
GEMMINI = amos.machines.get("gemmini")
GEMM = amos.operators.get("gemm", dtype="s8", m=64, n=48, k=80)


def unit(
    compute: str, extents: dict[str, int], kind: tuple[str, str], *memory: Memory
) -> Intrinsic:
    return Intrinsic.define(
        "acme_unit",
        compute,
        extents,
        dict.fromkeys(("Src1", "Src2"), kind[0]) | {"Dst": kind[1]},
        memory,
        family="acme",
        source="test",
    )


#: Fragments of odd sizes in one buffer, operands by columns.
ODD = unit(
    "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
    {"i1": 3, "i2": 5, "r1": 2},
    ("s8", "s32"),
    Memory.parse("pad.Src1[i1, r1] = global.Src1[addr_a + i1 + r1 * stride_a]", capacity=400),
    Memory.parse("pad.Src2[] = global.Src2[addr_b]", alignment=2),
    Memory.parse("global.Dst[addr_c + i1 + i2 * stride_c] = acc.Dst[i1, i2]", capacity=720),
)
#: A filter of eight lanes, one place of its window a call.
FIR = unit(
    "Dst[i1] += Src1[i1] * Src2[]",
    {"i1": 8},
    ("s8", "s32"),
    Memory.parse("line.Src1[] = global.Src1[addr_a]", capacity=256, banks=2),
    Memory.parse("taps.Src2[] = global.Src2[addr_b]", capacity=64),
    Memory.parse("global.Dst[addr_c] = acc.Dst[]", capacity=512),
)
LARGEST = unit(
    "Dst[i1] max= Src1[i1, r1] + Src2[r1]",
    {"i1": 4, "r1": 4},
    ("f32", "f32"),
    Memory.parse("rows.Src1[] = global.Src1[addr_a]", capacity=1024),
    Memory.parse("row.Src2[] = global.Src2[addr_b]", capacity=64),
    Memory.parse("global.Dst[addr_c] = acc.Dst[]", capacity=256),
)


def machine(unit: Intrinsic, interval: int = 1) -> Machine:
    """Gemmini's queues around another unit."""
    cycle = 1 / GEMMINI.clock
    return replace(GEMMINI, peaks={unit.name: Peak(latency=cycle, interval=interval * cycle)})


def kernels(op: Operator, unit: Intrinsic, on: Machine, count: int) -> Iterator[StreamKernel]:
    """Drawn candidates of all mappings."""
    rng = np.random.default_rng(0)
    mappings = list(amos.enumerate_mappings(op, unit))
    for number in range(count):
        mapping = mappings[number % len(mappings)]
        yield StreamKernel(Candidate(mapping, ScheduleSpace(mapping, on).sample(rng)), on)


def agrees(kernel: StreamKernel, inputs: dict[str, np.ndarray]) -> bool:
    arguments = kernel.prepare(inputs)
    kernel.run(arguments)
    expected = validate.evaluate(kernel.plan.mapping.operator, inputs)
    return np.array_equal(kernel.result(arguments), expected)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("unit", [MATMUL, ODD], ids=["gemmini", "odd"])
def test_drawn_streams_compute_what_numpy_does(name: str, unit: Intrinsic) -> None:
    op, on = OPERATORS[name], GEMMINI if unit is MATMUL else machine(unit, 2)
    inputs = validate.random_inputs(op, np.random.default_rng(1))
    assert all(agrees(kernel, inputs) for kernel in kernels(op, unit, on, 3))


def test_a_unit_of_another_reduction_streams() -> None:
    op = Operator.parse(
        "out[i] max= a[i,k] + b[k]",
        extents=dict(i=10, k=11),
        dtypes=dict(a="f32", b="f32", out="f32"),
    )
    rng = np.random.default_rng(0)
    inputs = {"a": -rng.random((10, 11), "f4") - 3, "b": -rng.random(11, "f4")}
    assert all(agrees(kernel, inputs) for kernel in kernels(op, LARGEST, machine(LARGEST), 4))


@pytest.mark.long
def test_a_unit_with_a_window_is_one_call_for_each_place_of_it() -> None:
    with pytest.raises(IntrinsicError, match=r"got 'i1 \+ r1'; a unit with a window is described"):
        unit("Dst[i1] += Src1[i1 + r1] * Src2[r1]", {"i1": 8, "r1": 3}, ("s8", "s32"), *FIR.memory)
    op = OPERATORS["wide"]
    inputs = validate.random_inputs(op, np.random.default_rng(1))
    mappings = amos.enumerate_mappings(op, FIR)
    assert "p" in {mapping.name for mapping in mappings}
    for mapping in mappings:
        assert np.array_equal(amos.simulate(mapping, inputs), validate.evaluate(op, inputs))
    assert all(agrees(kernel, inputs) for kernel in kernels(op, FIR, machine(FIR), 8))


#: Statement of a unit, its extents, dtypes and buffers; operator and its extents.
KINDS: dict[str, tuple[str, dict[str, int], dict[str, str], str, dict[str, int]]] = {
    "vectors that are added": (
        "Dst[i1] = Src1[i1] + Src2[i1]",
        dict(i1=8),
        dict(Src1="s32", Src2="s32", Dst="s32"),
        "out[i, j] = a[i, j] + b[i, j]",
        dict(i=5, j=19),
    ),
    "vectors that are multiplied": (
        "Dst[i1] += Src1[i1] * Src2[i1]",
        dict(i1=8),
        dict(Src1="s8", Src2="s8", Dst="s32"),
        "out[p, g] += a[p + r, g] * b[r, g]",
        dict(p=9, g=19, r=3),
    ),
    "weights of four bits": (
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        dict(i1=4, i2=8, r1=4),
        dict(Src1="s8", Src2="s4", Dst="s32"),
        "out[i, j] += a[i, k] * b[k, j]",
        dict(i=10, j=19, k=22),
    ),
    "blocks with scales": (
        "Dst[i1, i2] += Src1[i1, r1] * Scale1[i1] * Src2[r1, i2] * Scale2[i2]",
        dict(i1=4, i2=8, r1=32),
        dict(Src1="e4m3", Scale1="e8m0", Src2="e4m3", Scale2="e8m0", Dst="f32"),
        "out[i, j] += a[i, b, k] * s[i, b] * w[b, k, j] * t[b, j]",
        dict(i=10, j=19, b=3, k=32),
    ),
    "two of four weights": (
        "Dst[i1, i2] += Src1[i1, r1, r2] * Src2[r1, r3, i2] * Select[r1, r3, r2, i2]",
        dict(i1=4, i2=8, r1=2, r2=4, r3=2),
        dict(Src1="s8", Src2="s8", Select="bool", Dst="s32"),
        "out[i, j] += a[i, g, k] * value[g, s, j] * select[g, s, k, j]",
        dict(i=10, j=19, g=5, s=2, k=4),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_units(kind: str) -> None:
    compute, extents, dtypes, statement, sizes = KINDS[kind]
    memory = [
        Memory.parse(f"m{n}.{name}[] = global.{name}[addr_{n}]", capacity=8192)
        for n, name in enumerate(dtypes)
        if name != "Dst"
    ]
    memory.append(Memory.parse("global.Dst[addr_c] = acc.Dst[]", capacity=8192))
    own = Intrinsic.define(
        "acme_kind", compute, extents, dtypes, memory, family="acme", source="test"
    )
    op = amos.operators.resolve(statement, sizes, dtype=(*dtypes.values(),))
    inputs = validate.random_inputs(op, np.random.default_rng(1))
    if "select" in inputs:  # the k of each of both weights of a group
        inputs["select"] = np.zeros_like(inputs["select"])
        inputs["select"][:, 0, 1], inputs["select"][:, 1, 3] = 1, 1
        dense = inputs["a"][:, :, [1, 3]].astype(int)
        expected = np.einsum("igs,gsj->ij", dense, inputs["value"].astype(int))
        np.testing.assert_array_equal(validate.evaluate(op, inputs), expected)
    streams = list(kernels(op, own, machine(own, 2), 6))
    assert streams
    assert all(agrees(kernel, inputs) for kernel in streams)


def test_cycles_are_those_of_calls_and_of_writes_that_wait() -> None:
    (mapping,) = amos.enumerate_mappings(GEMM, MATMUL)
    whole = StreamSchedule(tile={"i1.tile": 4, "i2.tile": 3}, steps={"r1.tile": 5})
    kernel = StreamKernel(Candidate(mapping, whole), GEMMINI)
    assert agrees(kernel, validate.random_inputs(GEMM, np.random.default_rng(0)))
    assert kernel.last is not None
    # 60 calls of 16 cycles, 32 until the last result; a cycle to issue, 50 to DRAM each.
    moved = (4 * 5 + 5 * 3) * 256 // 16, 4 * 3 * 1024 // 16
    assert kernel.last.busy == {"load": 2 * 51 + moved[0], "compute": 993, "store": 51 + moved[1]}
    op = amos.operators.get("gemm", dtype="s8", m=3, n=5, k=20)
    *sources, result = ODD.memory
    waiting = replace(ODD, memory=(*sources, replace(result, write_interval=9)))
    (single,) = amos.enumerate_mappings(op, waiting)
    kernel = StreamKernel(Candidate(single, StreamSchedule(steps={"r1.tile": 10})), machine(ODD, 2))
    assert agrees(kernel, validate.random_inputs(op, np.random.default_rng(0)))
    assert kernel.last is not None
    assert kernel.last.busy["compute"] == 10 * 9 + 33


def test_every_token_is_needed() -> None:
    (mapping,) = amos.enumerate_mappings(GEMM, MATMUL)
    schedule = StreamSchedule(tile={"i1.tile": 2}, steps={"r1.tile": 2}, buffers={"Dst": 2})
    kernel = StreamKernel(Candidate(mapping, schedule), GEMMINI)
    arguments = kernel.prepare(validate.random_inputs(GEMM, np.random.default_rng(0)))
    stream, dropped = kernel.stream, 0
    for number, instruction in enumerate(stream.instructions):
        for name in instruction.tokens.split():
            changed = list(stream.instructions)
            changed[number] = replace(instruction, **{name: False})
            with pytest.raises(StreamError):
                simulate(
                    replace(stream, instructions=tuple(changed)), arguments, kernel.plan.unit, 16
                )
            dropped += 1
    assert dropped > 20


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (dict(tile={"i1.tile": 4, "i2.tile": 9}), "in buffer acc, .* in 2 banks, one for a tile"),
        (dict(buffers={"Src1": 3, "Src2": 2}), "3 tiles of 1 fragments of Src1 and 2 tiles"),
    ],
)
def test_tiles_beyond_a_bank_or_the_banks_are_refused(
    schedule: dict[str, dict[str, int]], message: str
) -> None:
    op = amos.operators.get("gemm", dtype="s8", m=64, n=160, k=32)
    (mapping,) = amos.enumerate_mappings(op, MATMUL)
    with pytest.raises(BuildError, match=message):
        StreamPlan.of(mapping, StreamSchedule(**schedule), GEMMINI)  # type: ignore[arg-type]


def test_spaces_offer_what_banks_hold_and_nothing_twice_where_it_cannot_be() -> None:
    op = amos.operators.get("gemm", dtype="s8", m=512, n=512, k=512)
    (mapping,) = amos.enumerate_mappings(op, MATMUL)
    space, rng = ScheduleSpace(mapping, GEMMINI), np.random.default_rng(0)
    for _ in range(20):
        plan = StreamPlan.of(mapping, space.sample(rng), GEMMINI)
        starts = [slot // op.bank for op in plan.tiles.operands for slot in plan.slots[op.name]]
        assert all(
            slot % op.bank == 0 for op in plan.tiles.operands for slot in plan.slots[op.name]
        )
        assert len(starts) <= 6
    large = replace(space.sample(rng), tile={"i1.tile": 2, "i2.tile": 32})
    with pytest.raises(ScheduleError, match=r"a tile of Dst has 65536 bytes, but a bank .* 32768"):
        space.check(large)
    memory = tuple(replace(m, double=False) if m.capacity else m for m in MATMUL.memory)
    single = amos.enumerate_mappings(op, replace(MATMUL, memory=memory))[0]
    drawn = ScheduleSpace(single, GEMMINI).sample(rng)
    assert isinstance(drawn, StreamSchedule)
    assert {drawn.buffers[x] for x in ("Src1", "Src2", "Dst")} == {1}
    with pytest.raises(BuildError, match="spad, .*, which cannot be filled while in use"):
        StreamPlan.of(single, StreamSchedule(buffers={"Src1": 2}), GEMMINI)


def test_what_a_unit_does_not_say_that_it_does_is_refused() -> None:
    for op, message in (
        (
            GEMM.with_epilogue("max(acc, 0)"),
            r"stores compute s8\(relu\(acc\) \* number\), .*not max",
        ),
        (GEMM.with_epilogue("s8(acc * 0.5 + 3)"), r"not s8\(acc \* 0.5 \+ 3"),
        (GEMM.with_epilogue("s8(acc * 3)"), "stores compute"),
        (GEMM.with_epilogue("s8(max(acc * -0.5, 0))"), "stores compute"),
        (GEMM.with_epilogue("u8(relu(acc))"), "stores compute"),
        (GEMM.with_output("y[m, n + 3]", shapes={"y": [64, 60]}), "stores whole fragments"),
    ):
        mapping = amos.enumerate_mappings(op, MATMUL)[0]
        with pytest.raises(BuildError, match=message):
            StreamKernel(Candidate(mapping, StreamSchedule()), GEMMINI)


@pytest.mark.parametrize(
    ("epilogue", "factor", "relu"),
    [
        ("s8(relu(acc) * 0.0123)", 0.0123, True),
        ("s8(max(0, 0.004 * acc))", 0.004, True),
        ("s8(acc * -0.5)", -0.5, False),
        ("s8(acc)", 1.0, False),
    ],
)
def test_stores_scale_sums(epilogue: str, factor: float, relu: bool) -> None:
    """As mvout: relu, times a float32, rounded to nearest even, clamped; a byte each leaves."""
    op = GEMM.with_epilogue(epilogue)
    inputs = validate.random_inputs(op, np.random.default_rng(2))
    inputs["a"][:16] //= 16  # results that are not clamped
    sums = inputs["a"].astype(np.int64) @ inputs["b"].astype(np.int64)
    scaled = (np.maximum(sums, 0) if relu else sums).astype("f4") * np.float32(factor)
    expected = np.clip(np.rint(scaled), -128, 127)
    for kernel in kernels(op, MATMUL, GEMMINI, 4):
        kernel.run(arguments := kernel.prepare(inputs))
        assert np.array_equal(kernel.result(arguments), expected)
        assert kernel.last is not None
        stores = [x for x in kernel.stream.instructions if isinstance(x, Store)]
        assert sum(x.moved for x in stores) * 256 == 64 * 48
        assert kernel.plan.destination.moved_bytes == 256
    assert len(np.unique(expected)) > 20


def test_gaps_are_no_fragments_of_a_stream() -> None:
    first, *further = MATMUL.memory
    strided = replace(MATMUL, memory=(replace(first, strides=("32", "1")), *further))
    (mapping,) = amos.enumerate_mappings(GEMM, strided)
    with pytest.raises(BuildError, match=r"without gaps; those of Src1 have strides \(32, 1\)"):
        StreamPlan.of(mapping, StreamSchedule(), GEMMINI)


def test_calls_need_no_micro_operations() -> None:
    assert "micro" not in str(StreamUnit(encoding="calls", instructions=1))
