"""From several statements to a :class:`~amos.ir.chain.Chain`.

Grammar, where ``index`` is that of :mod:`amos.ir.grammar` and ``shift`` an expression of
:mod:`amos.ir.expression_parser`::

    chain     := statement (";" statement)* [";"]
    statement := product | target ("=" | "+=" | "max=" | "min=") value
    product   := a statement of :mod:`amos.ir.grammar` that sums products
    target    := NAME ["[" [index ("," index)*] "]"]
    value     := shift | ROWS "(" shift "," "axis" "=" NAME ")"
    ROWS      := "softmax" | "safe_softmax" | "logsumexp" | "sum" | "max" | "min"

In an expression the name of an iteration is its value, that of a tensor without indices is the
tensor at its own iterations, and any other name is a scalar input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from amos.errors import OperatorError, ParseError, suggestion
from amos.ir.affine import Affine
from amos.ir.chain import Assignment, Chain, Statement, Step, typed
from amos.ir.expression import CASTS, EXP_NEGATIVE, SHARE, SHARE_OR_ZERO, Node
from amos.ir.expression_parser import ExpressionReader
from amos.ir.grammar import Reader, Reference, read_statement
from amos.ir.nodes import BufferLoad, Iteration, Tensor
from amos.ir.parser import dimension_size, parse_statement
from amos.ir.tokens import Token

#: Functions of a whole row, which take an axis.
ROWS = ("softmax", "safe_softmax", "logsumexp", "sum", "max", "min")
#: Those that keep the axis, and how they divide; a safe softmax has zeros where that gives NaN.
_SOFTMAXES = {"softmax": SHARE, "safe_softmax": SHARE_OR_ZERO}
#: Levels of an expression that is computed for the maximum and again for the exponential.
_AGAIN = 2


@dataclass
class ChainParser:
    """What is said of the tensors of a chain, and of those that were written so far.

    Attributes:
        extents: extent of each iteration.
        dtypes: dtypes by tensor.
        shapes: shapes by tensor; those of inputs are filled in by what is read.
        written: each tensor that a statement wrote, with its iterations.
    """

    extents: Mapping[str, int]
    dtypes: Mapping[str, str]
    shapes: dict[str, Sequence[int]]
    written: dict[str, BufferLoad] = field(default_factory=dict)

    def parse(self, text: str, name: str | None) -> Chain:
        """Read all statements.

        Raises:
            ParseError: a statement cannot be read; a caret marks the column.
            OperatorError: statements contradict each other, or what is said of tensors.
        """
        texts = [each.strip() for each in text.split(";")]
        texts = texts[:-1] if len(texts) > 1 and not texts[-1] else texts
        heads = [_Scanner(each) for each in texts]
        self._find_shapes(heads)
        statements = []
        for number, head in enumerate(heads, 1):
            early = [x for x in heads[number - 1 :] if x.name in head.reads - self.written.keys()]
            if early:
                raise OperatorError(
                    f"statement {number}, {head.text!r}: reads {early[0].name!r} before "
                    f"{early[0].text!r} writes it"
                )
            for read in head.accesses[1:] if head.indexed else head.accesses:
                self._check_written(number, head, read, heads)
            steps = self._steps(head)
            statements.append(Statement(head.text, steps))
            self.written |= {step.output.tensor.name: step.output for step in steps}
        chain = Chain(tuple(statements), name or statements[-1].tensor.name)
        self._check_names(chain)
        return chain

    def _check_written(
        self, number: int, head: _Scanner, read: Reference, heads: Sequence[_Scanner]
    ) -> None:
        """Refuse to read a temporary with other dimensions."""
        if (later := next((each for each in heads if each.name == read.name), None)) is None:
            return
        shape = self.written[read.name].tensor.shape
        if len(shape) != len(read.indices):
            raise OperatorError(
                f"statement {number}, {head.text!r}: {read} has {len(read.indices)} indices, but "
                f"{later.text!r} writes {len(shape)} dimensions"
            )
        for d, (index, size) in enumerate(zip(read.indices, shape, strict=True)):
            low, high = index.bounds(self.extents)
            if not read.padded and (low < 0 or high >= size):
                raise OperatorError(
                    f"statement {number}, {head.text!r}: index {index} of {read.name!r} runs from "
                    f"{low} to {high}, but {later.text!r} writes {size} elements of dimension {d}"
                )

    def _find_shapes(self, heads: Sequence[_Scanner]) -> None:
        """Give each input the shape that all statements together read."""
        own = {head.name for head in heads}
        used = list(dict.fromkeys(n for head in heads for n in head.iterations))
        if missing := [name for name in used if name not in self.extents]:
            stated = ", ".join(map(str, self.extents)) or "none"
            raise OperatorError(f"no extent given for {', '.join(missing)}; given are {stated}")
        if idle := [name for name in self.extents if name not in used]:
            raise OperatorError(
                f"extent given for {idle[0]!r}, which indexes nothing; iterations are "
                f"{', '.join(used)}{suggestion(idle[0], used)}"
            )
        reached: dict[str, Reference] = {}
        for head in heads:
            for read in head.accesses:
                if read.name in own:
                    continue
                first = reached.setdefault(read.name, read)
                if len(first.indices) != len(read.indices):
                    raise OperatorError(
                        f"{head.text!r}: {read} has {len(read.indices)} indices, but {first} has "
                        f"{len(first.indices)}"
                    )
                sizes = [dimension_size(read, d, self.extents) for d in range(len(read.indices))]
                stated_shape = self.shapes.get(read.name)
                if stated_shape is None or read.name in self._inferred:
                    previous = self.shapes.get(read.name, sizes)
                    self.shapes[read.name] = tuple(map(max, sizes, previous))
                    self._inferred.add(read.name)

    _inferred: set[str] = field(default_factory=set)

    def _check_names(self, chain: Chain) -> None:
        """Refuse dtypes and shapes of tensors that there are not."""
        tensors = [t.name for t in (*chain.inputs, *chain.temporaries, chain.result)]
        for what, names in (("dtype", self.dtypes), ("shape", self.shapes)):
            if unknown := [name for name in names if name not in tensors]:
                public = [name for name in tensors if "." not in name]
                raise OperatorError(
                    f"{what} given for {unknown[0]!r}, which does not occur; tensors are "
                    f"{', '.join(public)}{suggestion(unknown[0], public)}"
                )

    def _steps(self, head: _Scanner) -> tuple[Step, ...]:
        """What a statement comes to."""
        with _quoting(head.text):
            if head.indexed and (product := self._product(head)) is not None:
                return (product,)
            return _AssignmentReader(self, head).steps()

    def _product(self, head: _Scanner) -> Step | None:
        """A sum of products; ``None`` for any other statement."""
        try:
            statement = read_statement(head.text)
        except ParseError:
            return None
        if statement.combiner != "+" or statement.join != "*" or len(statement.sources) < 2:
            return None
        _dimensions_of(head.accesses[0])
        names = {reference.name for reference in statement.references}
        used = {n for reference in statement.references for i in reference.indices for n in i.names}
        shapes = {n: s for n, s in self.shapes.items() if n in names}
        shapes |= {n: x.tensor.shape for n, x in self.written.items() if n in names}
        extents = {name: size for name, size in self.extents.items() if name in used}
        compute = parse_statement(head.text, extents, {}, shapes)
        kinds = {n: str(x.tensor.dtype) for n, x in self.written.items()} | dict(self.dtypes)
        from amos.ir.operator import Operator

        weights = tuple(load.tensor.name for load in compute.sources)
        weights = tuple(dict.fromkeys(n for n in weights if n.startswith("weight")))
        return typed(Operator(compute, head.name, weights), kinds)


@contextmanager
def _quoting(text: str) -> Iterator[None]:
    """Errors of a statement say which one it is."""
    try:
        yield
    except ParseError as error:
        raise ParseError(str(error).split("\n", 1)[0], text, error.column) from None
    except OperatorError as error:
        raise OperatorError(str(error) if text in str(error) else f"{text!r}: {error}") from None


class _Scanner(Reader):
    """The target of a statement, and every access that it has.

    Attributes:
        name: of the tensor that is written.
        indexed: whether indices follow the name.
        accesses: with the target first if it is indexed.
        reads: names of all tensors in the value.
        sign: of the assignment.
        start: column of the value.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if self.next.kind != "name":
            self.fail(
                "expected a statement such as 'p[i,j] = exp(s[i,j])' or 'p = softmax(s, ...)'"
            )
        self.name = self.next.text
        self.indexed = self.tokens[1].text == "["
        self.reads, self.accesses = set[str](), list[Reference]()
        self.sign, self.start = "", -1
        while self.next.kind != "end":
            padded = self.next.text == "pad" and self.calls()
            self.position += 2 * padded
            token = self.take()
            if token.kind == "name" and self.start >= 0 and self.next.text != "(":
                self.reads.add(token.text)
            if token.kind == "name" and self.accept("["):
                self.accesses.append(Reference(token.text, self.indices(token), padded))
            elif self.start < 0 and token.text in ("=", "+=", "*="):
                before = self.tokens[self.position - 2]
                word = before.text if before.text in ("max", "min") else ""
                self.sign = (word or token.text[:-1]) if self.position > 2 or word else ""
                self.start = token.column + len(token.text)
        if self.start < 0:
            self.fail("expected '=' or '+=' after the tensor that is written")

    @property
    def iterations(self) -> list[str]:
        """Those that index anything."""
        return [n for access in self.accesses for index in access.indices for n in index.names]


class _AssignmentReader(ExpressionReader):
    """Reads the value of a statement."""

    def __init__(self, parser: ChainParser, head: _Scanner) -> None:
        shapes = dict(parser.shapes)
        shapes |= {name: load.tensor.shape for name, load in parser.written.items()}
        own = {name: str(load.tensor.dtype) for name, load in parser.written.items()}
        value = " " * head.start + head.text[head.start :]
        kinds = {name: kind for name, kind in parser.dtypes.items() if name not in own}
        super().__init__(value, parser.extents, kinds, shapes, "iteration", own, ())
        self.parser, self.head = parser, head
        self.axis: str | None = None
        self.mentioned: dict[str, None] = {}

    def check_iteration(self, token: Token) -> None:
        super().check_iteration(token)
        self.mentioned[token.text] = None

    def atom_of_expression(self) -> Node:
        """Also names alone: iterations, tensors at their own iterations, and scalars."""
        token = self.next
        after = self.tokens[self.position + 1].text if token.kind == "name" else ""
        if token.kind != "name" or after in ("[", "("):
            return super().atom_of_expression()
        self.take()
        if token.text in self.extents:
            self.mentioned[token.text] = None
            return Node(token.text)
        load = self.parser.written.get(token.text)
        if load is None:
            tensor = Tensor(token.text, (), self.dtypes.get(token.text, "float32"))
            self.tensors[token.text] = tensor
            return Node("read", load=BufferLoad(tensor, ()))
        self.mentioned |= dict.fromkeys(n for index in load.indices for n in index.names)
        return Node("read", load=load)

    def steps(self) -> tuple[Step, ...]:
        """What the statement comes to."""
        if (function := self._row_function()) is None:
            expression, cast = self.expression()
            if cast and self.head.sign:  # of what is summed, not of the sum
                name = next(short for short, kind in CASTS.items() if kind == cast)
                expression, cast = self.apply(name, expression), None
            return (self._assigned(self.head.name, expression, cast, self.head.sign),)
        value = self.shift()
        self._read_axis(function)
        if self.axis not in self.mentioned:
            raise OperatorError(
                f"axis {self.axis!r} is no iteration of {value}; these are "
                f"{', '.join(self.mentioned) or 'none'}"
            )
        named = self._dimensions()
        row = [name for name in named if name != self.axis]
        if self.head.indexed and (self.axis in named) != (function in _SOFTMAXES):
            keeps = "an iteration" if function in _SOFTMAXES else "no iteration"
            raise OperatorError(
                f"axis {self.axis!r} is {keeps} of {function}(…): {self.head.accesses[0]}"
            )
        return tuple(self._row_steps(function, value, row))

    def _row_function(self) -> str | None:
        """The function of a row that the value is, if its last argument is an axis."""
        token = self.next
        if token.text not in ROWS or not self.calls():
            return None
        axis = [n for n, each in enumerate(self.tokens) if each.text == "axis"]
        if not axis or self.tokens[axis[-1] + 1].text != "=":
            if token.text in ("max", "min"):
                return None
            self.fail(f"expected an axis: {token.text}(…, axis=k)", token)
        self.position += 2
        return token.text

    def _read_axis(self, function: str) -> None:
        """``"," "axis" "=" NAME ")"``"""
        self.expect(",", f"before the axis of {function}(…, axis=k)")
        if self.next.text != "axis":
            self.fail(f"expected the axis of {function}(…, axis=k), found {self.next}")
        self.position += 2
        self.axis = self.take().text
        self.expect(")", f"to close {function}(")
        if self.next.kind != "end":
            self.fail(f"{function}(…) is a statement of its own: give its result a name")
        if self.head.sign:
            self.fail(f"{function}(…) is assigned with '=', not '{self.head.sign}='")

    def _row_steps(self, function: str, value: Node, row: list[str]) -> Iterator[Step]:
        """A function of a row by maxima and sums."""
        name, whole_row = self.head.name, [*row, str(self.axis)]
        if function in ("sum", "max", "min"):
            combiner = "+" if function == "sum" else function
            yield self._assigned(name, value, None, combiner, row)
            return
        if function in _SOFTMAXES:
            whole_row = self._dimensions()
        if value.depth > _AGAIN:
            yield (row_values := self._assigned(f"{name}.value", value, None, "", whole_row))
            value = Node("read", load=row_values.output)
        yield (largest := self._assigned(f"{name}.max", value, None, "max", row))
        top = Node("read", load=largest.output)
        power = Node("subtract", (value, top))
        power = Node(EXP_NEGATIVE, (power,), function=self.table[EXP_NEGATIVE])
        yield (powers := self._assigned(f"{name}.exp", power, None, "", whole_row))
        numerator = Node("read", load=powers.output)
        yield (total := self._assigned(f"{name}.sum", numerator, None, "+", row))
        whole = Node("read", load=total.output)
        if share := _SOFTMAXES.get(function):
            quotient = Node(share, (numerator, whole), function=self.table[share])
            yield self._assigned(name, quotient, None, "", whole_row)
            return
        log = Node("log", (whole,), function=self.table["log"])
        yield self._assigned(name, Node("add", (top, log)), None, "", row)

    def _dimensions(self) -> list[str]:
        """The iterations of the target, or those that the value mentions."""
        if self.head.indexed:
            return _dimensions_of(self.head.accesses[0])
        return list(self.mentioned)

    def _assigned(
        self,
        name: str,
        expression: Node,
        cast: str | None,
        combiner: str,
        dimensions: list[str] | None = None,
    ) -> Assignment:
        """A step with the iterations that its expression and its target have."""
        names = self._dimensions() if dimensions is None else dimensions
        if len(set(names)) < len(names):
            raise OperatorError(f"{self.head.accesses[0]} is written: an iteration occurs twice")
        used = list(dict.fromkeys([*names, *_iterations_of(expression, self.extents)]))
        iterations = tuple(
            Iteration(n, self.extents[n], "spatial" if n in names else "reduce") for n in used
        )
        kinds = dict.fromkeys(used, "int32")
        kind = cast or expression.kind(kinds)
        if name in self.parser.dtypes:
            kind = self.parser.dtypes[name]
        tensor = Tensor(name, tuple(self.extents[n] for n in names), kind)
        destination = BufferLoad(tensor, tuple(Affine(((n, 1),)) for n in names))
        return Assignment(
            expression=expression,
            destination=destination,
            iterations=iterations,
            combiner=combiner,
        )


def _dimensions_of(target: Reference) -> list[str]:
    """The iteration of each dimension of what is written."""
    for index in target.indices:
        if index.constant or [c for _, c in index.terms] != [1]:
            raise OperatorError(
                f"{target} is written: expected one iteration as an index of each dimension, "
                f"got {index}"
            )
    return [index.names[0] for index in target.indices]


def _iterations_of(expression: Node, extents: Mapping[str, int]) -> Iterator[str]:
    """The iterations of an expression, in order of first appearance."""
    for node in expression.nodes():
        if node.load is not None:
            yield from (n for index in node.load.indices for n in index.names)
        elif node.is_variable and node.name in extents:
            yield node.name
