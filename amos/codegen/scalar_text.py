"""Expressions as text of C and C++: each operation is a call, of a function for its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from amos.ir.expression import Function, inlined


class ScalarText:
    """The calls of an :class:`amos.ir.expression.Arithmetic`; reading and rounding is left open.

    ``f_add`` adds floats and ``i_add`` integers. Functions that the language defines are
    made functions of C as well.

    Args:
        types: how ``int32`` and ``float32`` are spelled.
        qualifier: what their definitions begin with.

    Attributes:
        operations: names of the operations that are called.
        functions: definition of each function that is called, after those that it calls.
    """

    def __init__(self, types: Mapping[str, str], qualifier: str) -> None:
        self.types, self.qualifier = types, qualifier
        self.operations: set[str] = set()
        self.functions: dict[str, str] = {}

    def number(self, value: float, kind: str) -> str:
        """A constant."""
        return f"{np.float32(value)!s}f" if kind == "float32" else f"({int(value)})"

    def apply(self, name: str, kind: str, values: list[Any]) -> str:
        """A call of an operation."""
        return self._called(name, kind, values)

    def call(self, function: Function, kind: str, values: list[Any]) -> str:
        """A call of a function, which is defined if it is not yet."""
        if function.once:
            return str(inlined(function, kind, values, self))
        text = self._called(function.name, kind, values)
        name = text.partition("(")[0]
        if name not in self.functions:
            body = function.applied([*function.parameters], kind, self)
            one = self.types[kind]
            parameters = ", ".join(f"{one} {each}" for each in function.parameters)
            self.functions[name] = (
                f"{self.qualifier} {one} {name}({parameters}) {{ return {body}; }}"
            )
        return text

    def _called(self, name: str, kind: str, values: list[Any]) -> str:
        name = f"{'f' if kind == 'float32' else 'i'}_{name.strip('_')}"
        self.operations.add(name)
        return f"{name}({', '.join(values)})"

    def read(self, load: Any, kind: str) -> str:
        """An element of a tensor, widened."""
        raise NotImplementedError

    def widened(self, value: str, dtype: str) -> str:
        """An accumulator as ``int32`` or ``float32``."""
        raise NotImplementedError

    def convert(self, value: str) -> str:
        """An ``int32`` as ``float32``."""
        raise NotImplementedError

    def rounded(self, value: str, kind: str, final: str) -> str:
        """A value rounded to a dtype, as ``int32`` or ``float32``."""
        raise NotImplementedError
