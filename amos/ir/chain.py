"""Chains: statements that read the results of statements before them.

The tensors between statements are *temporaries*: a kernel of the chain keeps them in tiles near a
core and stores only the tensor of the last statement.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from amos._display import Shown
from amos.errors import OperatorError, quote
from amos.ir.dtypes import dtype
from amos.ir.epilogue import Elementwise
from amos.ir.limits import dictionary, whole_number
from amos.ir.nodes import BufferLoad, Iteration, LoopNest, Tensor
from amos.ir.operator import Operator


class NotAnOperatorError(OperatorError, AttributeError):
    """A chain where a single statement is required."""


#: Combiners of an assignment's reductions.
COMBINERS = ("+", "max", "min")


@dataclass(frozen=True, kw_only=True)
class Assignment(LoopNest, Elementwise):
    """``destination = expression``, or ``+=``, ``max=`` and ``min=`` over reductions.

    Expressions are those of :mod:`amos.ir.epilogue`; the name of an iteration is its value, an
    integer.

    Attributes:
        destination: the access to the result, by one iteration a dimension.
        iterations: spatial ones first.
        combiner: ``"+"``, ``"max"``, ``"min"``, or nothing for ``=``.

    Raises:
        OperatorError: there are reductions without a combiner, or the reverse.
    """

    destination: BufferLoad
    iterations: tuple[Iteration, ...]
    combiner: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combiner and self.combiner not in COMBINERS:
            raise OperatorError(f"{self}: expected =, +=, max= or min=, got {self.combiner}=")
        names = ", ".join(it.name for it in self.reduce)
        if names and not self.combiner:
            raise OperatorError(
                f"{self}: {names} indexes nothing of {self.output.tensor.name!r}; write +=, max= "
                "or min= to reduce it"
            )
        for load in self.loads:
            if overrun := load.overrun(self.extents):
                raise OperatorError(f"{self}: {overrun}")

    @property
    def output(self) -> BufferLoad:
        """The access to the result."""
        return self.destination

    @property
    def points(self) -> int:
        """Number of points at which the expression is computed."""
        return int(replace(self.output.tensor, shape=tuple(self.extents.values())).elements)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each variable of the expression: iterations are integers."""
        return dict.fromkeys(self.extents, "int32")

    @property
    def kind(self) -> str:
        """``"int32"`` or ``"float32"``: kind of the expression and of its combined values."""
        return self.expression.kind(self.kinds)

    def __str__(self) -> str:
        kind = dtype(str(self.output.tensor.dtype))
        value = str(self.expression)
        if not self.combiner and kind.name != self.kind:
            value = f"{kind.short}({value})"
        return f"{self.output} {self.combiner}= {value}"


#: A step of a statement: a sum of products, which instructions compute, or an expression.
Step = Operator | Assignment


def loads_of(step: Step) -> tuple[BufferLoad, ...]:
    """Return the accesses that a step reads, in order."""
    if isinstance(step, Assignment):
        return step.loads
    return (*step.sources, *step.epilogue_loads)


def result_of(step: Step) -> Tensor:
    """Return the tensor that a step writes, with the dtype in which it is stored."""
    return step.result if isinstance(step, Operator) else step.output.tensor


@dataclass(frozen=True, repr=False)
class Statement:
    """One statement of a chain.

    Attributes:
        steps: four for ``softmax``, one for any other statement.
    """

    text: str
    steps: tuple[Step, ...]

    @property
    def tensor(self) -> Tensor:
        """The tensor that it writes."""
        return result_of(self.steps[-1])

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<statement {self.text!r}>"


@dataclass(frozen=True, repr=False)
class Chain(Shown):
    """Several statements as one computation; :meth:`Operator.parse` reads them.

    Raises:
        OperatorError: a tensor is read before it is written, written twice, or read by nothing.
    """

    statements: tuple[Statement, ...]
    name: str = "chain"

    def __post_init__(self) -> None:
        writers: dict[str, Statement] = {}
        for statement in self.statements:
            for step in statement.steps:
                writers.setdefault(step.output.tensor.name, statement)
        seen: set[str] = set()
        read: set[str] = set()
        for number, statement in enumerate(self.statements, 1):
            for step in statement.steps:
                for load in loads_of(step):
                    name = load.tensor.name
                    read.add(name)
                    if name in writers and name not in seen:
                        raise OperatorError(
                            f"statement {number}, {statement.text!r}: reads {name!r} before "
                            f"{writers[name].text!r} writes it"
                        )
                if (name := step.output.tensor.name) in seen:
                    raise OperatorError(
                        f"statement {number}, {statement.text!r}: {name!r} is written by "
                        f"{writers[name].text!r} already"
                    )
                seen.add(name)
        unread = [name for name in writers if name not in read | {self.result.name}]
        if unread:
            raise OperatorError(
                f"{writers[unread[0]].text!r}: nothing reads {unread[0]!r}; the result of a chain "
                f"is that of its last statement, {self.result.name!r}"
            )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotAnOperatorError(
            f"{self.name}: expected one statement, got a chain of {len(self.statements)} "
            f"({self.statements[0]}; …), which has no {name}"
        )

    @staticmethod
    def parse(
        text: str,
        extents: Mapping[str, int] | None = None,
        dtypes: Mapping[str, str] | None = None,
        name: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Sequence[str] | None = None,
    ) -> Chain:
        """Read statements with ``;`` between them; see :mod:`amos.ir.chain_parser`.

        Args:
            dtypes: dtype of each tensor by name; inputs and what expressions compute are
                ``float32`` if left out, sums of products of integers ``int32``.
            name: what the chain is called; the result's name if omitted.
            shapes: shape of an input that is larger than the range that is read, or of sums with
                literals, which may be smaller than the range that is computed.
            constants: inputs of products that stay the same from call to call; by default those
                whose name begins with ``weight``.

        Raises:
            ParseError: a statement cannot be read; a caret marks the column.
            OperatorError: statements contradict each other; the message quotes them.
        """
        from amos.ir.chain_parser import ChainParser

        if not isinstance(text, str):
            raise OperatorError(f"expected statements with ';' between them, got {quote(text)}")
        kinds, sizes = dictionary(dtypes, "dtypes"), dictionary(shapes, "shapes")
        canonical = {tensor: dtype(kind).name for tensor, kind in kinds.items()}
        counts = {
            iteration: whole_number(extent, f"extent of iteration {iteration!r}")
            for iteration, extent in dictionary(extents, "extents").items()
        }
        *before, last = text.split(";")
        for number, statement in enumerate([*before, *([last] if last.strip() else [])], 1):
            if not statement.strip():
                raise OperatorError(f"statement {number}: expected a statement, got nothing")
        chain = ChainParser(counts, canonical, dict(sizes)).parse(text, name)
        return chain if constants is None else chain.with_constants(constants)

    @staticmethod
    def of(operators: Sequence[Operator], name: str | None = None) -> Chain:
        """Chain operators with their epilogues, which no statement of a text can have.

        Tensors and iterations of one name are the same. Open dtypes are those of tensors written
        before, or the defaults of :meth:`parse`. Ranges that readers declare are kept.

        Args:
            operators: each reads, as a source or in its epilogue, results of others before it.
            name: what the chain is called; the result's name if omitted.

        Raises:
            OperatorError: there is none; one has a prologue, several results, or stores them
                elsewhere; two have different tensors or iterations of one name.
        """
        is_list = isinstance(operators, Sequence) and all(
            isinstance(x, Operator) for x in operators
        )
        if not is_list or not operators:
            raise OperatorError(f"a chain: expected a list of operators, got {quote(operators)}")
        sizes, tensors, closed = dict[str, int](), dict[str, Tensor](), list[Operator]()
        for number, operator in enumerate(operators, 1):
            operator = fill_dtypes(operator, {name: str(x.dtype) for name, x in tensors.items()})
            closed.append(operator)
            where = f"operator {number} of a chain, {operator.name}"
            if operator.prologues or operator.redirected:
                raise OperatorError(f"{where}: expected no prologue, and results stored as summed")
            for it in operator.iterations:
                if (size := sizes.setdefault(it.name, it.extent)) != it.extent:
                    raise OperatorError(f"{where}: {it.name} is {it.extent}, and {size} before")
            for tensor in (*operator.inputs, operator.result):
                first = tensors.setdefault(tensor.name, tensor)
                form, first_form = (f"{x.dtype} of shape {x.shape}" for x in (tensor, first))
                if form != first_form:
                    raise OperatorError(
                        f"{where}: {tensor.name!r} is {form}, and {first_form} before"
                    )
        statements = [
            Statement(f"{x.compute}" + (f" then {x.epilogue}" if x.epilogue else ""), (x,))
            for x in closed
        ]
        return Chain((*statements,), name or closed[-1].result.name)

    def with_constants(self, names: Sequence[str]) -> Chain:
        """Declare exactly these inputs constant from call to call.

        Raises:
            OperatorError: one is no input of a product.
        """
        if isinstance(names, str) or not isinstance(names, Collection):
            raise OperatorError(f"constants: expected a list of names, got {quote(names)}")
        inputs = {tensor.name for tensor in self.inputs}
        sources = {step: [x.tensor.name for x in step.sources] for step in self.products}
        candidates = [n for n in dict.fromkeys(itertools.chain(*sources.values())) if n in inputs]
        if unknown := [name for name in names if name not in candidates]:
            raise OperatorError(
                f"constants: expected inputs of products ({', '.join(candidates) or 'none'}), got "
                f"{quote(unknown[0])}"
            )

        def constant(step: Step) -> Step:
            if isinstance(step, Assignment):
                return step
            return replace(step, constants=tuple(n for n in names if n in sources[step]))

        statements = [
            replace(statement, steps=tuple(map(constant, statement.steps)))
            for statement in self.statements
        ]
        return replace(self, statements=tuple(statements))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Steps of all statements, in order."""
        return tuple(step for statement in self.statements for step in statement.steps)

    @property
    def products(self) -> tuple[Operator, ...]:
        """The steps that sum products, in order."""
        return tuple(step for step in self.steps if isinstance(step, Operator))

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Inputs that stay the same from call to call."""
        named = {name for step in self.products for name in step.constants}
        return tuple(tensor.name for tensor in self.inputs if tensor.name in named)

    def inputs_of(self, source: str) -> tuple[Tensor, ...]:
        """Return the input of that name, as :meth:`Operator.inputs_of` does."""
        return tuple(tensor for tensor in self.inputs if tensor.name == source)

    @property
    def result(self) -> Tensor:
        """The tensor that the last statement writes."""
        return self.statements[-1].tensor

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The result alone, as for an operator."""
        return (self.result,)

    @property
    def whole(self) -> bool:
        """Whether each element of the result is stored; always true of a chain."""
        return True

    @cached_property
    def temporaries(self) -> tuple[Tensor, ...]:
        """Tensors that steps write for others, in order."""
        return tuple(map(result_of, self.steps[:-1]))

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that no step writes, in order of first use."""
        written = {tensor.name for tensor in (*self.temporaries, self.result)}
        read = [load.tensor for step in self.steps for load in loads_of(step)]
        return tuple(dict.fromkeys(tensor for tensor in read if tensor.name not in written))

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of each iteration; one of a name is the same in every statement."""
        return {name: size for step in self.steps for name, size in step.extents.items()}

    @property
    def operations(self) -> int:
        """Arithmetic operations of the products, as for operators."""
        return sum(step.operations for step in self.products)

    def statement_of(self, tensor: str) -> Statement:
        """Return the statement that writes a tensor."""
        return next(
            statement
            for statement in self.statements
            for step in statement.steps
            if step.output.tensor.name == tensor
        )

    def __repr__(self) -> str:
        return f"<chain {self.name}: {self}>"

    def __str__(self) -> str:
        extents = ", ".join(f"{name}={size}" for name, size in self.extents.items())
        tensors = [(t.name, t.kind) for t in (*self.inputs, *self.temporaries, self.result)]
        dtypes = ", ".join(f"{n}: {kind.spelled}" for n, kind in tensors if kind and "." not in n)
        text = "; ".join(statement.text for statement in self.statements)
        return f"{text}  with {extents}  ({dtypes})"


def fill_dtypes(operator: Operator, kinds: Mapping[str, str]) -> Operator:
    """Fill the open dtypes of a product: tensors of a chain by name, others float32."""
    open_ = {load.tensor.name: kinds.get(load.tensor.name, "float32") for load in operator.sources}
    sources = operator.with_dtypes(open_)
    is_integer = all(dtype(str(load.tensor.dtype)).is_integer for load in sources.sources)
    name = operator.output.tensor.name
    return sources.with_dtypes({name: kinds.get(name, "int32" if is_integer else "float32")})
