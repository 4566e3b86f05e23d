"""Text of a product in a chain that an instruction on vectors computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from amos.chains.loop_nest import Loop
from amos.chains.tiling import TiledStep
from amos.codegen.device.arithmetic import SUM, TextArithmetic
from amos.codegen.device.text import (
    StepSource,
    block,
    fragment_at,
    multiply_step,
    over_fragments,
    unroll,
)
from amos.ir import BufferLoad, Operator, dtype
from amos.ir.index_text import Value, text, variable
from amos.opencl.chains.product import VectorOperand, VectorProduct
from amos.opencl.codegen.text import vector_at, vector_type
from amos.opencl.plan import TYPES

#: The lane of a vector, and steps of the innermost reduction loop that are unrolled.
_LANE, _UNROLLED = "e", 4


@dataclass(frozen=True)
class ProductText:
    """Statements of the fragments that a work-item computes of a product.

    Attributes:
        local: the product on tensors that begin where the box of a tile does.
        values: variables of its loops; a loop of one trip has none.
        stride: elements between neighbours along a loop, of a load.
        space: address space of what a load reads.
        arithmetic: writes elements, and what is stored of a sum.
    """

    product: VectorProduct
    tiled: TiledStep
    local: Operator
    values: Mapping[str, Value]
    stride: Callable[[BufferLoad, str], int]
    space: Callable[[BufferLoad], str]
    arithmetic: TextArithmetic

    @cached_property
    def _numbers(self) -> dict[str, str]:
        """Names of loops that are tiled, which user's names cannot be."""
        return {it.name: str(n) for n, it in enumerate(self.local.iterations)}

    @cached_property
    def _tile(self) -> dict[str, int]:
        return {self._numbers[name]: n for name, n in self.product.tile.items() if n > 1}

    def _loops_of(self, load: BufferLoad) -> list[str]:
        """List the tiled loops that a load depends on."""
        own = (self._numbers[name] for name in self.product.spans if name in load.names)
        return [number for number in own if number in self._tile]

    @cached_property
    def _firsts(self) -> dict[str, str]:
        """C of where the values of a work-item begin, for loops that these do not divide."""
        firsts = {}
        for it in self.local.spatial:
            size, span = self.tiled.ranges[it.name].size, self.product.spans[it.name]
            if size % span:
                # The last ones begin earlier: they are computed twice, to the same values.
                start = text(self._value(it.name, span))
                firsts[it.name] = f"i_less({start}, {size - span})"
        return firsts

    def _value(self, loop: str, span: int) -> Value:
        return self.values.get(loop, 0) * span

    @cached_property
    def _at(self) -> dict[str, Value]:
        """Values of all loops at a fragment, before its lanes."""
        at: dict[str, Value] = {}
        for it in self.local.iterations:
            span, number = self.product.spans[it.name], self._numbers[it.name]
            size = self.tiled.ranges[it.name].size
            first = self._value(it.name, span)
            if it.name in self._firsts:
                first = variable(f"b_{number}", size - span + 1)
            fragment = variable(f"t_{number}", self._tile.get(number, 1))
            at[it.name] = first + fragment * self.product.lanes.get(it.name, 1)
        return at

    def _lane(self, operand: VectorOperand) -> dict[str, Value]:
        """Return values of all loops at a lane of a fragment."""
        lane = variable(_LANE, operand.elements)
        return {**self._at, operand.loop: self._at[operand.loop] + lane}

    def _read(self, number: int, slot: str) -> StepSource:
        """Return how fragments of a source are read."""
        operand = self.product.operands[number]
        load = self._load(number)
        kind, first = vector_type(operand.dtype, operand.elements), self._element(load, self._at)
        if operand.elements == 1:
            lines = [f"{slot} = {first};"]
        elif self.stride(load, operand.loop) == 1:
            lines = [f"{slot} = {self._vector(load, kind)};"]
        else:
            own = f"(({TYPES[operand.dtype]} *)&{slot})[{_LANE}]"
            lane = self._element(load, self._lane(operand))
            lines = unroll(_LANE, operand.elements, [f"{own} = {lane};"])
        return StepSource(f"{kind} {slot[0]}", self._loops_of(load), lines)

    def lines(self, loops: Sequence[Loop], names: Mapping[str, str]) -> list[str]:
        """Write all statements under loops of the reduction, with ``names`` of their variables."""
        product, tiled_loops = self.product, list(self._tile)
        result = product.operands[-1]
        kind, place = vector_type(result.dtype, result.elements), self._place
        whole = product.whole_source
        slots = ["b", "b"]
        slots[whole] = f"a[{fragment_at(self._tile, self._loops_of(self._load(whole)))}]"
        sources = [self._read(number, slot) for number, slot in enumerate(slots)]
        call = f"{place} = {call_name(product)}({', '.join([*slots, place])});"
        step = multiply_step(self._tile, tiled_loops, sources[whole], sources[1 - whole], call)
        for loop in reversed(loops):
            name = names[loop.name]
            head = f"for (int {name} = 0; {name} < {loop.extent}; ++{name}) {{"
            pragma = [f"#pragma unroll {min(loop.extent, _UNROLLED)}"] * (loop is loops[-1])
            step = [*pragma, head, *block(step), "}"]
        firsts = [f"const int b_{self._numbers[n]} = {c};" for n, c in self._firsts.items()]
        count = product.accumulators
        accumulators = [f"{kind} c[{count}];", *unroll("n", count, [f"c[n] = ({kind})(0);"])]
        stores = over_fragments(self._tile, tiled_loops, self._store())
        return ["{", *block([*firsts, *accumulators, "{", *block(step), "}", *stores]), "}"]

    def _element(self, load: BufferLoad, at: Mapping[str, Value]) -> str:
        self.arithmetic.at = at
        return self.arithmetic.element(load)

    def _vector(self, load: BufferLoad, kind: str, *, is_const: bool = True) -> str:
        space = self.space(load) + " const" * is_const
        return vector_at(kind, f"&{self._element(load, self._at)}", space)

    def _load(self, number: int) -> BufferLoad:
        return self.local.sources[self.product.mapping.order[number]]

    @property
    def _place(self) -> str:
        return f"c[{fragment_at(self._tile, list(self._tile))}]"

    def _store(self) -> list[str]:
        """Store a fragment of the result, by vectors or element by element."""
        result, load, by = self.product.operands[-1], self.local.output, self.arithmetic
        final = dtype(str(self.tiled.step.output.tensor.dtype)).name
        plain = self.local.epilogue is None and final == result.dtype
        if plain and result.elements > 1 and self.stride(load, result.loop) == 1:
            vector = vector_type(result.dtype, result.elements)
            return [f"{self._vector(load, vector, is_const=False)} = {self._place};"]
        at = self._lane(result) if result.elements > 1 else self._at
        target = self._element(load, at)
        value = by.write_stored(SUM, result.dtype, final)
        if self.local.epilogue is not None:
            value = by.write_result(self.local.epilogue, result.dtype)
        kind = TYPES[result.dtype]
        if result.elements == 1:
            return ["{", f"  const {kind} {SUM} = {self._place};", f"  {target} = {value};", "}"]
        own = f"const {kind} {SUM} = ((const {kind} *)&leaving)[{_LANE}];"
        lanes = unroll(_LANE, result.elements, [own, f"{target} = {value};"])
        vector = vector_type(result.dtype, result.elements)
        return ["{", f"  const {vector} leaving = {self._place};", *block(lanes), "}"]


def call_name(product: VectorProduct) -> str:
    """Name of the function of an instruction."""
    return f"call_{product.mapping.intrinsic.name}"
