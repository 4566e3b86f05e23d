"""Fusion of two operators in one kernel, with reasons (Hidet, section 4.2).

A consumer that computes one element from each element of the producer (a bijection) becomes
the producer's epilogue, *behind* it. A producer without a reduction (an injection) becomes the
consumer's prologue, *before* it. A consumer that reduces the producer's elements becomes a
further result, *beside* its output. Each requires a proof that the consumer reads exactly the
elements that the producer stores; see :mod:`amos.validate.bijection`. Both operators then form
one expression (:mod:`amos.validate.composition`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from amos.errors import OperatorError
from amos.ir import Affine, BufferLoad, Operator, Store, dtype
from amos.ir.epilogue import ACC, Epilogue
from amos.ir.expression import FLOATS, INTEGERS, Node
from amos.ir.limits import dictionary
from amos.ir.prologue import Prologue
from amos.ir.result import Combination, Result
from amos.ir.tokens import to_one_line
from amos.validate.bijection import Substitution, Visits, substitution
from amos.validate.composition import Unfusable, Value, elementwise_value, substitute
from amos.validate.fused_elements import elements, input_value, map_store, stored_elements
from amos.validate.reasons import quote_names
from amos.validate.verdict import Verdict


@dataclass(frozen=True)
class FusionVerdict(Verdict):
    """Whether two operators can be fused; true if they can.

    ``rule`` is ``"behind"``, where the consumer becomes the producer's epilogue and output,
    ``"before"``, where the producer becomes the consumer's prologue, ``"beside"``, where the
    consumer becomes a further result, or ``"fusion"`` where none of these holds; ``wrong``
    then says why.

    Attributes:
        how: the role of one operator in the other; empty if they do not fuse.
        fused: the operator that computes both.
    """

    how: str = ""
    fused: Operator | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self:
            return f"fusable ({self.rule}): {self.how}"
        return f"not fusable: {'; '.join(self.reasons)}"


def fusable(
    producer: str | Operator,
    consumer: str | Operator,
    extents: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> FusionVerdict:
    """Judge whether a consumer can be computed in its producer's kernel, or the other way round.

    The verdict is exact for indices: elements are not compared one by one, and
    extents may be of any size. If it is true, ``fused`` stores what the consumer would,
    bit for bit in integers; floats are rounded where the
    epilogue or the prologue says. The producer's output itself is not stored any more,
    unless the consumer is a further result.

    Args:
        producer: an operator, or its text, optionally followed by ``then`` and an epilogue.
        consumer: likewise; it reads the producer's output by its name.
        extents: extents of the iterations of texts; each takes those that it has, and a
            consumer those of the producer that it does not name.
        dtypes: dtypes of the tensors of texts.

    Raises:
        ParseError: a text is no statement.
        OperatorError: extents or dtypes do not fit.

    >>> sizes = dict(i=4, j=8, k=16)
    >>> print(fusable("y[i,j] += a[i,k] * b[k,j]", "z[j,i] = y[i,j] * s[j]", sizes))
    fusable (behind): as the epilogue acc * s[j] and the output z[j, i]
    >>> print(fusable("y[i] = x[i] * s[]", "z[j] += y[k] * b[k,j]", dict(i=16, j=8, k=16)))
    fusable (before): as the prologue y[i] = x[i] * s[]
    >>> print(fusable("y[i,j] += a[i,k] * b[k,j]", "z[i] max= y[i,j]", sizes))
    fusable (beside): as the further result z[i] max= acc; CUDA kernels then do not split the \
reduction over `k`
    """
    sizes, kinds = dictionary(extents, "extents"), dictionary(dtypes, "dtypes")
    first = _operator(producer, sizes, kinds, None)
    second = _operator(consumer, {**first.extents, **sizes}, kinds, first)
    if obstacle := _explain_mismatch(first, second):
        return FusionVerdict("fusion", (obstacle,))
    accumulated = first.output.tensor
    if first.epilogue is None:
        read = {tensor.name: tensor.dtype for tensor in second.inputs if tensor.dtype}
        first = first.with_dtypes({n: kind for n, kind in read.items() if n == accumulated.name})
    reasons: list[str] = []
    places = [("behind", _fuse_as_epilogue), ("before", _fuse_as_prologue)]
    if any(it.extent > 1 for it in second.reduce):
        places.append(("beside", _fuse_as_result))
    for place, attempt in places:
        try:
            fused, how = attempt(first, second)
        except (Unfusable, OperatorError) as error:
            reasons.append(f"{place}: {error}")
        else:
            return FusionVerdict(rule=place, how=how, fused=fused)
    return FusionVerdict("fusion", tuple(reasons))


def fuse(producer: Operator, consumer: Operator) -> Operator:
    """Fuse both into one operator; see :func:`fusable`. An OperatorError says why there is none."""
    verdict = fusable(producer, consumer)
    if verdict.fused is None:
        raise OperatorError(f"{consumer.name!r} behind {producer.name!r}: {verdict}")
    return verdict.fused


def _operator(
    text: str | Operator,
    extents: Mapping[str, int],
    dtypes: Mapping[str, str],
    producer: Operator | None,
) -> Operator:
    """Parse an operator with what concerns it; it reads the producer's output unchanged."""
    if isinstance(text, Operator):
        return text
    statement, _, epilogue = to_one_line(text).partition(" then ")
    shapes, kinds = {}, dict(dtypes)
    if producer is not None:
        shapes[producer.result.name] = producer.result.shape
        kinds.pop(producer.result.name, None)
        if producer.result.dtype is not None:
            kinds[producer.result.name] = producer.result.dtype
    base, extra = _names(statement), _names(epilogue)

    def of(names: set[str], values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in names}

    op = Operator.parse(statement, of(base, extents), of(base, kinds), shapes=of(base, shapes))
    if not epilogue:
        return op
    return op.with_epilogue(epilogue, of(extra - base, kinds), of(extra - base, shapes))


def _names(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _explain_mismatch(producer: Operator, consumer: Operator) -> str:
    """Explain why a consumer does not read the producer's result; empty if it does."""
    result = producer.result
    names = {tensor.name: tensor for tensor in consumer.inputs}
    if result.name not in names:
        return f"the consumer does not read `{result.name}`; it reads {quote_names([*names])}"
    tensor = names[result.name]
    if tensor.shape != result.shape:
        return f"`{result.name}` is {result.shape}, and the consumer reads {tensor.shape}"
    if tensor.dtype is not None and result.dtype not in (None, tensor.dtype):
        return f"`{result.name}` is {result.dtype}, and the consumer reads {tensor.dtype}"
    return ""


def _fuse_as_epilogue(producer: Operator, consumer: Operator) -> tuple[Operator, str]:
    if summed := [it.name for it in consumer.reduce if it.extent > 1]:
        raise Unfusable(
            f"the consumer sums over {quote_names(summed)}, and an epilogue has one element"
        )
    if consumer.further:
        raise Unfusable("the consumer has several results, and an epilogue is one")
    value, here = elements(producer, consumer)
    epilogue, store = value.epilogue(), map_store(consumer, here)
    fused = _with_store(replace(producer, epilogue=epilogue), store)
    how = f"the epilogue {epilogue} and the output {store}" if epilogue else f"the output {store}"
    return fused, f"as {how}"


def _fuse_as_result(producer: Operator, consumer: Operator) -> tuple[Operator, str]:
    compute = consumer.compute
    if consumer.further:
        raise Unfusable("the consumer has several results, and a further result is one")
    if compute.combiner == "*":
        raise Unfusable(
            "a further result adds, or takes the largest or smallest, and multiplies not"
        )
    value, here = elements(producer, replace(consumer, epilogue=None))
    store = map_store(consumer, here)
    for name in sorted(store.names):
        steps = (
            digit.extent(producer.extents[name])
            for digit in store.digits
            if digit.iteration == name
        )
        if 1 < prod(steps) < producer.extents[name]:
            raise Unfusable(
                f"`{store}` keeps a part of `{name}`, and a further result all or nothing"
            )
    epilogue = value.epilogue() or Epilogue(value.node)
    sign: Combination = f"{compute.combiner}="  # type: ignore[assignment]
    result = _with_last(Result(store, epilogue, sign), producer, consumer, here)
    how = f"as the further result {result}"
    if summed := [it.name for it in producer.reduce if it.extent > 1]:
        how += f"; CUDA kernels then do not split the reduction over {quote_names(summed)}"
    return replace(producer, further=(*producer.further, result)), how


def _with_last(
    result: Result, producer: Operator, consumer: Operator, here: Substitution
) -> Result:
    """Apply the consumer's epilogue to a reduction when it is complete."""
    final, last = consumer.output.tensor.dtype, consumer.epilogue
    if last is not None:
        last = replace(last, expression=_map_last(last, producer, consumer, here))
    kind = result.tensor(producer.output.tensor.dtype).dtype
    if None in (kind, final) or kind == final:
        return replace(result, last=last)
    # The largest element is one of them, so nothing is wrapped around or rounded.
    scalar, exact = dtype(str(final)), result.combination != "+="
    alike = scalar.is_integer == dtype(str(kind)).is_integer and final in (*INTEGERS, *FLOATS)
    if not alike or (scalar.is_integer and not exact):
        raise Unfusable(f"`{result}` would be {kind}, and the consumer's result is {final}")
    if last is None:
        return replace(result, last=Epilogue(Node(ACC), final))
    if not exact:
        rounded = Node(scalar.short, (Node(ACC),))
        last = replace(last, expression=substitute(last.expression, _read_node, rounded))
    return replace(result, last=last)


def _map_last(last: Epilogue, producer: Operator, consumer: Operator, here: Substitution) -> Node:
    """Express the epilogue of a consumer's reduction by the producer's iterations."""
    name = producer.result.name

    def read(load: BufferLoad) -> Value:
        if load.tensor.name == name:
            raise Unfusable(f"{last} behind the consumer's reduction reads `{name}` again")
        return input_value(load, here, consumer.extents)

    return substitute(last.expression, read)


def _read_node(load: BufferLoad) -> Value:
    return Value(Node("read", load=load), None)


def _with_store(producer: Operator, store: Store) -> Operator:
    """Store the producer's results elsewhere, or only rename their tensor."""
    output = producer.output
    if (store.indices, store.tensor.shape) != (output.indices, output.tensor.shape):
        return replace(producer, store=store)
    named = replace(output, tensor=replace(output.tensor, name=store.tensor.name))
    return replace(producer, compute=replace(producer.compute, dst=named), store=None)


def _fuse_as_prologue(producer: Operator, consumer: Operator) -> tuple[Operator, str]:
    """Make the producer the consumer's prologue, or inline it in one or in the epilogue."""
    name = producer.result.name
    if summed := [it.name for it in producer.reduce if it.extent > 1]:
        raise Unfusable(
            f"the producer sums over {quote_names(summed)}, and a prologue over nothing"
        )
    if producer.further:
        raise Unfusable("the producer has several results, and a prologue is one")
    if name in {load.tensor.name for each in consumer.further for load in each.epilogue.loads}:
        raise Unfusable(f"a further result of the consumer reads `{name}`")
    dimensions, here = _invert(producer)

    def read(load: BufferLoad) -> Value:
        if load.tensor.name != name:
            return Value(Node("read", load=load), load.tensor.dtype)
        by = dict(zip(dimensions, load.indices, strict=True))
        indices = {it: index.substitute(by) for it, index in here.indices.items()}
        element = replace(here, indices=indices)
        return elementwise_value(
            producer, lambda access: input_value(access, element, producer.extents)
        )

    fused, places = consumer, []
    if consumer.prologue(name) is None and name in {s.tensor.name for s in consumer.sources}:
        indices_of_result = tuple(Affine(((each, 1),)) for each in dimensions)
        value = read(BufferLoad(tensor=producer.result, indices=indices_of_result))
        fused = _with_prologue(producer, consumer, value, dimensions)
        places.append(f"the prologue {fused.prologues[-1]}")
    for prologue in consumer.prologues:
        if name in {load.tensor.name for load in prologue.loads}:
            inner = replace(prologue, expression=substitute(prologue.expression, read))
            prologues = (inner if each is prologue else each for each in fused.prologues)
            fused = replace(fused, prologues=tuple(prologues))
            places.append(f"part of the prologue {inner}")
    epilogue = consumer.epilogue
    if epilogue is not None and name in {load.tensor.name for load in epilogue.loads}:
        epilogue = replace(epilogue, expression=substitute(epilogue.expression, read))
        fused = replace(fused, epilogue=epilogue)
        places.append(f"part of the epilogue {epilogue}")
    return fused, f"as {' and '.join(places)}"


def _with_prologue(
    producer: Operator, consumer: Operator, value: Value, dimensions: tuple[str, ...]
) -> Operator:
    """Give one of the consumer's sources this value."""
    name, kind = producer.result.name, value.dtype or value.kind
    prologue = Prologue(expression=value.node, tensor=name, dimensions=dimensions, dtype=kind)
    constants = consumer.constants
    if not {load.tensor.name for load in prologue.loads} <= {*producer.constants}:
        constants = tuple(each for each in constants if each != name)
    return replace(
        consumer.with_dtypes({name: kind}),
        prologues=(*consumer.prologues, prologue),
        constants=constants,
    )


def _invert(producer: Operator) -> tuple[tuple[str, ...], Substitution]:
    """Name the dimensions of the producer's result, and express its iterations by them."""
    output, shape = producer.stored, producer.result.shape
    plain = [index.names[0] if len(index.names) == 1 else "" for index in output.indices]
    dimensions = tuple(
        name if name and plain.count(name) == 1 else _make_unused_name(f"d{d}", producer)
        for d, name in enumerate(plain)
    )
    box = dict(zip(dimensions, shape, strict=True))
    all_elements = Visits.of([Affine(((name, 1),)) for name in dimensions], box)
    write = stored_elements(producer)
    here = None if output.digits else substitution(all_elements, write)
    if here is not None and not here.digits:
        indices = dict.fromkeys(producer.extents, Affine()) | dict(here.indices)
        return dimensions, replace(here, indices=indices)
    if write.points != all_elements.points:
        raise Unfusable(
            f"`{output}` stores {write.points} of {all_elements.points} elements, and a prologue "
            "gives each of them"
        )
    raise Unfusable(f"the indices of `{output}` do not give the producer's iterations, one each")


def _make_unused_name(name: str, op: Operator) -> str:
    while name in op.extents:
        name += "_"
    return name
