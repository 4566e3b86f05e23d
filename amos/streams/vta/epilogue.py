"""Epilogues as operations of VTA's ALU on accumulators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from amos.errors import BuildError
from amos.ir import BufferLoad, Operator, dtype
from amos.ir.expression import Function, inline_call

#: Numbers that an instruction has room for.
_IMMEDIATES = range(-(2**15), 2**15)
#: Operations of the ALU on an accumulator and a number, by their names in the language.
_OPCODES = {"add": "add", "subtract": "add", "_greater": "max", "_less": "min", "shift": "shr"}


@dataclass(frozen=True)
class AluStep:
    """An operation on each accumulator and a number.

    See :class:`amos.streams.vta.instructions.Alu`.
    """

    opcode: str
    immediate: int


def alu_steps(op: Operator) -> tuple[list[AluStep], str]:
    """Return the ALU's operations before results are stored, and the dtype stored.

    Raises:
        BuildError: the ALU does not have it.
    """
    if op.epilogue is None:
        return [], "int32"
    kind, by = op.epilogue.result("int32"), _Alu(str(op.epilogue))
    steps: _Steps = op.epilogue.compute((), "int32", by)
    return list(by.round_to(steps, "int32", kind)), kind


#: Operations on an accumulator, in order.
_Steps = tuple[AluStep, ...]


@dataclass(frozen=True)
class _Alu:
    """Values are steps on the accumulator, or whole numbers."""

    whole: str

    def refuse(self, what: object) -> NoReturn:
        raise BuildError(
            f"VTA's ALU adds and shifts by numbers, and takes max and min, no {what}: {self.whole}"
        )

    def number(self, value: float, kind: str) -> int:
        return int(value) if isinstance(value, int) else self.refuse(value)

    def read(self, load: BufferLoad, kind: str) -> NoReturn:
        self.refuse(load)

    def widen(self, value: Any, dtype: str) -> NoReturn:
        self.refuse(f"accumulator of {dtype}")

    def convert(self, value: Any) -> NoReturn:
        self.refuse("float")

    def round_to(self, value: Any, kind: str, final: str) -> _Steps:
        if not dtype(final).is_integer:
            self.refuse(final)
        if final == "int32":
            return tuple(value)
        low, high = dtype(final).limits
        return self.apply(
            "_less", kind, [self.apply("_greater", kind, [value, int(low)]), int(high)]
        )

    def apply(self, name: str, kind: str, values: list[Any]) -> _Steps:
        numbers = [value for value in values if isinstance(value, int)]
        chains = [value for value in values if not isinstance(value, int)]
        if len(chains) != 1 or len(numbers) != 1 or name not in _OPCODES:
            self.refuse(
                f"{_OPCODES.get(name, name)} of {'float' if kind == 'float32' else 'these'}"
            )
        if name == "subtract" and values[0] is not chains[0]:
            self.refuse("number that an accumulator is subtracted from")
        number = -numbers[0] if name == "subtract" else numbers[0]
        if number not in _IMMEDIATES:
            self.refuse(f"number of more than 16 bits ({number})")
        return (*chains[0], AluStep(_OPCODES[name], number))

    def call(self, function: Function, kind: str, values: list[Any]) -> _Steps:
        steps: _Steps = inline_call(function, kind, values, self)
        return steps
