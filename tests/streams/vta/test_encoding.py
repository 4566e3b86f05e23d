"""VTA's binary form: bits where the specification has them, and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amos.errors import BuildError
from amos.streams.codegen import Load, Store
from amos.streams.vta import Alu, Encoding, Finish, Gemm
from tests.support.streams import OPERATORS, drawn

PYNQ = Encoding(uop=13, acc=11, inp=11, wgt=10)
LOAD = Load(
    buffer="inp", sram=0x1234, dram=0xDEADBEE, rows=9, columns=28, stride=56, before=(1, 2),
    after=(3, 4), pop_next=True, push_next=True,
)  # fmt: skip
GEMM = Gemm(
    begin=5, end=8192, outer=14, inner=9000, dst=(2047, 1), src=(60, 2), wgt=(1023, 3), reset=True,
    pop_prev=True, push_prev=True,
)  # fmt: skip
ALU = Alu(begin=0, end=1, outer=3, inner=4, dst=(5, 6), src=(7, 8), opcode="max", immediate=-2)


def _number(*fields: tuple[int, int]) -> int:
    """Values at bits, written out from hw_spec.h."""
    return sum(value << at for at, value in fields)


def test_bits_are_where_the_specification_has_them() -> None:
    tokens = ((4, 1), (6, 1))
    first = _number((0, 0), *tokens, (7, 2), (10, 0x1234), (26, 0xDEADBEE))
    second = _number((0, 9), (16, 28), (32, 56), (48, 1), (52, 3), (56, 2), (60, 4))
    assert int.from_bytes(PYNQ.encode(LOAD), "little") == first + (second << 64)
    loops = _number((0, 2), (3, 1), (5, 1), (7, 1), (8, 5), (21, 8192), (35, 14), (49, 9000))
    factors = _number((0, 2047), (11, 1), (22, 60), (33, 2), (44, 1023), (54, 3))
    assert int.from_bytes(PYNQ.encode(GEMM), "little") == loops + (factors << 64)
    loops = _number((0, 4), (21, 1), (35, 3), (49, 4))
    factors = _number((0, 5), (11, 6), (22, 7), (33, 8), (44, 1), (47, 1), (48, 0xFFFE))
    assert int.from_bytes(PYNQ.encode(ALU), "little") == loops + (factors << 64)
    assert PYNQ.encode(Finish(pop_next=True)) == bytes([3 + (1 << 4)]) + bytes(15)
    words = PYNQ.micro_operations(np.array([[2047, 5, 1023]], np.int32))
    assert words.tolist() == [2047 + (5 << 11) + (1023 << 22)]


def test_streams_come_back_from_their_bytes() -> None:
    for kernel in drawn(OPERATORS["conv"], 4):
        encoding = Encoding.of(kernel.stream.buffers)
        assert encoding == PYNQ
        data = encoding.binary(kernel.stream)
        assert len(data) == 16 * len(kernel.stream.instructions)
        parts = (data[n : n + 16] for n in range(0, len(data), 16))
        assert tuple(map(encoding.decode, parts)) == kernel.stream.instructions
    for instruction in (LOAD, GEMM, ALU, replace(ALU, immediate=None), Finish(push_prev=True)):
        assert PYNQ.decode(PYNQ.encode(instruction)) == instruction


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (replace(LOAD, sram=1 << 16), "sram = 65536 does not fit its 16 bits"),
        (replace(LOAD, dram=1 << 32), "dram = 4294967296 does not fit its 32 bits"),
        (replace(LOAD, rows=1 << 16), "rows = 65536 does not fit its 16 bits"),
        (replace(LOAD, columns=1 << 16), "columns = 65536 does"),
        (replace(LOAD, stride=1 << 16), "stride = 65536 does"),
        (replace(LOAD, before=(16, 0)), "above = 16 does not fit its 4 bits"),
        (replace(LOAD, after=(0, 16)), "right = 16 does not fit its 4 bits"),
        (replace(GEMM, begin=1 << 13), "begin = 8192 does not fit its 13 bits"),
        (replace(GEMM, end=1 << 14), "end = 16384 does not fit its 14 bits"),
        (replace(GEMM, outer=1 << 14), "outer = 16384 does not fit its 14 bits"),
        (replace(GEMM, inner=1 << 14), "inner = 16384 does"),
        (replace(GEMM, dst=(0, 2048)), "dst_inner = 2048 does not fit its 11 bits"),
        (replace(GEMM, src=(-1, 0)), "src_outer = -1 does not fit its 11 bits"),
        (replace(GEMM, wgt=(1024, 0)), "wgt_outer = 1024 does not fit its 10 bits"),
        (replace(ALU, immediate=1 << 15), "immediate = 32768 does not fit its 16 bits"),
    ],
)
def test_what_does_not_fit_a_field_is_refused(instruction: Load | Gemm | Alu, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        PYNQ.encode(instruction)


def test_buffers_that_indices_are_too_short_for() -> None:
    (kernel,) = drawn(OPERATORS["conv"], 1)
    deep = [replace(b, depth=4096) if b.name == "acc" else b for b in kernel.stream.buffers]
    with pytest.raises(BuildError, match="its factors take 66 bits, but 64 are there"):
        Encoding.of(tuple(deep))
    with pytest.raises(BuildError, match="dst = 2048 of a micro-operation does not fit its 11"):
        PYNQ.micro_operations(np.array([[2048, 0, 0]], np.int32))
    with pytest.raises(BuildError, match="wgt = -1 of a micro-operation does not fit its 10"):
        PYNQ.micro_operations(np.array([[0, 0, 5], [0, 0, -1]], np.int32))


def test_bytes_that_are_no_instruction() -> None:
    with pytest.raises(BuildError, match="expected an opcode up to 4, got 7"):
        PYNQ.decode(bytes([7]) + bytes(15))
    store = Store(buffer="out", sram=0, dram=0, rows=1, columns=1, stride=1)
    data = bytearray(PYNQ.encode(store))
    assert (data[0] >> 7) + ((data[1] & 0b11) << 1) == 4
    data[1] |= 0b11
    with pytest.raises(BuildError, match="there is no memory 6"):
        PYNQ.decode(bytes([data[0] & 0x7F, *data[1:]]))
