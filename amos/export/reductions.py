"""Reductions of an operator's results in the test program of an export."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from amos.codegen.c.source import Parameter
from amos.export.loops import InC, flat, loop, named, stored
from amos.ir import Operator
from amos.ir.epilogue import Epilogue
from amos.ir.result import Result

#: Share of a float of a type that it may be off by beside that; an integer by 1.
_SHARE = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Holds the end of a sum against those of the least and the largest that it may have been.
NEAR = """static inline int is_near(double a, double b, double low, double high, double share) {
  double off = fmax(fabs(low - b), fabs(high - b));
  return a == b || fabs(a - b) <= off + (share > 0 ? share * fabs(b) : 1);
}
"""


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
        return "int64_t" if self._together == "int32" else "double"

    @property
    def _together(self) -> str:
        return self.result.together(str(self.operator.output.tensor.dtype))

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
        bound = "0"
        if self._kind == "double" and self.result.combination == "+=":
            bound = f"{terms + 2} * 0x1p-23 * {self._at('size')}"
        if self.result.last is not None:
            wrong = self._is_wrong(self.result.last, got, bound)
        elif bound == "0":
            wrong = f"{got} != ({self.output.kind}){every}"
        else:
            wrong = f"!(fabs({got} - {every}) <= {bound})"
        heads = ["  " * depth + loop(it) for depth, it in enumerate(loops, 1)]
        return [*heads, f"{'  ' * (len(loops) + 1)}wrong += {wrong};"]

    def _is_wrong(self, last: Epilogue, got: str, bound: str) -> str:
        """C expression that compares an element with the end of a sum that may be off so much."""
        kind, final = self._together, last.result(self._together)

        def wide(value: str) -> str:
            return f"(double)from_bfloat16({value})" if final == "bfloat16" else f"(double){value}"

        def ended(value: str) -> str:
            acc = f"(({'int32_t' if kind == 'int32' else 'float'})({value}))"
            return wide(stored(last.compute(acc, kind, InC()), last.kind(kind), final))

        every = self._at("all")
        if bound == "0":
            return f"{wide(got)} != {ended(every)}"
        ends = ", ".join(ended(f"{every} {sign} {bound}") for sign in "-+")
        return f"!is_near({wide(got)}, {ended(every)}, {ends}, {_SHARE.get(final, 0.0)!r})"
