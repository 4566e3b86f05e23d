"""Reductions of an operator's results in the test program of an export."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from amos.codegen.c.source import Parameter
from amos.export.loops import flat, loop, named
from amos.ir import Operator, dtype
from amos.ir.result import Result


@dataclass(frozen=True)
class Reduction:
    """A further result that several elements become, in int64_t or double.

    Attributes:
        operator: whose result it is.
        result: the reduction.
        alone: the operator with its elements for its only result.
        output: the parameter of the kernel.
    """

    operator: Operator
    result: Result
    alone: Operator
    output: Parameter

    @property
    def _kind(self) -> str:
        integer = dtype(str(self.alone.result_dtype)).is_integer
        return "int64_t" if integer else "double"

    def _at(self, prefix: str) -> str:
        return f"{named(self.output.tensor, prefix)}[{flat(self.result.store)}]"

    def before(self) -> list[str]:
        """C of arrays that have put nothing together yet."""
        ends = ("INT64_MAX", "INT64_MIN") if self._kind == "int64_t" else ("HUGE_VAL", "-HUGE_VAL")
        start = {"+=": "0", "min=": ends[0], "max=": ends[1]}[self.result.combination]
        name, count = named(self.output.tensor, "all"), self.output.elements
        size = named(self.output.tensor, "size")
        return [
            f"  {self._kind} *{name} = allocate({count}, sizeof *{name});",
            f"  double *{size} = allocate({count}, sizeof *{size});",
            f"  for (size_t i = 0; i < {count}; ++i) {name}[i] = {start};",
        ]

    def added(self, element: str) -> str:
        """C statement that puts an element to the others."""
        if self.alone.result_dtype == "bfloat16":
            element = f"from_bfloat16({element})"
        every, symbol = self._at("all"), {"max=": ">", "min=": "<"}.get(self.result.combination)
        step = f"{every} += next;"
        if symbol is not None:
            step = f"if (next {symbol} {every}) {every} = next;"
        size = f"{self._at('size')} += fabs((double)next);"
        return f"{{ {self._kind} next = {element}; {step} {size} }}"

    def after(self) -> list[str]:
        """C of loops that count the elements where the kernel says otherwise."""
        names = self.result.store.names
        loops = [it for it in self.operator.spatial if it.name in names]
        terms = prod(it.extent for it in self.operator.spatial if it.name not in names)
        got, every = self._at("of"), self._at("all")
        wrong = f"{got} != ({self.output.kind}){every}"
        if self._kind == "double" and self.result.combination == "+=":
            wrong = f"!(fabs({got} - {every}) <= {terms + 2} * 0x1p-23 * {self._at('size')})"
        heads = ["  " * depth + loop(it) for depth, it in enumerate(loops, 1)]
        return [*heads, f"{'  ' * (len(loops) + 1)}wrong += {wrong};"]
