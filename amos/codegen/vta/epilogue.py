"""Epilogues as operations of VTA's ALU on accumulators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amos.errors import BuildError
from amos.ir import Operator, dtype
from amos.ir.epilogue import Node

__all__ = ["AluStep", "alu_steps"]

#: Numbers that an instruction has room for.
_IMMEDIATES = range(-(2**15), 2**15)


@dataclass(frozen=True)
class AluStep:
    """An operation on each accumulator and a number; see
    :class:`amos.codegen.vta.instructions.Alu`."""

    opcode: str
    immediate: int


def alu_steps(op: Operator) -> tuple[list[AluStep], str]:
    """What the ALU does before results are stored, and the dtype that they are stored as.

    Raises:
        BuildError: the ALU does not have it.
    """
    if op.epilogue is None:
        return [], "int32"
    kind = op.epilogue.result("int32")
    if not dtype(kind).is_integer:
        raise BuildError(f"VTA: expected an epilogue of integers, got {op.epilogue}")
    steps = list(_steps(op.epilogue.expression, str(op.epilogue)))
    if kind != "int32":
        low, high = dtype(kind).limits
        if not {int(low), int(high)} <= set(_IMMEDIATES):
            raise BuildError(f"VTA: no immediate is {high}, the largest {dtype(kind).short}")
        steps += [AluStep("max", int(low)), AluStep("min", int(high))]
    return steps, kind


def _steps(node: Node, whole: str) -> Iterator[AluStep]:
    """The operations of an expression, of which one side always is a number."""
    if node.name == "acc":
        return
    numbers = [each for each in node.arguments if each.name == "number"]
    others = [each for each in node.arguments if each.name != "number"]
    known = node.name in ("add", "subtract", "max", "min", "relu", "clip", "round")
    wrong = node.name == "subtract" and node.arguments[0].name == "number"
    if not known or len(others) != 1 or wrong:
        raise BuildError(
            f"VTA: expected sums, max, min and clip with numbers, got {node} in {whole}"
        )
    yield from _steps(others[0], whole)
    values = [each.value for each in numbers]
    if any(not isinstance(value, int) for value in values):
        raise BuildError(f"VTA: expected whole numbers, got {node} in {whole}")
    steps = {
        "add": ["add"],
        "subtract": ["add"],
        "max": ["max"],
        "min": ["min"],
        "relu": ["max"],
        "clip": ["max", "min"],
        "round": [],
    }[node.name]
    if node.name == "relu":
        values = [0]
    for opcode, value in zip(steps, values, strict=True):
        number = -int(value) if node.name == "subtract" else int(value)
        if number not in _IMMEDIATES:
            raise BuildError(f"VTA: {value} does not fit the 16 bits of an immediate: {node}")
        yield AluStep(opcode, number)
