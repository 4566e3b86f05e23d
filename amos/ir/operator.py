"""Operators: one tensor computation with its shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from amos._display import Shown
from amos.errors import OperatorError
from amos.ir.affine import Affine
from amos.ir.dtypes import dtype
from amos.ir.epilogue import Epilogue
from amos.ir.epilogue_parser import parse_epilogue
from amos.ir.nodes import BufferLoad, Computation, Compute, Tensor
from amos.ir.parser import parse_statement

__all__ = ["Operator"]


@dataclass(frozen=True)
class Operator(Shown, Computation):
    """A tensor computation: a perfect loop nest around one statement.

    Loop order is the order of ``compute.iterations``: spatial iterations as the
    output lists them, then reductions in order of appearance. It fixes the
    columns of every matching matrix and the radix order of fused indices.

    Raises:
        OperatorError: an index leaves its tensor without ``pad``, the
            destination is not written exactly once per spatial point, an
            iteration indexes nothing, or a reduction is written with ``=``.
    """

    compute: Compute
    name: str = "operator"
    #: Inputs that stay the same from call to call, so that a kernel may have them
    #: repacked ahead of time.
    constants: tuple[str, ...] = ()
    #: What is stored instead of the accumulated value; mappings do not depend on it.
    epilogue: Epilogue | None = None

    def __post_init__(self) -> None:
        _check_iterations(self.compute)
        _check_destination(self.compute)
        _check_bounds(self.compute)
        _check_tensors(self.compute)
        inputs = [load.tensor.name for load in self.compute.sources]
        if unknown := [n for n in self.constants if n not in inputs]:
            raise OperatorError(
                f"constant {unknown[0]!r} is not an input; inputs are {', '.join(inputs)}"
            )
        if self.epilogue is not None:
            _check_epilogue(self.compute, self.epilogue)

    @staticmethod
    def parse(
        text: str,
        extents: Mapping[str, int] | None = None,
        dtypes: Mapping[str, str] | None = None,
        name: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Sequence[str] | None = None,
    ) -> Operator:
        """Read one line of math, for example
        ``out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]``.

        Args:
            text: the statement; ``pad(image[n,c,p+r-1,q+s-1])`` reads zeros
                outside the tensor, ``pad(image[n,c,p+r-1,q+s-1], 128)`` another
                value of its dtype.
            extents: extent of each iteration.
            dtypes: dtype of each tensor by name; a tensor left out stays open
                and takes the dtype of the intrinsic it is mapped to.
            name: name of the operator; the output's name if omitted.
            shapes: shape of a tensor by name, where it is larger than what is
                read, or cannot be told from the indices.
            constants: inputs that stay the same from call to call; by default
                those whose name begins with ``weight``.

        Raises:
            ParseError: the text is no such statement; a caret marks the column.
            OperatorError: extents, bounds or dtypes do not fit the statement, or a
                padding value is none of its tensor's dtype.
        """
        compute = parse_statement(text, extents or {}, dtypes or {}, shapes or {})
        if constants is None:
            sources = dict.fromkeys(load.tensor.name for load in compute.sources)
            constants = [name for name in sources if name.startswith("weight")]
        return Operator(
            compute, compute.dst.tensor.name if name is None else name, tuple(constants)
        )

    def with_epilogue(
        self,
        text: str,
        dtypes: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Operator:
        """The operator with what is done to each element before it is stored.

        Args:
            text: an expression of ``acc``, numbers, and tensors that the output's
                iterations index, for example
                ``"u8(relu((acc + bias[k]) * scale[k]))"``; see :mod:`amos.ir.epilogue`
                for its functions and its exact arithmetic.
            dtypes: dtype of each tensor of the text; ``float32`` if left out.
            shapes: shape of a tensor that is larger than what is read.

        Raises:
            ParseError: the text is no such expression; a caret marks the column.
            OperatorError: dtypes and shapes do not fit, or the operator already
                reads or writes a tensor of that name.
        """
        extents = {it.name: it.extent for it in self.spatial}
        return replace(self, epilogue=parse_epilogue(text, extents, dtypes or {}, shapes or {}))

    @property
    def output(self) -> BufferLoad:
        """The access to the output."""
        return self.compute.dst

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Distinct input tensors, in order of first use; the epilogue's come last."""
        extra = self.epilogue.loads if self.epilogue is not None else ()
        return tuple({load.tensor.name: load.tensor for load in (*self.sources, *extra)}.values())

    @property
    def result_dtype(self) -> str | None:
        """Dtype of what is stored; ``None`` while the output's is open.

        Raises:
            OperatorError: the epilogue takes no such accumulator.
        """
        accumulator = self.output.tensor.dtype
        if self.epilogue is None or accumulator is None:
            return accumulator
        return self.epilogue.result(accumulator)

    @cached_property
    def result(self) -> Tensor:
        """The output tensor with the dtype of what is stored."""
        return replace(self.output.tensor, dtype=self.result_dtype)

    def with_dtypes(self, names: Mapping[str, str]) -> Operator:
        """The same operator with open dtypes filled in from ``names``.

        Dtypes that are already set are kept.

        Raises:
            OperatorError: a padding value is none of its tensor's dtype.
        """

        def fill(load: BufferLoad) -> BufferLoad:
            tensor = load.tensor
            if tensor.dtype is not None or tensor.name not in names:
                return load
            return replace(load, tensor=replace(tensor, dtype=dtype(names[tensor.name]).name))

        return replace(self, compute=self.compute.with_loads(fill))

    def renamed(self, tensor: Callable[[str], str], iteration: Callable[[str], str]) -> Operator:
        """The same operator with other names; its own name stays.

        Args:
            tensor: the new name of each tensor, of those of the epilogue too.
            iteration: the new name of each iteration.

        Raises:
            OperatorError: two iterations, or two tensors, get one name.
        """

        def load(access: BufferLoad) -> BufferLoad:
            indices = tuple(
                Affine(tuple((iteration(n), c) for n, c in index.terms), index.constant)
                for index in access.indices
            )
            named = replace(access.tensor, name=tensor(access.tensor.name))
            return replace(access, tensor=named, indices=indices)

        return replace(
            self,
            compute=replace(
                self.compute.with_loads(load),
                iterations=tuple(replace(it, name=iteration(it.name)) for it in self.iterations),
            ),
            constants=tuple(map(tensor, self.constants)),
            epilogue=self.epilogue and self.epilogue.with_loads(load),
        )

    def with_loads(self, load: Callable[[BufferLoad], BufferLoad]) -> Operator:
        """The same operator with each access, those of the epilogue too, made another.

        Raises:
            OperatorError: that is no operator.
        """
        return replace(
            self,
            compute=self.compute.with_loads(load),
            epilogue=self.epilogue and self.epilogue.with_loads(load),
        )

    def __str__(self) -> str:
        extents = ", ".join(f"{it.name}={it.extent}" for it in self.iterations)
        tensors = [load.tensor for load in self.operands]
        tensors += [load.tensor for load in (self.epilogue.loads if self.epilogue else ())]
        kinds = {t.name: t.dtype for t in tensors if t.dtype}
        dtypes = ", ".join(f"{n}: {dtype(d).short}" for n, d in kinds.items())
        stored = f"  then {self.epilogue}" if self.epilogue is not None else ""
        return f"{self.compute}  with {extents}" + (f"  ({dtypes})" if dtypes else "") + stored


def _check_iterations(compute: Compute) -> None:
    names = [it.name for it in compute.iterations]
    if len(set(names)) != len(names):
        raise OperatorError(f"an iteration is listed twice: {', '.join(names)}")
    known = set(names)
    for load in compute.operands:
        if missing := load.names - known:
            raise OperatorError(f"{load}: no extent given for {', '.join(sorted(missing))}")
    used = frozenset[str]().union(*(load.names for load in compute.operands))
    if idle := [n for n in names if n not in used]:
        raise OperatorError(f"iteration {', '.join(idle)} indexes nothing in {compute}")
    for it in compute.iterations:
        kind = "spatial" if it.name in compute.dst.names else "reduce"
        if it.kind != kind:
            raise OperatorError(f"iteration {it.name!r} is {kind} in {compute}, not {it.kind}")
    if not compute.accumulate and compute.reduce:
        names_ = ", ".join(it.name for it in compute.reduce)
        raise OperatorError(f"{compute}: {names_} is summed over, so write += instead of =")


def _check_destination(compute: Compute) -> None:
    """Each point of the spatial iterations writes an element of its own.

    The test is sufficient, and exact for a single index: within one dimension
    the terms form a mixed radix when every coefficient exceeds what the smaller
    ones together can reach.
    """
    extents = compute.extents
    seen: set[str] = set()
    if compute.dst.padded:
        raise OperatorError(f"{compute.dst}: only a source can be padded, not the output")
    for index in compute.dst.indices:
        if repeated := seen & set(index.names):
            raise OperatorError(
                f"{compute.dst}: {', '.join(sorted(repeated))} indexes two dimensions of the output"
            )
        seen |= set(index.names)
        reach = 0
        for name, c in sorted(index.terms, key=lambda term: abs(term[1])):
            if abs(c) <= reach and extents[name] > 1:
                raise OperatorError(
                    f"{compute.dst}: index {index} reaches the same element of the output "
                    "from different iterations; sum over one of them instead"
                )
            reach += abs(c) * (extents[name] - 1)


def _check_bounds(compute: Compute) -> None:
    for load in compute.operands:
        if load.padded:
            continue
        for d, (index, size) in enumerate(zip(load.indices, load.tensor.shape, strict=True)):
            low, high = index.bounds(compute.extents)
            if low < 0 or high >= size:
                raise OperatorError(
                    f"index {index} of {load.tensor.name!r} runs from {low} to {high}, "
                    f"outside dimension {d} of size {size}; write pad({load.tensor.name}[…]) "
                    "if reads outside are zero"
                )


def _check_tensors(compute: Compute) -> None:
    """One name is one tensor, and the output is not read."""
    seen: dict[str, Tensor] = {}
    for load in compute.sources:
        if seen.setdefault(load.tensor.name, load.tensor) != load.tensor:
            raise OperatorError(f"tensor {load.tensor.name!r} is used with two shapes or dtypes")
    if compute.dst.tensor.name in seen:
        raise OperatorError(f"{compute}: {compute.dst.tensor.name!r} is both read and written")


def _check_epilogue(compute: Compute, epilogue: Epilogue) -> None:
    """Its tensors are its own, and only iterations of the output index them."""
    taken = {load.tensor.name for load in compute.operands}
    spatial = {it.name for it in compute.spatial}
    for load in epilogue.loads:
        if load.tensor.name in taken:
            raise OperatorError(
                f"epilogue {epilogue}: {load.tensor.name!r} is a tensor of the statement already"
            )
        if other := sorted(load.names - spatial):
            raise OperatorError(
                f"epilogue {epilogue}: {other[0]!r} is no iteration of the output; "
                f"these are {', '.join(it.name for it in compute.spatial)}"
            )
    if compute.dst.tensor.dtype is not None:
        epilogue.result(compute.dst.tensor.dtype)
