"""From text to the tree of an expression.

Grammar, where ``index`` is that of :mod:`amos.ir.grammar`::

    shift   := sum (">>" NUMBER)*
    sum     := product (("+" | "-") product)*
    product := unary (("*" | "/") unary)*
    unary   := "-"* (NUMBER | VARIABLE | call | access | "(" shift ")")
    call    := NAME "(" [shift ("," shift)*] ")"
    access  := NAME "[" [index ("," index)*] "]"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from amos.errors import OperatorError, quote, suggestion
from amos.ir.affine import Affine
from amos.ir.epilogue import ACC, Epilogue
from amos.ir.expression import CASTS, OPERATIONS, Function, Node
from amos.ir.functions import DEFINITIONS, OF_FLOATS
from amos.ir.grammar import IndexReader
from amos.ir.limits import DEPTH, whole_number
from amos.ir.nodes import BufferLoad, Tensor
from amos.ir.tokens import Token, to_one_line, tokenize

#: Numbers from here on would be rounded to an infinity.
_ENDS_OF_FLOAT32 = 2.0**128 - 2.0**103
_EXAMPLE = "u8(relu((acc + bias[k]) * scale[k]))"


def tensors_in(text: str) -> tuple[str, ...]:
    """Return the names of the tensors that an expression reads."""
    tokens = pairwise(tokenize(to_one_line(text)))
    names = [token.text for token, after in tokens if token.kind == "name" and after.text == "["]
    return tuple(dict.fromkeys(names))


@cache
def functions() -> Mapping[str, Function]:
    """Return the functions that the language defines, by name."""
    table: dict[str, Function] = {}
    for text in (*DEFINITIONS, *OF_FLOATS):
        head, _, body = text.partition("=")
        name, _, arguments = head.partition("(")
        parameters = tuple(each.strip(" )") for each in arguments.split(","))
        reader = ExpressionReader(body, {}, {}, {}, "index", variables=parameters, table=table)
        table[name] = Function(name, parameters, reader.shift(), text in OF_FLOATS)
    return table


class ExpressionReader(IndexReader):
    """One method for each rule of the grammar.

    Args:
        what: the kind of its indices, for messages.
        default_dtypes: dtypes of tensors missing from ``dtypes``; others are float32.
        variables: names that are variables of the tree.
        table: the functions that may be called; those of the language by default.
    """

    def __init__(
        self,
        text: str,
        extents: Mapping[str, int],
        dtypes: Mapping[str, str],
        shapes: Mapping[str, Sequence[int]],
        what: str,
        default_dtypes: Mapping[str, str] | None = None,
        variables: Sequence[str] = (),
        table: Mapping[str, Function] | None = None,
    ) -> None:
        super().__init__(text, extents, what)
        self.dtypes, self.shapes, self.default_dtypes = dtypes, shapes, default_dtypes or {}
        self.tensors: dict[str, Tensor] = {}
        self.variables = variables
        self.table = functions() if table is None else table
        self.defines = table is not None

    def expression(self) -> tuple[Node, str | None]:
        """Read the whole text: the expression, and the dtype to which a final cast rounds."""
        expression = self.shift()
        if self.next.text in ("=", "+=", "*="):
            self.fail("an expression assigns and sums nothing: it is the value of one element")
        if self.next.kind != "end":
            self.fail(f"expected an expression such as {_EXAMPLE!r}")
        if expression.name in CASTS:
            return expression.arguments[0], CASTS[expression.name]
        return expression, None

    def check_given(self, where: str) -> None:
        """Refuse dtypes and shapes of tensors that the text does not read."""
        for what, names in (("dtype", self.dtypes), ("shape", self.shapes)):
            if unknown := [name for name in names if name not in self.tensors]:
                raise OperatorError(
                    f"{what} given for {unknown[0]!r}, which the {where} does not read; "
                    f"it reads {', '.join(sorted(self.tensors)) or 'no tensor'}"
                )

    def apply(self, name: str, *arguments: Node) -> Node:
        """Build an operation; refuse expressions that are nested too deep."""
        node = Node(name, arguments, function=self.table.get(name))
        if node.depth > DEPTH:
            self.fail(f"expressions are nested deeper than {DEPTH}")
        return node

    def shift(self) -> Node:
        """Read ``sum (">>" NUMBER)*``."""
        value = self.sum()
        while self.accept(">>"):
            token = self.take()
            if not (token.text.isdecimal() and int(token.text) < 32):
                self.fail("expected a whole number from 0 to 31 to shift by", token)
            value = self.apply("shift", value, Node("number", value=int(token.text)))
        return value

    def sum(self) -> Node:
        """Read ``product (("+" | "-") product)*``."""
        total = self.product()
        while sign := self.accept("+", "-"):
            total = self.apply("add" if sign.text == "+" else "subtract", total, self.product())
        return total

    def product(self) -> Node:
        """Read ``unary (("*" | "/") unary)*``."""
        product = self.unary()
        while sign := self.accept("*", "/"):
            name = "multiply" if sign.text == "*" else "divide"
            product = self.apply(name, product, self.unary())
        if self.next.text in ("//", "%"):
            self.fail(f"{self.next.text} is no sign of an expression; signs are + - * / >>")
        return product

    def unary(self) -> Node:
        """Read ``"-"* (number | atom)``."""
        signs = 0
        while self.accept("-"):
            signs += 1
        if self.next.kind == "number":
            node = self.number(-1 if signs else 1)
            signs -= signs > 0
        else:
            node = self.atom_of_expression()
        for _ in range(signs):
            node = self.apply("subtract", Node("number", value=0), node)
        return node

    def number(self, sign: int) -> Node:
        """Read a number of int32 or float32."""
        token = self.take()
        value = sign * (int(token.text) if token.text.isdecimal() else float(token.text))
        if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
            self.fail(f"integer {quote(value)} is outside int32", token)
        if isinstance(value, float) and not abs(value) < _ENDS_OF_FLOAT32:
            self.fail(f"number {value} is outside float32", token)
        return Node("number", value=value)

    def atom_of_expression(self) -> Node:
        """Read ``VARIABLE | call | access | "(" shift ")"``."""
        token = self.next
        if self.accept("("):
            self.descend(token)
            inner = self.shift()
            self.expect(")", "to close the parenthesis")
            self.depth -= 1
            return inner
        if token.kind != "name":
            self.fail(f"expected an expression such as {_EXAMPLE!r}")
        if self.is_call():
            return self.call()
        self.take()
        if self.accept("["):
            return Node("read", load=self.load(token))
        if token.text not in self.variables:
            choices = [*self.variables, f"{token.text}[...] for a tensor"]
            self.fail(f"unknown name {token.text!r}: write {' or '.join(choices)}", token)
        return Node(token.text)

    def call(self) -> Node:
        """Read ``NAME "(" [shift ("," shift)*] ")"``."""
        token = self.take()
        expected = self.arity(token)
        self.descend(self.take())
        arguments = [] if self.next.text == ")" else [self.shift()]
        while self.accept(","):
            arguments.append(self.shift())
        self.expect(")", f"after the arguments of {token.text}(...)")
        self.depth -= 1
        if len(arguments) != expected:
            self.fail(
                f"{token.text}(...) takes {expected} argument{'s' * (expected > 1)}, "
                f"got {len(arguments)}",
                token,
            )
        return self.apply(token.text, *arguments)

    def arity(self, token: Token) -> int:
        """Return how many arguments a function takes; refuse unknown functions."""
        arities = {name: len(each.parameters) for name, each in self.table.items()} | OPERATIONS
        if token.text not in arities or (token.text[0] == "_" and not self.defines):
            listed = arities.keys() - {"times"}  # only networks write that
            names = ", ".join(sorted(name for name in listed if name[0] != "_"))
            self.fail(
                f"unknown function {token.text!r}{suggestion(token.text, arities)}; "
                f"functions of one element are {names}",
                token,
            )
        return arities[token.text]

    def is_cut(self, load: BufferLoad) -> bool:
        """Return whether an access may exceed its tensor since nothing is computed there."""
        return False

    def load(self, token: Token) -> BufferLoad:
        """Read the access to a tensor, from behind the opening bracket on."""
        name, indices = token.text, self.indices(token)
        shape = self.shape(token, indices)
        if len(shape) != len(indices):
            self.fail(f"{name!r} has {len(shape)} dimensions, but {len(indices)} indices", token)
        tensor = Tensor(
            name, shape, self.dtypes.get(name, self.default_dtypes.get(name, "float32"))
        )
        if self.tensors.setdefault(name, tensor) != tensor:
            self.fail(f"tensor {name!r} is read with two shapes", token)
        load = BufferLoad(tensor, indices)
        if (overrun := load.overrun(self.extents)) and not self.is_cut(load):
            self.fail(overrun, token)
        return load

    def shape(self, token: Token, indices: Sequence[Affine]) -> tuple[int, ...]:
        """Return the shape of a tensor: as stated, or the range that is read."""
        if token.text not in self.shapes:
            return tuple(index.bounds(self.extents)[1] + 1 for index in indices)
        stated, where = self.shapes[token.text], f"shape of {token.text!r}"
        if isinstance(stated, str) or not isinstance(stated, Sequence):
            self.fail(f"{where}: expected sizes such as (8, 16), got {quote(stated)}", token)
        return tuple(whole_number(size, where) for size in stated)


def parse_epilogue(
    text: str,
    extents: Mapping[str, int],
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> Epilogue:
    """Read an epilogue whose tensors iterations with these extents may index.

    See :meth:`Operator.with_epilogue <amos.ir.Operator.with_epilogue>`.

    >>> print(parse_epilogue("s8(acc*scale[k] + 3)", {"k": 4}, {}, {}))
    s8(acc * scale[k] + 3)
    """
    what = "iteration of the output"
    reader = ExpressionReader(text, extents, dtypes, shapes, what, variables=(ACC,))
    expression, cast = reader.expression()
    reader.check_given("epilogue")
    return Epilogue(expression, cast)
