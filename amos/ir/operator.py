"""Operators: one tensor computation with its shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import cast

from amos._display import Shown
from amos.errors import OperatorError, quote
from amos.ir import checks
from amos.ir.epilogue import Epilogue
from amos.ir.expression_parser import parse_epilogue
from amos.ir.limits import dictionary
from amos.ir.nodes import BufferLoad, Computation, Compute, Tensor
from amos.ir.parser import parse_statement
from amos.ir.prologue import Prologue
from amos.ir.prologue_parser import parse_prologue
from amos.ir.result import Result, check_result, parse_result
from amos.ir.store import Store, check_store, parse_store


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
    #: Inputs that stay the same from call to call, so that a kernel may have them packed ahead.
    constants: tuple[str, ...] = ()
    #: Expression stored instead of the accumulated value; mappings do not depend on it.
    epilogue: Epilogue | None = None
    #: Sources that are computed from other tensors; mappings do not depend on them.
    prologues: tuple[Prologue, ...] = ()
    #: Where results are stored, if not at the statement's output; mappings do not depend on it.
    store: Store | None = None
    #: Results besides the first; mappings do not depend on them either.
    further: tuple[Result, ...] = ()

    def __post_init__(self) -> None:
        checks.check_statement(self.compute)
        if not isinstance(self.name, str):
            raise OperatorError(f"name of an operator: expected a text, got {quote(self.name)}")
        checks.check_constants(self.compute, self.constants)
        checks.check_prologues(self.compute, self.prologues)
        if self.epilogue is not None:
            checks.check_epilogue(self.compute, self.epilogue)
        checks.check_read_once([*self.prologues, *self.epilogues])
        if self.store is not None:
            read = [tensor.name for tensor in self.inputs]
            check_store(self.store, {it.name: it.extent for it in self.spatial}, read)
        for number, result in enumerate(self.further):
            for epilogue in result.epilogues:
                checks.check_epilogue(self.compute, epilogue)
            earlier = [self.stored, *(each.store for each in self.further[:number])]
            read = [tensor.name for tensor in self.inputs]
            written = [store.tensor.name for store in earlier]
            check_result(result, {it.name: it.extent for it in self.spatial}, read, written)

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
            text: the statement, or several with ``;`` between them, which make a
                :class:`~amos.ir.Chain`; ``pad(image[n,c,p+r-1,q+s-1])`` reads zeros outside the
                tensor, ``pad(image[n,c,p+r-1,q+s-1], 128)`` another value of its dtype.
            dtypes: dtype of each tensor by name; a tensor left out stays open
                and takes the dtype of the intrinsic it is mapped to.
            name: name of the operator; the output's name if omitted.
            shapes: shape of a tensor by name, where it is larger than the range that
                is read, or does not follow from the indices.
            constants: inputs that stay the same from call to call; by default
                those whose name begins with ``weight``.

        Raises:
            ParseError: the text is no such statement; a caret marks the column.
            OperatorError: extents, bounds or dtypes do not fit the statement, or a
                padding value is none of its tensor's dtype.
        """
        if isinstance(text, str) and ";" in text:
            from amos.ir.chain import Chain  # which consists of operators

            # Type checkers take it for an operator; Chain.parse has a type of its own.
            return cast(Operator, Chain.parse(text, extents, dtypes, name, shapes, constants))
        compute = parse_statement(text, extents, dtypes, shapes)
        constant_names = checks.constant_sources(compute, constants)
        return Operator(compute, compute.dst.tensor.name if name is None else name, constant_names)

    def with_constants(self, names: Sequence[str]) -> Operator:
        """Declare exactly these inputs constant from call to call.

        Raises:
            OperatorError: one is no input of the statement.
        """
        return replace(self, constants=checks.constant_sources(self.compute, names))

    def with_epilogue(
        self,
        text: str,
        dtypes: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Operator:
        """Apply an expression to each element before it is stored.

        Args:
            text: an expression of ``acc``, numbers, and tensors that the output's
                iterations index, for example
                ``"u8(relu((acc + bias[k]) * scale[k]))"``; see :mod:`amos.ir.epilogue`
                for its functions and its exact arithmetic.
            dtypes: dtype of each tensor of the text; ``float32`` if left out.
            shapes: shape of a tensor that is larger than the range that is read.

        Raises:
            ParseError: the text is no such expression; a caret marks the column.
            OperatorError: dtypes and shapes do not fit, or the operator already
                reads or writes a tensor of that name.
        """
        extents = {it.name: it.extent for it in self.spatial}
        kinds, sizes = dictionary(dtypes, "dtypes"), dictionary(shapes, "shapes")
        return replace(self, epilogue=parse_epilogue(text, extents, kinds, sizes))

    def with_prologue(
        self,
        source: str,
        text: str,
        dtypes: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Operator:
        """Compute one of the sources from other tensors, element by element.

        They are inputs in its place. The source stays constant if they are. Padding applies to
        the result: elements outside are not computed.

        Args:
            source: the source's name, with names of its dimensions
                (``"image[n,c,h,w]"``), or alone: these are then the indices of the first
                tensor of the text with the same number of dimensions, all of them plain names.
            text: an expression as that of :meth:`with_epilogue`, without ``acc``, whose
                tensors are indexed by these dimensions:
                ``"u8(relu(x[n,h,w,c]) * scale[c])"``. It may read a tensor of the
                source's own name. A source whose dtype is open takes that of the result.
            dtypes: dtype of each tensor of the text; ``float32`` if left out, or the
                source's for a tensor of its name.
            shapes: shape of a tensor that is larger than the range that is read.

        Raises:
            ParseError: the text is no such expression; a caret marks the column.
            OperatorError: there is no such source, it has a prologue already, the text
                is not elementwise, or dtypes and shapes do not fit.
        """
        tensors = {load.tensor.name: load.tensor for load in self.sources}
        kinds, sizes = dictionary(dtypes, "dtypes"), dictionary(shapes, "shapes")
        prologue = parse_prologue(source, text, tensors, kinds, sizes)
        if prologue.tensor in {existing.tensor for existing in self.prologues}:
            raise OperatorError(
                f"source {prologue.tensor!r} has a prologue already; write both as one expression"
            )
        typed = self.with_dtypes({prologue.tensor: prologue.dtype})
        return replace(typed, prologues=(*self.prologues, prologue))

    def prologue(self, tensor: str) -> Prologue | None:
        """Return the prologue that computes a source; ``None`` if it is an input itself."""
        return next((each for each in self.prologues if each.tensor == tensor), None)

    def with_output(self, text: str, shapes: Mapping[str, Sequence[int]] | None = None) -> Operator:
        """Store the results elsewhere: reshaped, transposed, at an offset.

        Args:
            text: an access by the output's iterations, or digits of them, that gives each
                result an element of its own, for example ``"y[n, p*28 + q, k]"``; see
                :mod:`amos.ir.store`.
            shapes: shape of the tensor, where it is larger than the range that is stored. Its
                other elements keep their values, or are zero in an array that a kernel makes.

        Raises:
            ParseError: the text is no such access; a caret marks the column.
            OperatorError: two results would be one element, an index leaves the tensor, or
                the operator reads a tensor of that name.
        """
        extents = {it.name: it.extent for it in self.spatial}
        return replace(self, store=parse_store(text, extents, dictionary(shapes, "shapes")))

    def with_result(
        self,
        text: str,
        dtypes: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Operator:
        """Add a further result of the same sums; kernels then return a tuple.

        Elements that the results do not reach keep their values, as with :meth:`with_output`.

        Args:
            text: an access as that of :meth:`with_output`, a sign, and an expression as that
                of :meth:`with_epilogue`: ``"f[n,p,q,k] = f32(acc * scale[k])"`` stores it,
                ``"top[n,p] max= acc"``, ``min=`` and ``+=`` reduce it, and
                ``"mean[n,k] += acc then u8(acc * 0.02)"`` finishes the reduction; see
                :mod:`amos.ir.result`.
            dtypes: dtype of each tensor that is read; by default that which the operator
                reads under this name, or ``float32``.
            shapes: shape of a tensor that is larger than the range that is read or stored.

        Raises:
            ParseError: the text is no such result; a caret marks the column.
            OperatorError: two elements would be one, an index leaves its tensor, a name is
                taken, or dtypes and shapes do not fit.
        """
        extents = {it.name: it.extent for it in self.spatial}
        read = [load.tensor for load in self.epilogue_loads]
        kinds, sizes = dictionary(dtypes, "dtypes"), dictionary(shapes, "shapes")
        result = parse_result(text, extents, kinds, sizes, read)
        return replace(self, further=(*self.further, result))

    @property
    def output(self) -> BufferLoad:
        """The access to the output, or to the accumulators if results are stored elsewhere."""
        return self.compute.dst

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Distinct input tensors, in order of first use; the epilogue's come last."""
        read = [tensor for load in self.sources for tensor in self.inputs_of(load.tensor.name)]
        read += [load.tensor for load in self.epilogue_loads]
        return tuple({tensor.name: tensor for tensor in read}.values())

    @property
    def epilogues(self) -> list[Epilogue]:
        """The expressions of all results that have one."""
        first = [self.epilogue] if self.epilogue is not None else []
        return [*first, *(each for result in self.further for each in result.epilogues)]

    @property
    def epilogue_loads(self) -> list[BufferLoad]:
        """Accesses that the epilogues read besides the accumulators."""
        return [load for epilogue in self.epilogues for load in epilogue.loads]

    def inputs_of(self, source: str) -> tuple[Tensor, ...]:
        """Return the inputs of a source: the tensor itself, or those that its prologue reads."""
        if (prologue := self.prologue(source)) is not None:
            return prologue.tensors
        return tuple(dict.fromkeys(x.tensor for x in self.sources if x.tensor.name == source))

    @property
    def result_dtype(self) -> str | None:
        """Dtype of the stored result; ``None`` while the output's is open."""
        accumulator = self.output.tensor.dtype
        if self.epilogue is None or accumulator is None:
            return accumulator
        return self.epilogue.result(accumulator)

    @cached_property
    def result(self) -> Tensor:
        """The tensor of the results, with their stored dtype."""
        return replace((self.store or self.output).tensor, dtype=self.result_dtype)

    @cached_property
    def stored(self) -> Store:
        """The access to the results by the spatial iterations."""
        return self.store or Store(self.output.tensor, self.output.indices)

    @cached_property
    def results(self) -> tuple[Tensor, ...]:
        """The tensors of all results, the first of which is :attr:`result`."""
        accumulator = self.output.tensor.dtype
        return (self.result, *(each.tensor(accumulator) for each in self.further))

    @property
    def redirected(self) -> bool:
        """Whether there are several results, or one stored elsewhere than the statement says."""
        return self.store is not None or bool(self.further)

    @property
    def whole(self) -> bool:
        """Whether each element of each result is stored."""
        return all(map(self.fills, (self.stored, *(each.store for each in self.further))))

    def fills(self, store: Store) -> bool:
        """Return whether every element of a store's tensor is stored."""
        return prod(self.extents[name] for name in store.names) == store.tensor.elements

    def with_only(self, result: Result) -> Operator:
        """Keep a further result as the only one; of a reduction, the elements before it."""
        store = None if result.reduces else result.store
        return replace(self, epilogue=result.epilogue, store=store, further=())

    def with_dtypes(self, names: Mapping[str, str]) -> Operator:
        """Fill in open dtypes from ``names``, ranges included.

        Dtypes that are already set are kept.

        Raises:
            OperatorError: a padding value is not one of its tensor's dtype.
        """
        names = dictionary(names, "dtypes")

        def fill(load: BufferLoad) -> BufferLoad:
            tensor = load.tensor
            if tensor.dtype is not None or tensor.name not in names:
                return load
            return replace(load, tensor=replace(tensor, dtype=names[tensor.name]))

        return replace(self, compute=self.compute.with_loads(fill))

    @property
    def undeclared(self) -> Operator:
        """The operator without declared ranges of its sources."""
        plain = self.compute.with_loads(lambda x: replace(x, tensor=replace(x.tensor, bounds=None)))
        return replace(self, compute=plain)

    def rename(self, tensor: Callable[[str], str], iteration: Callable[[str], str]) -> Operator:
        """Rename tensors and iterations; the operator's own name stays.

        Raises:
            OperatorError: two iterations, or two tensors, get one name.
        """

        def load(access: BufferLoad) -> BufferLoad:
            indices = tuple(index.rename(iteration) for index in access.indices)
            return read(replace(access, indices=indices))

        def read(access: BufferLoad) -> BufferLoad:
            named = replace(access.tensor, name=tensor(access.tensor.name))
            return replace(access, tensor=named)

        return replace(
            self,
            compute=replace(
                self.compute.with_loads(load),
                iterations=tuple(replace(it, name=iteration(it.name)) for it in self.iterations),
            ),
            constants=tuple(map(tensor, self.constants)),
            epilogue=self.epilogue and self.epilogue.with_loads(load),
            prologues=tuple(
                replace(each.with_loads(read), tensor=tensor(each.tensor))
                for each in self.prologues
            ),
            store=self.store and self.store.rename(tensor, iteration),
            further=tuple(each.rename(tensor, iteration, load) for each in self.further),
        )

    def with_loads(self, load: Callable[[BufferLoad], BufferLoad]) -> Operator:
        """Replace each access, also of the epilogue, but not of the store.

        Those of prologues, which iterations do not index, are left.

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
        tensors = [*self.inputs, *(load.tensor for load in self.operands)]
        kinds = {t.name: t.kind for t in tensors}
        dtypes = ", ".join(f"{n}: {kind.spelled}" for n, kind in kinds.items() if kind)
        sources = "".join(f"  where {prologue}" for prologue in self.prologues)
        stored = f"  then {self.epilogue}" if self.epilogue is not None else ""
        stored += f"  to {self.store}" if self.store is not None else ""
        stored += "".join(f"  and {result}" for result in self.further)
        typed = f"  ({dtypes})" if dtypes else ""
        return f"{self.compute}  with {extents}{typed}{sources}{stored}"
