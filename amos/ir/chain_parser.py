"""From several statements to a :class:`~amos.ir.chain.Chain`.

Grammar, where ``index`` is that of :mod:`amos.ir.grammar` and ``shift`` an expression of
:mod:`amos.ir.expression_parser`; literals are those of :mod:`amos.ir.transform_parser`::

    chain     := statement (";" statement)* [";"]
    statement := product | literal | transform | target ("=" | "+=" | "max=" | "min=") value
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
from dataclasses import dataclass, field, replace

from amos.errors import OperatorError, ParseError, suggestion
from amos.ir.affine import Affine
from amos.ir.chain import Assignment, Chain, Statement, Step, fill_dtypes
from amos.ir.chain_scanner import Scanner
from amos.ir.expression import CASTS, EXP_NEGATIVE, SHARE, SHARE_OR_ZERO, Node
from amos.ir.expression_parser import ExpressionReader
from amos.ir.grammar import Reference, read_statement
from amos.ir.nodes import BufferLoad, Iteration, Tensor
from amos.ir.parser import check_extents, dimension_size, parse_statement
from amos.ir.tokens import Token
from amos.ir.transform_parser import (
    EXPECTED,
    Matrix,
    define_literals,
    find_transform,
    read_literals,
    transform_of,
    with_epilogue,
)
from amos.ir.transforms import Transform

#: Functions of a whole row, which take an axis.
ROWS = ("softmax", "safe_softmax", "logsumexp", "sum", "max", "min")
#: Those that keep the axis, by their quotient; a safe softmax is 0 where softmax is NaN.
_SOFTMAXES = {"softmax": SHARE, "safe_softmax": SHARE_OR_ZERO}
#: Deepest expression that is computed twice, for the maximum and for the exponential.
_AGAIN = 2


@dataclass
class ChainParser:
    """Parser of the statements of a chain, with the known facts about their tensors."""

    extents: Mapping[str, int]
    dtypes: Mapping[str, str]
    shapes: dict[str, Sequence[int]]
    written: dict[str, BufferLoad] = field(default_factory=dict)
    literals: dict[str, Matrix] = field(default_factory=dict)

    def parse(self, text: str, name: str | None) -> Chain:
        """Read all statements; see :meth:`Chain.parse <amos.ir.Chain.parse>` for errors."""
        texts = [each.strip() for each in text.split(";")]
        texts = texts[:-1] if len(texts) > 1 and not texts[-1] else texts
        self.literals, heads = read_literals(texts)
        self._find_shapes(heads)
        statements = list[Statement]()
        for number, head in enumerate(heads, 1):
            early = [x for x in heads[number - 1 :] if x.name in head.reads - self.written.keys()]
            if early:
                raise OperatorError(
                    f"statement {number}, {head.text!r}: reads {early[0].name!r} before "
                    f"{early[0].text!r} writes it"
                )
            if transform := find_transform(head, statements, heads):
                with _quote_errors(head.text):
                    steps: tuple[Step, ...] = (self._with_epilogue(transform, head),)
                    statements[-1] = Statement(f"{statements[-1]}; {head.text}", steps)
            else:
                for read in head.accesses[1:] if head.indexed else head.accesses:
                    self._check_written(number, head, read, heads)
                steps = self._steps(head)
                statements.append(Statement(head.text, steps))
            self.written |= {step.output.tensor.name: step.output for step in steps}
        definitions = define_literals([step for each in statements for step in each.steps])
        statements[0] = replace(statements[0], text=definitions + statements[0].text)
        chain = Chain(tuple(statements), name or statements[-1].tensor.name)
        self._check_names(chain)
        return chain

    def _check_written(
        self, number: int, head: Scanner, read: Reference, heads: Sequence[Scanner]
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

    def _find_shapes(self, heads: Sequence[Scanner]) -> None:
        """Give each input the shape that all statements together read."""
        written = {head.name for head in heads}
        used = dict.fromkeys(n for head in heads for n in head.iterations)
        check_extents(self.extents, [*used])
        reached: dict[str, Reference] = {}
        for head in heads:
            for read in head.accesses:
                if read.name in written or read.name in self.literals:
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
                why = "is never stored" if unknown[0] in self.written else "does not occur"
                raise OperatorError(
                    f"{what} given for {unknown[0]!r}, which {why}; tensors are "
                    f"{', '.join(public)}{suggestion(unknown[0], public)}"
                )

    def _steps(self, head: Scanner) -> tuple[Step, ...]:
        with _quote_errors(head.text):
            if head.indexed and (product := self._product(head)) is not None:
                return (product,)
            if not head.reads.isdisjoint(self.literals):
                raise OperatorError(EXPECTED)
            return _AssignmentReader(self, head).steps()

    def _with_epilogue(self, transform: Transform, head: Scanner) -> Transform:
        """Store an expression of each sum of a transform instead of the sum."""
        expression, cast = _AssignmentReader(self, head).expression()
        kind = cast or expression.kind(dict.fromkeys(self.extents, "int32"))
        shape = self.shapes.get(head.name, transform.destination.tensor.shape)
        tensor = Tensor(head.name, tuple(shape), self.dtypes.get(head.name, kind))
        written = self.written.keys() | self.literals.keys()
        return with_epilogue(transform, tensor, expression, written)

    def _product(self, head: Scanner) -> Step | None:
        """Read a sum of products, also of literals; ``None`` for any other statement."""
        is_transform = not head.reads.isdisjoint(self.literals)
        try:
            statement = read_statement(head.text)
        except ParseError:
            return None
        is_product = statement.combiner == "+" and statement.join == "*"
        if not is_transform and (not is_product or len(statement.sources) < 2):
            return None
        names = {reference.name for reference in statement.references}
        used = {n for reference in statement.references for i in reference.indices for n in i.names}
        sizes = dict[str, Sequence[int]](self.shapes)
        sizes |= {name: (len(rows), len(rows[0])) for name, rows in self.literals.items()}
        sizes |= {n: x.tensor.shape for n, x in self.written.items()}
        shapes = {name: size for name, size in sizes.items() if name in names}
        extents = {name: size for name, size in self.extents.items() if name in used}
        kinds = {n: str(x.tensor.dtype) for n, x in self.written.items()} | dict(self.dtypes)
        if not is_transform:
            _dimensions_of(head.accesses[0])
        compute = parse_statement(head.text, extents, {}, shapes)
        if is_transform:
            return transform_of(compute, self.literals, kinds)
        from amos.ir.operator import Operator

        weights = tuple(load.tensor.name for load in compute.sources)
        weights = tuple(dict.fromkeys(n for n in weights if n.startswith("weight")))
        return fill_dtypes(Operator(compute, head.name, weights), kinds)


@contextmanager
def _quote_errors(text: str) -> Iterator[None]:
    """Quote the statement in its errors."""
    try:
        yield
    except ParseError as error:
        raise ParseError(str(error).split("\n", 1)[0], text, error.column) from None
    except OperatorError as error:
        raise OperatorError(str(error) if text in str(error) else f"{text!r}: {error}") from None


class _AssignmentReader(ExpressionReader):
    """Reads the value of a statement."""

    def __init__(self, parser: ChainParser, head: Scanner) -> None:
        shapes = dict(parser.shapes)
        shapes |= {name: load.tensor.shape for name, load in parser.written.items()}
        written_dtypes = {name: str(load.tensor.dtype) for name, load in parser.written.items()}
        value = " " * head.start + head.text[head.start :]
        kinds = {name: kind for name, kind in parser.dtypes.items() if name not in written_dtypes}
        super().__init__(value, parser.extents, kinds, shapes, "iteration", written_dtypes, ())
        self.parser, self.head = parser, head
        self.axis: str | None = None
        self.mentioned: dict[str, None] = {}

    def check_iteration(self, token: Token) -> None:
        super().check_iteration(token)
        self.mentioned[token.text] = None

    def is_cut(self, load: BufferLoad) -> bool:
        """Return whether the access has a result's indices, beyond which no transform stores."""
        target = self.head.accesses[0].indices if self.head.indexed else ()
        return any(len(index.terms) > 1 for index in target) and {*load.indices} <= {*target}

    def atom_of_expression(self) -> Node:
        """Read names without indices, too: iterations, written tensors, and scalars."""
        token = self.next
        following = self.tokens[self.position + 1].text if token.kind == "name" else ""
        if token.kind != "name" or following in ("[", "("):
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
        if (function := self._row_function()) is None:
            expression, cast = self.expression()
            if cast and self.head.sign:  # rounds the terms, not the sum
                name = next(short for short, kind in CASTS.items() if kind == cast)
                expression, cast = self.apply(name, expression), None
            return (self._assign(self.head.name, expression, cast, self.head.sign),)
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
        """Read the name of a row function: one whose last argument is an axis."""
        token = self.next
        if token.text not in ROWS or not self.is_call():
            return None
        axis = [n for n, each in enumerate(self.tokens) if each.text == "axis"]
        if not axis or self.tokens[axis[-1] + 1].text != "=":
            if token.text in ("max", "min"):
                return None
            self.fail(f"expected an axis: {token.text}(…, axis=k)", token)
        self.position += 2
        return token.text

    def _read_axis(self, function: str) -> None:
        """Read ``"," "axis" "=" NAME ")"``."""
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
        """Yield the maxima and sums that compute a row function."""
        name, whole_row = self.head.name, [*row, str(self.axis)]
        if function in ("sum", "max", "min"):
            combiner = "+" if function == "sum" else function
            yield self._assign(name, value, None, combiner, row)
            return
        if function in _SOFTMAXES:
            whole_row = self._dimensions()
        if value.depth > _AGAIN:
            yield (row_values := self._assign(f"{name}.value", value, None, "", whole_row))
            value = Node("read", load=row_values.output)
        yield (largest := self._assign(f"{name}.max", value, None, "max", row))
        top = Node("read", load=largest.output)
        power = Node("subtract", (value, top))
        power = Node(EXP_NEGATIVE, (power,), function=self.table[EXP_NEGATIVE])
        yield (powers := self._assign(f"{name}.exp", power, None, "", whole_row))
        numerator = Node("read", load=powers.output)
        yield (total := self._assign(f"{name}.sum", numerator, None, "+", row))
        row_sum = Node("read", load=total.output)
        if share := _SOFTMAXES.get(function):
            quotient = Node(share, (numerator, row_sum), function=self.table[share])
            yield self._assign(name, quotient, None, "", whole_row)
            return
        log = Node("log", (row_sum,), function=self.table["log"])
        yield self._assign(name, Node("add", (top, log)), None, "", row)

    def _dimensions(self) -> list[str]:
        """Return the iterations of the target, or those that the value mentions."""
        if self.head.indexed:
            return _dimensions_of(self.head.accesses[0])
        return list(self.mentioned)

    def _assign(
        self,
        name: str,
        expression: Node,
        cast: str | None,
        combiner: str,
        dimensions: list[str] | None = None,
    ) -> Assignment:
        """Build a step with the iterations of its expression and its target."""
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
            expression=expression, destination=destination, iterations=iterations, combiner=combiner
        )


def _dimensions_of(target: Reference) -> list[str]:
    for index in target.indices:
        if index.constant or [c for _, c in index.terms] != [1]:
            raise OperatorError(
                f"{target} is written: expected one iteration as an index of each dimension, "
                f"got {index}"
            )
    return [index.names[0] for index in target.indices]


def _iterations_of(expression: Node, extents: Mapping[str, int]) -> Iterator[str]:
    """Yield the iterations of an expression, in order of first appearance."""
    for node in expression.nodes():
        if node.load is not None:
            yield from (n for index in node.load.indices for n in index.names)
        elif node.is_variable and node.name in extents:
            yield node.name
