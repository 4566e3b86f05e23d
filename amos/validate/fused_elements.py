"""The elements that a producer stores and a consumer reads, at the same iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from amos.ir import BufferLoad, Operator, Store
from amos.ir.expression import Node
from amos.validate.bijection import Substitution, Visits, substitution
from amos.validate.composition import Unfusable, Value, accesses, elementwise_value, stored_value
from amos.validate.reasons import quote_names


def elements(producer: Operator, consumer: Operator) -> tuple[Value, Substitution]:
    """Return the consumer's expression for each element that the producer stores, and its point."""
    name = producer.result.name
    reads = {load.indices: load for load in accesses(consumer) if load.tensor.name == name}
    if len(reads) > 1:
        texts = quote_names([str(load) for load in reads.values()])
        raise Unfusable(f"the consumer reads {texts}, and an epilogue has one element")
    (here,) = (_bijection(producer, load, consumer.extents) for load in reads.values())
    value = stored_value(producer)

    def read(load: BufferLoad) -> Value:
        return value if load.tensor.name == name else input_value(load, here, consumer.extents)

    return replace(elementwise_value(consumer, read), accumulator=value.accumulator), here


def map_store(consumer: Operator, here: Substitution) -> Store:
    """Express the consumer's store by the producer's iterations."""
    if consumer.stored.digits:
        raise Unfusable(f"the consumer's output {consumer.stored} takes its iterations apart")
    indices = consumer.stored.substitute(here.indices).indices
    used = {name for index in indices for name in index.names}
    digits = tuple(digit for digit in here.digits if str(digit) in used)
    return Store(replace(consumer.result, dtype=None), indices, digits=digits)


def _bijection(producer: Operator, load: BufferLoad, extents: Mapping[str, int]) -> Substitution:
    """Express the consumer's iterations by the producer's where both have the same element."""
    name, output = producer.result.name, producer.stored
    write, read = stored_elements(producer), Visits.of(load.indices, extents)
    if (here := substitution(write, read, output.digits)) is not None:
        return here
    if read.repeated:
        raise Unfusable(
            f"each element of `{name}` is read again for each {quote_names(read.repeated)}"
        )
    if load.overrun(extents):
        raise Unfusable(f"`{load}` reads outside of `{name}`, which nothing computes")
    if read.points != write.points:
        which = "not each of them" if read.points < write.points else "some more than once"
        raise Unfusable(
            f"`{load}` is read at {read.points} points, and {write.points} elements are stored "
            f"as `{output}`: {which}"
        )
    if not write.has_same_elements(read):
        raise Unfusable(f"`{load}` are not the elements stored as `{output}`, each of them once")
    raise Unfusable(
        f"`{load}` are the elements stored as `{output}`, but no digits of the producer's "
        "iterations tell those of the consumer"
    )


def stored_elements(producer: Operator) -> Visits:
    """Return the elements that a producer stores; Unfusable if digits do not divide iterations."""
    iterations = {it.name: it.extent for it in producer.spatial}
    output = producer.stored
    extents = output.extents(iterations)
    names = {name for index in output.indices for name in index.names}
    visited = {name: extent for name, extent in extents.items() if name in names}
    if prod(visited.values()) != prod(iterations.values()):
        raise Unfusable(f"the digits of `{output}` do not divide the producer's iterations")
    return Visits.of(output.indices, visited)


def input_value(load: BufferLoad, here: Substitution, extents: Mapping[str, int]) -> Value:
    """Index an input by other iterations."""
    if load.padded and load.overrun(extents):
        raise Unfusable(f"`{load}` is padded, and only a source of the kernel's statement can be")
    tensor = load.tensor
    typed = replace(tensor, dtype=tensor.dtype or "float32")
    plain = BufferLoad(tensor=typed, indices=load.substitute(here.indices).indices)
    if split := sorted(plain.names & {str(digit) for digit in here.digits}):
        raise Unfusable(f"`{load}` would be `{plain}`, and only an output is indexed by {split[0]}")
    return Value(Node("read", load=plain), tensor.dtype)
