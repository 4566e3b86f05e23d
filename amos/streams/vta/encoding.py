"""The 128 bits of VTA's instructions and the 32 of its micro-operations.

Fields, their order and their widths are those of ``include/vta/hw_spec.h`` and
``hw_spec_const.h`` (apache/tvm-vta, ``VTAMemInsn``, ``VTAGemInsn``, ``VTAAluInsn``,
``VTAUop``), as a C compiler lays them out: lowest bits first, and no field across the two
halves of an instruction. Widths of indices follow from the capacities of buffers. Micro-
operations are 32 bits: destination, source, weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import BuildError
from amos.streams.codegen.instructions import Buffer, Instruction, Stream
from amos.streams.codegen.transfers import Load, Store
from amos.streams.vta.instructions import ALU_OPCODES, Alu, Finish, Gemm

BYTES = 16
_HALF = 64
_LOAD, _STORE, _GEMM, _FINISH, _ALU = range(5)
#: Numbers of memories (``VTA_MEM_ID_…``).
_MEMORIES = ("uop", "wgt", "inp", "acc", "out")
_TOKENS = {"pop_prev": 1, "pop_next": 1, "push_prev": 1, "push_next": 1}
_IMMEDIATE = 16
_RECTANGLE = (
    *("memory", "sram", "dram", "rows", "columns", "stride"),
    *("above", "below", "left", "right"),
)
_LOOPED = ("begin", "end", "outer", "inner", "dst_outer", "dst_inner", "src_outer", "src_inner")
#: Names of the fields of each opcode.
_FIELDS = {
    opcode: ("opcode", *_TOKENS, *names)
    for opcode, names in (
        (_LOAD, _RECTANGLE),
        (_STORE, _RECTANGLE),
        (_GEMM, (*_LOOPED, "reset", "wgt_outer", "wgt_inner")),
        (_FINISH, ()),
        (_ALU, (*_LOOPED, "reset", "operation", "use_immediate", "immediate")),
    )
}


@dataclass(frozen=True)
class Encoding:
    """The encoding for buffers whose indices have so many bits."""

    uop: int
    acc: int
    inp: int
    wgt: int

    @staticmethod
    def of(buffers: tuple[Buffer, ...]) -> Encoding:
        """Create the encoding of a unit, or raise BuildError where its buffers are too large."""
        bits = {b.name: max(1, (b.depth - 1).bit_length()) for b in buffers}
        encoding = Encoding(**{name: bits[name] for name in ("uop", "acc", "inp", "wgt")})
        for what, size, room in (
            ("the loops of an instruction", sum(encoding.looped.values()), _HALF),
            ("its factors", sum(encoding.factors.values()), _HALF),
            ("a micro-operation", sum(encoding.micro.values()), 32),
        ):
            if size > room:
                raise BuildError(f"VTA encoding: {what} take {size} bits, but {room} are there")
        return encoding

    @property
    def transfer(self) -> dict[str, int]:
        """Fields of a load or store in the first half, then in the second."""
        return {"memory": 3, "sram": 16, "dram": 32}

    @property
    def rectangle(self) -> dict[str, int]:
        """The second half."""
        sizes = {"rows": 16, "columns": 16, "stride": 16}
        return sizes | {"above": 4, "below": 4, "left": 4, "right": 4}

    @property
    def looped(self) -> dict[str, int]:
        """Fields of a GEMM or ALU instruction in the first half."""
        loops = {"reset": 1, "begin": self.uop, "end": self.uop + 1, "outer": 14, "inner": 14}
        return {"opcode": 3, **_TOKENS, **loops}

    @property
    def factors(self) -> dict[str, int]:
        """Fields of a GEMM instruction in the second half."""
        return self._factors | {"wgt_outer": self.wgt, "wgt_inner": self.wgt}

    @property
    def operation(self) -> dict[str, int]:
        """Fields of an ALU instruction in the second half."""
        sources = {"src_outer": self.acc, "src_inner": self.acc}
        fixed = {"operation": 3, "use_immediate": 1, "immediate": _IMMEDIATE}
        return self._factors | sources | fixed

    @property
    def _factors(self) -> dict[str, int]:
        names = {"dst_outer": self.acc, "dst_inner": self.acc}
        return names | {"src_outer": self.inp, "src_inner": self.inp}

    @property
    def micro(self) -> dict[str, int]:
        """Fields of a micro-operation; sources of the ALU are accumulators."""
        return {"dst": self.acc, "src": max(self.acc, self.inp), "wgt": self.wgt}

    def _halves(self, opcode: int) -> tuple[dict[str, int], dict[str, int]]:
        if opcode in (_LOAD, _STORE):
            return {"opcode": 3, **_TOKENS, **self.transfer}, self.rectangle
        if opcode == _FINISH:
            return {"opcode": 3, **_TOKENS}, {}
        return self.looped, self.factors if opcode == _GEMM else self.operation

    def encode(self, instruction: Instruction) -> bytes:
        """Encode an instruction, lowest byte first, or raise BuildError if a value does not fit."""
        return self._encode([instruction]).tobytes()

    def _encode(self, instructions: Sequence[Instruction]) -> np.ndarray:
        """Encode each instruction in two words."""
        words = np.zeros((len(instructions), 2), np.uint64)
        rows = [_values(each) for each in instructions]
        opcodes = np.array([row[0] for row in rows])
        for opcode in np.unique(opcodes).tolist():
            own = np.flatnonzero(opcodes == opcode)
            columns = dict(zip(_FIELDS[opcode], np.array([rows[n] for n in own]).T, strict=True))
            for half, names in enumerate(self._halves(opcode)):
                at = 0
                for name, bits in names.items():
                    column = columns[name]
                    low, high = _range(name, bits)
                    for n in np.flatnonzero((column < low) | (column >= high))[:1]:
                        raise BuildError(
                            f"VTA encoding: {name} = {column[n]} does not fit its {bits} bits: "
                            f"{instructions[own[n]]}"
                        )
                    field = (column & ((1 << bits) - 1)).astype(np.uint64)
                    words[own, half] |= field << np.uint64(at)
                    at += bits
        return words

    def decode(self, data: bytes) -> Instruction:
        """Decode an instruction of 16 bytes; raise BuildError if there is none of that opcode."""
        words = [int.from_bytes(data[n : n + 8], "little") for n in (0, 8)]
        opcode = words[0] & 0b111
        if opcode > _ALU:
            raise BuildError(f"VTA encoding: expected an opcode up to {_ALU}, got {opcode}")
        values: dict[str, int] = {}
        for half, word in zip(self._halves(opcode), words, strict=True):
            for name, bits in half.items():
                values[name], word = word & ((1 << bits) - 1), word >> bits
        return instruction_of(values)

    def binary(self, stream: Stream) -> bytes:
        """Encode all instructions of a stream."""
        return self._encode(stream.instructions).tobytes()

    def micro_operations(self, uops: np.ndarray) -> np.ndarray:
        """Encode micro-operations (n × destination, source, weight) as 32-bit words."""
        words, at = np.zeros(len(uops), np.uint32), 0
        for column, (name, bits) in enumerate(self.micro.items()):
            for index in (uops[:, column].min(initial=0), uops[:, column].max(initial=0)):
                if not 0 <= index < 1 << bits:
                    raise BuildError(
                        f"VTA encoding: {name} = {index} of a micro-operation does not fit its "
                        f"{bits} bits"
                    )
            words |= (uops[:, column].astype(np.int64) << at).astype(np.uint32)
            at += bits
        return words


def fields_of(instruction: Instruction) -> dict[str, int]:
    """Return the values of an instruction's fields by name."""
    values = _values(instruction)
    return dict(zip(_FIELDS[values[0]], map(int, values), strict=True))


def _values(instruction: Any) -> tuple[int, ...]:
    """Return the values of :data:`_FIELDS`."""
    item, kind = instruction, type(instruction)
    tokens = item.pop_prev, item.pop_next, item.push_prev, item.push_next
    if kind in (Load, Store):
        (above, pad_left), (below, pad_right) = item.before, item.after
        place = _MEMORIES.index(item.buffer), item.sram, item.dram
        shape = item.rows, item.columns, item.stride, above, below, pad_left, pad_right
        return (_LOAD if kind is Load else _STORE, *tokens, *place, *shape)
    if kind is Finish:
        return (_FINISH, *tokens)
    looped = item.begin, item.end, item.outer, item.inner, *item.dst, *item.src
    if kind is Gemm:
        return (_GEMM, *tokens, *looped, item.reset, *item.wgt)
    number = item.immediate
    operation = ALU_OPCODES.index(item.opcode), number is not None, number or 0
    return (_ALU, *tokens, *looped, 0, *operation)


def instruction_of(values: dict[str, int]) -> Instruction:
    """Create the instruction of named fields; raise BuildError if there is none."""
    fields: dict[str, Any] = {name: bool(values[name]) for name in _TOKENS}
    if values["opcode"] == _FINISH:
        return Finish(**fields)
    if values["opcode"] in (_LOAD, _STORE):
        if values["memory"] >= len(_MEMORIES):
            raise BuildError(f"VTA encoding: there is no memory {values['memory']}")
        fields |= {n: values[n] for n in ("sram", "dram", "rows", "columns", "stride")}
        fields["before"] = values["above"], values["left"]
        fields["after"] = values["below"], values["right"]
        kind = Load if values["opcode"] == _LOAD else Store
        return kind(buffer=_MEMORIES[values["memory"]], **fields)
    fields |= {name: values[name] for name in ("begin", "end", "outer", "inner")}
    fields |= {key: (values[f"{key}_outer"], values[f"{key}_inner"]) for key in ("dst", "src")}
    if values["opcode"] == _GEMM:
        wgt = (values["wgt_outer"], values["wgt_inner"])
        return Gemm(**fields, wgt=wgt, reset=bool(values["reset"]))
    if values["operation"] >= len(ALU_OPCODES):
        raise BuildError(f"VTA encoding: the ALU has no operation {values['operation']}")
    number = values["immediate"]
    number -= (number >> (_IMMEDIATE - 1)) << _IMMEDIATE  # two's complement
    return Alu(
        **fields,
        opcode=ALU_OPCODES[values["operation"]],
        immediate=number if values["use_immediate"] else None,
    )


def _range(name: str, bits: int) -> tuple[int, int]:
    """Return the range of a field, without its end; only immediates have a sign."""
    return (-(1 << bits - 1), 1 << bits - 1) if name == "immediate" else (0, 1 << bits)
