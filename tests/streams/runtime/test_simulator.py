"""Streams that are simulated: results, hazards, hangs, bad addresses, cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amos import enumerate_mappings, validate
from amos.errors import BuildError, StreamError
from amos.intrinsics import Intrinsic, Memory
from amos.ir import Operator
from amos.machine import Peak
from amos.machine.stream_unit import StreamUnit
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.streams.codegen import Buffer, Instruction, Load, Region, Store, Stream
from amos.streams.runtime import Run, StreamKernel, simulate
from amos.streams.vta import Finish, Gemm
from tests.support.streams import OPERATORS, PYNQ, drawn, inputs_of, interpret

UNIT = StreamUnit(encoding="vta", micro_ops=64, instructions=64, issue=1, drain=5, latency=20)
#: Two inputs and two results of one fragment each.
BUFFERS = (
    Buffer("inp", 4, (1, 16), "int8", "load"),
    Buffer("wgt", 2, (16, 16), "int8", "load"),
    Buffer("acc", 8, (1, 16), "int32", "compute"),
    Buffer("out", 8, (1, 16), "int32", of="acc"),
    Buffer("uop", 8, (3,), "int32", "compute", bits=32),
)
REGIONS = (
    Region("image", "inp", 0, 4),
    Region("weight", "wgt", 16, 2),
    Region("out", "out", 128, 4),
    Region("uops", "uop", 4096, 8),
)
RNG = np.random.default_rng(5)
DRAM = {
    "image": RNG.integers(-9, 9, (4, 1, 16)).astype(np.int8),
    "weight": RNG.integers(-9, 9, (2, 16, 16)).astype(np.int8),
}
UOPS = np.array([[n, 0, 0] for n in range(4)] + [[4, 1, 0]] * 4, np.int32)


def _moved(kind: type, buffer: str, sram: int, dram: int, count: int, **more: bool) -> Load | Store:
    return kind(  # type: ignore[no-any-return]
        buffer=buffer, sram=sram, dram=dram, rows=1, columns=count, stride=count, **more
    )


def _gemm(reset: bool = False, begin: int = 0, end: int = 4, **more: bool) -> Gemm:
    return Gemm(
        begin=begin, end=end, outer=1, inner=1, dst=(0, 0), src=(0, 0), wgt=(0, 0),
        reset=reset, **more,
    )  # fmt: skip


PROGRAM: list[Instruction] = [
    _moved(Load, "inp", 0, 0, 1),
    _moved(Load, "wgt", 0, 16, 1, push_next=True),
    _moved(Load, "uop", 0, 4096, 8),
    _gemm(reset=True),
    _gemm(pop_prev=True, push_prev=True),
    _moved(Load, "inp", 0, 1, 1, pop_next=True, push_next=True),
    _gemm(pop_prev=True, push_next=True),
    _moved(Store, "out", 0, 128, 4, pop_prev=True, push_prev=True),
    Finish(pop_next=True),
]


def _run(program: Sequence[Instruction], *, values: bool = True) -> Run:
    stream = Stream(tuple(program), BUFFERS, REGIONS, {"uops": UOPS})
    return simulate(stream, DRAM if values else None, UNIT, port=8.0)


@pytest.mark.parametrize("name", OPERATORS)
def test_streams_compute_what_numpy_does(name: str) -> None:
    op = OPERATORS[name]
    inputs = inputs_of(op)
    expected = validate.evaluate(op, inputs)
    for kernel in drawn(op, 12):
        arguments = kernel.prepare(inputs)
        kernel.run(arguments)
        np.testing.assert_array_equal(kernel.result(arguments), expected, str(kernel.plan))


def test_a_convolution_by_hand() -> None:
    op = OPERATORS["conv"]
    inputs = inputs_of(op, seed=3)
    padded = np.pad(inputs["image"].astype(int), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros((1, 6, 5, 32), int)
    for p in range(6):
        for q in range(5):
            window = padded[0, 2 * p : 2 * p + 3, 2 * q : 2 * q + 3]
            expected[0, p, q] = np.einsum("rsc,kcrs->k", window, inputs["weight"].astype(int))
    for kernel in drawn(op, 3, seed=1):
        kernel.run(arguments := kernel.prepare(inputs))
        assert (kernel.result(arguments) == expected).all()


def test_a_unit_of_ones_own() -> None:
    """Two rows of 8 times 8x4, in buffers that are much smaller."""
    statements = ("inp.Src1[] = global.Src1[addr_a]", "wgt.Src2[] = global.Src2[addr_b]")
    unit = Intrinsic.define(
        "small_gemm_m2n4k8_s8_s32",
        "Dst[i1, i2] += Src1[i1, r1] * Src2[i2, r1]",
        {"i1": 2, "i2": 4, "r1": 8},
        {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        [
            *(Memory.parse(each, capacity=1024) for each in statements),
            Memory.parse("global.Dst[addr_c] = acc.Dst[]", capacity=2048, write_interval=3),
        ],
        family="small",
        source="test",
        requires=("small",),
    )
    peaks = {unit.name: Peak(latency=3e-8, interval=1e-8)}
    machine = replace(PYNQ, peaks=peaks, stream=replace(UNIT, instructions=2**18))
    op = OPERATORS["conv"]
    inputs = inputs_of(op)
    expected, rng = validate.evaluate(op, inputs), np.random.default_rng(0)
    for mapping in list(enumerate_mappings(op, unit))[::9]:
        schedule = ScheduleSpace(mapping, machine).sample(rng)
        kernel = StreamKernel(Candidate(mapping, schedule), machine)
        kernel.run(arguments := kernel.prepare(inputs))
        np.testing.assert_array_equal(kernel.result(arguments), expected, str(kernel.plan))


def test_any_order_that_tokens_allow_computes_the_same() -> None:
    op = OPERATORS["gemm"]
    inputs, rng = inputs_of(op), np.random.default_rng(2)
    for kernel in drawn(op, 3, seed=4):
        arguments = kernel.prepare(inputs)
        kernel.run(arguments)
        result = interpret(kernel.stream, arguments, rng)["out"]
        assert kernel.last is not None
        np.testing.assert_array_equal(result, kernel.last.dram["out"])


EPILOGUES = {
    "s8(max(acc - 300, 0))": lambda a: np.clip(np.maximum(a - 300, 0), -128, 127),
    "u8(relu(acc))": lambda a: np.clip(a, 0, 255),
    "s8(acc + 64 >> 7)": lambda a: np.clip(np.floor(a / 128 + 0.5), -128, 127),
    "clip(acc + 5, -1000, 1000)": lambda a: np.clip(a + 5, -1000, 1000),
}


@pytest.mark.parametrize("text", EPILOGUES)
def test_epilogues_run_on_the_alu(text: str) -> None:
    plain = OPERATORS["gemm"]
    op = plain.with_epilogue(text)
    inputs = inputs_of(plain)
    sums = inputs["image"].astype(int) @ inputs["weight"].astype(int)
    for kernel in drawn(op, 3):
        kernel.run(arguments := kernel.prepare(inputs))
        assert (kernel.result(arguments) == EPILOGUES[text](sums)).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acc + bias[j]", "adds and shifts by numbers, and takes max and min, no bias"),
        ("u8(acc * 0.5)", "no float"),
        ("acc * 3", "no multiply of these"),
        ("5 - acc", "no number that an accumulator is subtracted from"),
        ("abs(acc)", "no number that an accumulator is subtracted from"),
        ("max(acc, 40000)", r"no number of more than 16 bits \(40000\)"),
        ("f32(acc)", "no float"),
    ],
)
def test_what_the_alu_does_not_have(text: str, message: str) -> None:
    op = OPERATORS["gemm"].with_epilogue(text, dtypes={"bias": "s32"} if "bias" in text else {})
    with pytest.raises(BuildError, match=message):
        list(drawn(op, 1))


def test_what_is_no_fragment_is_refused() -> None:
    op = OPERATORS["gemm"].with_output("y[i, j + 3]", shapes={"y": [21, 50]})
    with pytest.raises(BuildError, match="stores whole fragments of the output"):
        list(drawn(op, 1))


def test_results_wrap_as_32_bits_do() -> None:
    op = Operator.parse(
        "out[i,j] += image[i,k] * weight[j,k]",
        extents=dict(i=4, j=16, k=140000),
        dtypes={"image": "s8", "weight": "s8", "out": "s32"},
    )
    inputs = {"image": np.full((4, 140000), -128, np.int8)}
    inputs["weight"] = np.full((16, 140000), -128, np.int8)
    (kernel,) = drawn(op, 1)
    kernel.run(arguments := kernel.prepare(inputs))
    exact = 140000 * 128 * 128
    assert exact > 2**31 - 1
    assert (kernel.result(arguments) == exact - 2**32).all()


def test_a_sound_program_is_accepted() -> None:
    inp, wgt = DRAM["image"].astype(int), DRAM["weight"].astype(int)
    expected = (inp[0] + inp[1]) @ wgt[0].T
    run, timed = _run(PROGRAM), _run(PROGRAM, values=False)
    np.testing.assert_array_equal(run.dram["out"], np.broadcast_to(expected, (4, 1, 16)))
    assert (timed.cycles, timed.busy, timed.moved) == (run.cycles, run.busy, run.moved)


def _changed(number: int, **fields: Any) -> list[Instruction]:
    program = list(PROGRAM)
    program[number] = replace(PROGRAM[number], **fields)
    return program


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_changed(4, pop_prev=False), "before they are written|hazard|left over"),
        (_changed(1, push_next=False), "the queues wait for each other: instruction 5 of load"),
        (_changed(5, push_next=False), "wait for each other: instruction 6 .* a token from load"),
        (
            [*_changed(4, push_prev=False)[:5], *_changed(5, pop_next=False)[5:]],
            "hazard: fragments of inp are (used|written) by instruction [45] of (compute|load)",
        ),
        (_changed(8, pop_next=False), "1 tokens from store to compute are left over"),
        (_changed(0, sram=4), "writes fragment 4 of inp, which has 4"),
        (_changed(0, dram=4), "inp: addresses 4 to 4 of DRAM are in no tensor"),
        (_changed(7, sram=4), "reads fragments of acc before they are written"),
        (_changed(3, end=9), "expected micro-operations of the buffer"),
        (_changed(4, begin=4, end=8), "an accumulator is written again before 3 cycles"),
        (_changed(4, dst=(0, 0), begin=0, end=4, inner=2), None),
        (_changed(4, src=(0, 3), inner=2), "reads fragments of inp before they are written"),
        (_changed(0, pop_prev=True), "for a token from no queue"),
        (_changed(7, dram=200), "out: addresses 200 to 203 of DRAM are in no tensor"),
    ],
)
def test_unsound_programs_are_refused(program: list[Instruction], message: str | None) -> None:
    if message is None:
        _run(program)
        return
    for values in (True, False):
        with pytest.raises(StreamError, match=message):
            _run(program, values=values)


def test_cycles() -> None:
    """16 and 256 bytes at 8 a cycle, each 1 cycle to begin and 20 to the first data."""
    loads = [_moved(Load, "inp", 0, 0, 1), _moved(Load, "wgt", 0, 16, 1)]

    def cycles(*program: Instruction) -> int:
        stream = Stream(program, BUFFERS, REGIONS, {"uops": UOPS})
        return simulate(stream, DRAM, UNIT, port=8.0).cycles

    assert cycles(loads[0]) == 1 + 20 + 2
    assert cycles(*loads) == 23 + 1 + 20 + 32
    uops = _moved(Load, "uop", 0, 4096, 8)
    # Beside each other, but for the port: two transfers share it.
    assert cycles(loads[0], uops) == 1 + 20 + 2 + 4
    assert cycles(uops, _gemm(reset=True)) == 1 + 20 + 4 + 1 + 4 + 5
    padded = replace(loads[0], before=(1, 0), after=(1, 0))
    assert cycles(padded) == 23 + 2
