"""Rows that are cut: what a statement of a chain becomes when an iteration comes in parts.

Sums, maxima and minima over a cut iteration are *running*: each part is combined with what the
parts before it came to. An exponential of a difference to a running maximum is off by a factor as
long as that maximum grows, ``exp(x - m) = exp(x - m') * exp(m' - m)``, and so is every sum that is
linear in it. Therefore these sums are multiplied by ``exp(m' - m)`` whenever the maximum becomes
``m`` (Milakov and Gimelshein, 2018; Dao et al., *FlashAttention*, 2022). A quotient by a running
sum is taken at the end, of what was summed: there is less of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from amos.chains.boxes import user_name
from amos.chains.row_values import Divisor, RowValue, widen
from amos.errors import ScheduleError
from amos.ir import Affine, Assignment, BufferLoad, Chain, Epilogue, Iteration, Operator, dtype
from amos.ir.chain import Step, loads_of
from amos.ir.epilogue import ACC
from amos.ir.expression import EXP_NEGATIVE, SHARE, SHARE_OR_NAN, SHARE_OR_ZERO, Node
from amos.ir.expression_parser import functions

#: Where a maximum begins that sums are relative to: finite, so that a part that is all infinite
#: leaves numbers.
_LOWEST = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38}
_LOWEST_FLOAT32 = -3.4028234663852886e38
#: Operations that divide by a sum.
_QUOTIENTS = ("divide", SHARE, SHARE_OR_ZERO)


@dataclass(frozen=True)
class Phases:
    """The steps of a chain with a cut iteration.

    Attributes:
        before: steps before the parts.
        body: steps of each part.
        after: steps behind all of them.
    """

    before: tuple[Step, ...]
    body: tuple[Step, ...]
    after: tuple[Step, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return (*self.before, *self.body, *self.after)


@dataclass
class _Cutter:
    """Sorts the steps of a chain into phases.

    Attributes:
        chain: the chain.
        axis: the iteration that is cut.
        parts: how many parts it comes in.
    """

    chain: Chain
    axis: str
    parts: int
    values: dict[str, RowValue] = field(default_factory=dict)
    before: list[Step] = field(default_factory=list)
    body: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)
    late: set[str] = field(default_factory=set)
    running: list[tuple[Step, BufferLoad, str]] = field(default_factory=list)
    scales: set[str] = field(default_factory=set)

    def sort(self) -> Phases:
        for step in self.chain.steps:
            if self.axis in step.extents:
                self._cut(step)
                continue
            names = {load.tensor.name for load in loads_of(step)}
            if parts := [n for n in names if n in self.values and not self.values[n].combiner]:
                self._refuse(step, f"reads single elements of {parts[0]!r} along {self.axis!r}")
            if names & (self.late | self.values.keys()):
                self.after.append(step)
                self.late.add(step.output.tensor.name)
            else:
                self.before.append(step)
        for step, target, combiner in self.running:
            start = _start(combiner, target, finite=target.tensor.name in self.scales)
            self.before.append(_elementwise(step, target, Node("number", value=start)))
        return Phases(tuple(self.before), tuple(self.body), tuple(self.after))

    def _refuse(self, step: Step, why: str) -> None:
        statement = self.chain.statement_of(step.output.tensor.name)
        raise ScheduleError(
            f"{statement.text!r} cannot be computed in parts of {self.axis!r}: it {why}"
        )

    def _cut(self, step: Step) -> None:
        """Sort a step that has the cut iteration."""
        reads = list(loads_of(step))
        if late := [load for load in reads if load.tensor.name in self.late]:
            self._refuse(
                step,
                f"reads {user_name(late[0].tensor.name)!r}, which has values behind all parts only",
            )
        own = Affine(((self.axis, 1),))
        for load in (*reads, step.output):
            cut = [index for index in load.indices if self.axis in index.names]
            inner = load.tensor.name in self.values or load is step.output
            if inner and any(index != own for index in cut):
                self._refuse(step, f"reads {load} beyond the part")
            if cut and load is not step.output and (value := self._value(load)) and value.combiner:
                self._refuse(step, f"reads {load} of rows by their own elements")
        is_reduced = any(it.name == self.axis and it.is_reduce for it in step.iterations)
        (self._run if is_reduced else self._slice)(step)

    def _value(self, load: BufferLoad) -> RowValue | None:
        """Return the value that a step reads, by its iterations; ``None`` of other tensors."""
        value = self.values.get(load.tensor.name)
        return None if value is None else value.at(load)

    def _values_of(self, step: Step) -> list[RowValue]:
        values = map(self._value, dict.fromkeys(loads_of(step)))
        return [value for value in values if value is not None]

    def _slice(self, step: Step) -> None:
        """Add a step that computes parts of rows."""
        name, values = step.output.tensor.name, self._values_of(step)
        running = [value for value in values if value.combiner]
        scaled = [value for value in values if not value.combiner and value.is_partial]
        if not running and not scaled:
            self.body.append(step)
            self.values[name] = RowValue(step.output, step.output)
            return
        if not isinstance(step, Assignment):
            self._refuse(step, "is a product along the row of what all of the row decides")
            return
        if name == self.chain.result.name:
            if self.parts > 1 or any(value.divisors for value in values):
                self._refuse(step, "is the result, and needs the whole row")
            self.body.append(replace(step, expression=self._put(step.expression)))
            return
        if step.reduce:
            self._refuse(step, "combines, for single elements, what all of the row decides")
        linear = self._exponential(step) or self._quotient(step) or self._multiple(step)
        if linear is None:
            which = user_name((running or scaled)[0].read.tensor.name)
            self._refuse(
                step,
                f"needs {which!r} of the whole row, and has no form that can be rescaled",
            )
            return
        expression, value = linear
        if expression.load is not None and expression.load.tensor.dtype == step.output.tensor.dtype:
            self.values[name] = replace(value, written=step.output, read=expression.load)
            return
        self.body.append(replace(step, expression=expression))
        self.values[name] = replace(value, written=step.output, read=step.output)

    def _exponential(self, step: Assignment) -> tuple[Node, RowValue] | None:
        """Rescale ``exp(x - m)`` with a running maximum ``m``."""
        node = step.expression
        if node.name not in ("exp", EXP_NEGATIVE) or node.arguments[0].name != "subtract":
            return None
        value, top = node.arguments[0].arguments
        maximum = self._value(top.load) if top.load else None
        if maximum is None or maximum.combiner != "max":
            return None
        if any(load.tensor.name in self.values and self._moves(load) for load in value.loads):
            return None
        self.scales.add(maximum.read.tensor.name)
        return self._put(node), RowValue(step.output, step.output, maximum.read)

    def _moves(self, load: BufferLoad) -> bool:
        value = self.values[load.tensor.name]
        return bool(value.combiner) or value.is_partial

    def _quotient(self, step: Assignment) -> tuple[Node, RowValue] | None:
        """Rescale ``x / l`` of a part and a running sum."""
        node = step.expression
        if node.name not in _QUOTIENTS:
            return None
        dividend, divisor = node.arguments
        if dividend.load is None or divisor.load is None:
            return None
        partial, total = self._value(dividend.load), self._value(divisor.load)
        if partial is None or partial.combiner or total is None or total.combiner != "+":
            return None
        # Of what is relative to one maximum, the quotient is relative to none.
        if partial.scale != total.scale or total.divisors:
            return None
        read = replace(dividend, load=partial.read)
        # A maximum that runs begins at a finite number, so that no NaN says that a row has none.
        name = SHARE_OR_NAN if node.name == SHARE and self.parts > 1 else node.name
        return read, replace(partial, divisors=(*partial.divisors, Divisor(total.read, name)))

    def _multiple(self, step: Assignment) -> tuple[Node, RowValue] | None:
        """Multiply or divide a part by a value that does not depend on whole rows."""
        node, factors = step.expression, []
        while node.name in ("multiply", "divide"):
            factors.append(node.arguments[1])
            node = node.arguments[0]
        partial = self._value(node.load) if node.load else None
        if partial is None or partial.combiner:
            return None
        if any(self._moves(x) for f in factors for x in f.loads if x.tensor.name in self.values):
            return None
        return self._put(step.expression), partial

    def _put(self, node: Node) -> Node:
        """Replace reads in an expression by the values' places."""
        return node.with_loads(self._place)

    def _place(self, load: BufferLoad) -> BufferLoad:
        value = self._value(load)
        return load if value is None or not value.is_partial or value.combiner else value.read

    def _run(self, step: Step) -> None:
        """Add a step that combines over parts."""
        values = self._values_of(step)
        combiner = step.combiner if isinstance(step, Assignment) else "+"
        if running := [value for value in values if value.combiner]:
            self._refuse(step, f"needs {user_name(running[0].read.tensor.name)!r} of the whole row")
        scaled = [value for value in values if value.is_partial]
        if scaled and not self._is_linear(step, scaled):
            self._refuse(step, f"is not linear in {user_name(scaled[0].read.tensor.name)!r}")
        has_epilogue = isinstance(step, Operator) and step.epilogue is not None
        if has_epilogue and (scaled or self.parts > 1):
            self._refuse(step, "stores what its epilogue makes of the whole row")
        scale = scaled[0].scale if scaled else None
        divisors = scaled[0].divisors if scaled else ()
        if scaled and any(load.padded for load in loads_of(step)):
            self._refuse(step, f"pads {scaled[0].written}, which is scaled at the end")
        spatial = {it.name for it in step.spatial}
        for load in (*filter(None, [scale]), *(each.total for each in divisors)):
            if any(not spatial.issuperset(index.names) for index in load.indices):
                self._refuse(step, f"sums over {load}, by which its terms are scaled")
        step = self._reading(step)
        name = step.output.tensor.name
        kind = dtype(str(step.output.tensor.dtype))
        sums_parts = self.parts > 1 and combiner == "+"
        if sums_parts and kind.is_integer and kind.bits < 32:
            self._refuse(step, f"is rounded to {kind.spelled} behind its sum")
        output = widen(step.output) if sums_parts else step.output
        # Tiles may overlap, so that a result is stored once and never read again.
        late = bool(divisors) or output is not step.output
        late |= self.parts > 1 and name == self.chain.result.name
        target = rename(output, f"{name}.total") if late else output
        if self.parts == 1:
            self._once(step, target, divisors, combiner, scale)
            return
        partial = rename(output, f"{name}.part")
        self.body.append(writing(step, partial))
        self.body.extend(self._combine(step, target, partial, combiner, scale))
        self.running.append((step, target, combiner))
        self.values[name] = RowValue(step.output, target, scale, divisors, combiner)
        if late:
            self._finish(step, target, divisors)

    def _once(
        self,
        step: Step,
        target: BufferLoad,
        divisors: tuple[Divisor, ...],
        combiner: str,
        scale: BufferLoad | None,
    ) -> None:
        """Add a row in one part, which needs no combining."""
        if divisors and isinstance(step, Operator):
            value = _divide(Node(ACC), divisors)
            wide, kind = widen(step.output), str(step.output.tensor.dtype)
            epilogue = Epilogue(value, None if wide == step.output else kind)
            compute = replace(step.compute, dst=wide)
            self.body.append(replace(step, compute=compute, epilogue=epilogue))
            self.late.add(step.output.tensor.name)
            return
        self.body.append(writing(step, target))
        name = step.output.tensor.name
        self.values[name] = RowValue(step.output, target, scale, divisors, combiner)
        if divisors:
            self._finish(step, target, divisors)

    def _finish(self, step: Step, target: BufferLoad, divisors: tuple[Divisor, ...]) -> None:
        """Divide a sum by what its parts were yet to be divided by."""
        self.after.append(_elementwise(step, step.output, _divide(_read(target), divisors)))
        del self.values[step.output.tensor.name]
        self.late.add(step.output.tensor.name)

    def _is_linear(self, step: Step, scaled: Sequence[RowValue]) -> bool:
        reads = [x for x in loads_of(step) if x.tensor.name in self.values]
        reads = [x for x in reads if self.values[x.tensor.name].is_partial]
        if len(reads) != 1 or len(scaled) != 1:
            return False
        if isinstance(step, Operator):
            return True
        return step.combiner == "+" and (
            step.expression.load is not None or self._multiple(step) is not None
        )

    def _reading(self, step: Step) -> Step:
        """Return a step that reads values where they are."""
        if isinstance(step, Operator):
            return step.with_loads(lambda x: x if x is step.output else self._place(x))
        return replace(step, expression=self._put(step.expression))

    def _combine(
        self,
        step: Step,
        target: BufferLoad,
        partial: BufferLoad,
        combiner: str,
        scale: BufferLoad | None,
    ) -> Iterator[Step]:
        """Take a part up into what runs."""
        if combiner == "+":
            total = _read(target)
            if scale is not None:
                factor = _read(rename(scale, f"{scale.tensor.name}.factor"))
                total = Node("multiply", (total, factor))
            yield _elementwise(step, target, Node("add", (total, _read(partial))))
            return
        both = Node(combiner, (_read(target), _read(partial)))
        if combiner == "max":
            # What is relative to this maximum changes by that factor.
            power = Node("subtract", (_read(target), both))
            factor = Node(EXP_NEGATIVE, (power,), function=functions()[EXP_NEGATIVE])
            yield _elementwise(step, rename(target, f"{target.tensor.name}.factor"), factor)
        yield _elementwise(step, target, both)


def cut_rows(chain: Chain, axis: str, parts: int) -> Phases:
    """Return the steps of a chain one of whose iterations is cut into parts.

    Args:
        axis: an iteration that is reduced.
        parts: how many; of one, only quotients are put off.

    Raises:
        ScheduleError: parts would change the result; the message says of which statement.
    """
    phases = _Cutter(chain, axis, parts).sort()
    return _without_idle(phases, chain.result.name)


def _without_idle(phases: Phases, result: str) -> Phases:
    """Drop the steps whose results nothing reads."""
    read, needed = {result}, list[Step]()
    for step in reversed(phases.steps):
        if step.output.tensor.name in read:
            needed.append(step)
            read.update(load.tensor.name for load in loads_of(step))
    used = {id(step) for step in needed}
    before, body, after = (
        tuple(step for step in each if id(step) in used)
        for each in (phases.before, phases.body, phases.after)
    )
    return Phases(before, body, after)


def rename(load: BufferLoad, name: str) -> BufferLoad:
    """Return the access to another tensor of the same shape."""
    return replace(load, tensor=replace(load.tensor, name=name))


def writing(step: Step, target: BufferLoad) -> Step:
    """Return a step that writes to another tensor."""
    if isinstance(step, Assignment):
        return replace(step, destination=target)
    return replace(step, compute=replace(step.compute, dst=target))


def _read(load: BufferLoad) -> Node:
    return Node("read", load=load)


def _divide(value: Node, divisors: tuple[Divisor, ...]) -> Node:
    for divisor in divisors:
        pair = value, _read(divisor.total)
        value = Node(divisor.quotient, pair, function=functions().get(divisor.quotient))
    return value


def _start(combiner: str, target: BufferLoad, *, finite: bool) -> float:
    """Return the initial value of a running reduction."""
    kind = dtype(str(target.tensor.dtype))
    if combiner == "+":
        return 0 if kind.is_integer else 0.0
    if kind.is_integer:
        return kind.limits[combiner == "min"]
    if finite:
        return _LOWEST.get(kind.name, _LOWEST_FLOAT32)
    return -math.inf if combiner == "max" else math.inf


def _elementwise(step: Step, target: BufferLoad, value: Node) -> Assignment:
    """Assign to each element that a step writes."""
    spatial: tuple[Iteration, ...] = tuple(it for it in step.iterations if not it.is_reduce)
    return Assignment(expression=value, destination=target, iterations=spatial)
