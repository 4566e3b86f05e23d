"""The operator language: one line of math, read by recursive descent.

Grammar::

    statement := access ("+=" | "*=" | "max=" | "min=" | "=") joined
    joined    := source ("*" source)* | source ("+" source)* | source ("-" source)*
               | ("max" | "min") "(" source ("," source)* ")"
    source    := access | "pad" "(" access ["," number] ")"
    number    := "-"* (NUMBER | "inf")
    access    := NAME "[" [index ("," index)*] "]"
    index     := term (("+" | "-") term)*
    term      := factor ("*" factor)*          at most one factor is not constant
    factor    := "-"* (INTEGER | NAME | "(" index ")")

``pad(...)`` reads zeros outside the tensor, or the number that follows the access;
``scale[]`` is a scalar operand.
The result knows neither extents nor shapes: :mod:`amos.ir.parser` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import NoReturn

from amos.errors import ParseError
from amos.ir.affine import Affine
from amos.ir.combining import COMBINERS, JOINS
from amos.ir.limits import DEPTH, LOOPS
from amos.ir.padding import padded_text
from amos.ir.tokens import Token, to_one_line, tokenize

_EXAMPLE = "out[i,j] += a[i,k] * b[k,j]"
_JOINED = "'*', '+', '-', max(...) or min(...)"


@dataclass(frozen=True)
class Reference:
    """A tensor access as written: name, one affine index a dimension, ``pad`` and its number."""

    name: str
    indices: tuple[Affine, ...]
    padded: bool = False
    padding: int | float = 0

    def __str__(self) -> str:
        inner = f"{self.name}[{', '.join(map(str, self.indices))}]"
        return padded_text(inner, self.padding) if self.padded else inner


@dataclass(frozen=True)
class Statement:
    """``output (+)= source * source * …`` as written.

    ``combiner`` is the sign before ``=``, and ``join`` the sign between the sources, as in
    :class:`~amos.ir.nodes.Compute`. ``mentioned`` lists every iteration in order of
    appearance, also one that cancels out (``p - p``).
    """

    output: Reference
    sources: tuple[Reference, ...]
    combiner: str
    join: str
    mentioned: tuple[str, ...]

    @property
    def references(self) -> tuple[Reference, ...]:
        """The output, then the sources: the order in which iterations are numbered."""
        return (self.output, *self.sources)


def read_statement(text: str) -> Statement:
    """Read one line of math.

    Raises:
        ParseError: the text is no statement; a caret marks the column.

    >>> statement = read_statement("out[n,k] += a[n, 2*(k + 1) - k] * b[]")
    >>> statement.sources[0].indices
    (n, k + 2)
    """
    return _StatementReader(text).statement()


class Reader:
    """Recursive descent over tokens: the rules that statements and epilogues share."""

    def __init__(self, text: str) -> None:
        self.text = to_one_line(text)
        self.tokens = tokenize(self.text)
        self.position = 0
        self.depth = 0
        self.tensor = self.next  # whose indices are being read

    @property
    def next(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Refuse the text at a token, the next one by default."""
        raise ParseError(message, self.text, (token or self.next).column)

    def take(self) -> Token:
        """Consume the next token, which is not the end."""
        token = self.next
        self.position += 1
        return token

    def accept(self, *spellings: str) -> Token | None:
        """Consume the next token if it is one of the symbols."""
        return self.take() if self.next.text in spellings else None

    def expect(self, spelling: str, where: str) -> None:
        """Consume the next token, which has to be this one."""
        if not self.accept(spelling):
            self.fail(f"expected {spelling!r} {where}, found {self.next}")

    def is_call(self) -> bool:
        """Return whether a name with an opening parenthesis comes next."""
        return self.next.kind == "name" and self.tokens[self.position + 1].text == "("

    def descend(self, token: Token) -> None:
        """Go one parenthesis deeper; too many would exhaust Python's stack."""
        self.depth += 1
        if self.depth > DEPTH:
            self.fail(f"parentheses are nested deeper than {DEPTH}", token)

    def indices(self, tensor: Token) -> tuple[Affine, ...]:
        """Read the indices of a tensor, from behind the opening bracket on."""
        self.tensor = tensor
        if self.accept("]"):
            return ()
        indices = [self.index()]
        while self.accept(","):
            indices.append(self.index())
        self.close()
        if self.next.text == "[":
            self.fail(f"indices of {tensor.text!r} stand in one bracket: write {tensor.text}[i, j]")
        return tuple(indices)

    def close(self) -> None:
        """Read the closing bracket of an access, or name the token in its place."""
        if self.accept("]"):
            return
        token, previous = self.next, self.tokens[self.position - 1]
        if token.text in ("/", "//", "%"):
            kind = "modulo" if token.text == "%" else "division"
            self.fail(f"index of {self.tensor.text!r} is not affine: {kind} ({token.text})")
        if previous.kind == "number" and token.kind == "name":
            self.fail(f"expected '*' between {previous.text} and {token.text}")
        self.fail(f"expected ',' or ']' in the indices of {self.tensor.text!r}, found {token}")

    def index(self) -> Affine:
        """Read ``term (("+" | "-") term)*``."""
        total = self.term()
        while sign := self.accept("+", "-"):
            total = total + self.term() * (1 if sign.text == "+" else -1)
        return total

    def term(self) -> Affine:
        """Read ``factor ("*" factor)*``."""
        product = self.factor()
        while star := self.accept("*"):
            factor = self.factor()
            if product.terms and factor.terms:
                self.fail(f"not affine: product of {product} and {factor}", star)
            scaled, by = (product, factor) if product.terms else (factor, product)
            product = scaled * by.constant
        return product

    def factor(self) -> Affine:
        """Read ``"-"* atom``."""
        sign = 1
        while self.accept("-"):
            sign = -sign
        return self.atom() * sign

    def atom(self) -> Affine:
        """Read ``INTEGER | NAME | "(" index ")"``."""
        token = self.next
        if token.text.isdecimal():
            return Affine(constant=int(self.take().text))
        if token.kind == "name":
            self.check_iteration(self.take())
            return Affine(((token.text, 1),))
        if not self.accept("("):
            self.fail(f"expected an index (an iteration or an integer), found {token}")
        self.descend(token)
        inner = self.index()
        if self.next.text in ("/", "//", "%"):
            self.fail(f"not affine: {self.next} in an index")
        self.expect(")", "to close the parenthesis")
        self.depth -= 1
        return inner

    def check_iteration(self, token: Token) -> None:
        """Refuse a name in an index that is no iteration."""
        if self.next.text == "[":
            self.fail(
                f"data-dependent index: {token.text!r} is a tensor, and an index "
                "is an affine expression of iterations",
                token,
            )
        if self.next.text == "(":
            self.fail(f"not affine: call of {token.text!r} in an index", token)


class IndexReader(Reader):
    """A reader of accesses by iterations that already exist."""

    def __init__(self, text: str, extents: Mapping[str, int], what: str) -> None:
        super().__init__(text)
        self.extents, self.what = extents, what

    def check_iteration(self, token: Token) -> None:
        """Refuse an index that no iteration or dimension is called."""
        super().check_iteration(token)
        if token.text not in self.extents:
            self.fail(
                f"{self.tensor.text!r} is indexed by {token.text!r}, which is no {self.what}; "
                f"these are {', '.join(self.extents) or 'none'}",
                token,
            )


class _StatementReader(Reader):
    """One method for each further rule of the grammar."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.mentioned: dict[str, None] = {}

    def statement(self) -> Statement:
        if self.next.kind == "end":
            self.fail(f"the text is empty: expected a statement such as {_EXAMPLE!r}")
        if self.is_pad():
            self.fail("only a source can be padded, not the output")
        output = self.access("the output")
        combiner = self.combiner()
        join, sources = self.sources()
        self.finish(join)
        return Statement(output, tuple(sources), combiner, join, tuple(self.mentioned))

    def combiner(self) -> str:
        """Read the sign before ``=``: how the destination takes a value up."""
        token, following = self.next, self.tokens[min(self.position + 1, len(self.tokens) - 1)]
        if token.text in ("=", "+=", "*="):
            return self.take().text[:-1]
        is_sign = token.kind in ("name", "symbol") and token.text not in (",", "[")
        if is_sign and following.text == "=":
            if token.text not in COMBINERS:
                signs = ", ".join(f"'{symbol}='" for symbol in COMBINERS)
                self.fail(f"unknown combining operator '{token.text}=': expected {signs} or '='")
            self.position += 2
            return token.text
        self.fail(f"expected '+=' or '=' after the output, found {token}")

    def sources(self) -> tuple[str, list[Reference]]:
        """Read the sources, and the function that joins them."""
        if self.next.text in ("max", "min") and self.is_call():
            join = self.take().text
            self.take()
            sources = [self.source()]
            while self.accept(","):
                sources.append(self.source())
            self.expect(")", f"to close {join}(")
            if len(sources) == 1:
                self.fail(f"{join}(...) of one source is that source: write it alone")
            return join, sources
        sources = [self.source()]
        join = self.next.text if self.next.text in ("+", "-", "*") else "*"
        while self.accept(join):
            sources.append(self.source())
        return join, sources

    def finish(self, join: str) -> None:
        """Refuse any text after the last source, by name."""
        token = self.next
        if token.kind == "end":
            return
        if token.text in ("+", "-") and join == "*":
            self.fail(
                "a sum of products is not supported: an intrinsic multiplies its sources, "
                "so write each product as an operator of its own"
            )
        if token.text in ("/", "//", "%"):
            self.fail(f"{token} between sources is not supported: they are joined by {_JOINED}")
        if token.text in ("=", "+=", "*="):
            self.fail("a second assignment: the text holds one statement")
        if token.text in JOINS:
            self.fail(
                f"{token} beside {join!r}: all sources of a statement are joined by one function"
            )
        self.fail(f"unexpected {token} after the statement; sources are joined by {_JOINED}")

    def source(self) -> Reference:
        token = self.next
        if token.text == "|":
            self.fail(
                "|...| is written as a prologue: put a new source, as d[i,k], in its place, and "
                "define --prologue 'd[i,k] = abs(...)', in Python with_prologue"
            )
        if token.kind == "number":
            self.fail("a constant is not supported: a source is a tensor access")
        if token.text == "-":
            self.fail(f"a negated source is not supported: sources are joined by {_JOINED}")
        if token.text == "(":
            self.fail(f"parentheses around sources are not supported: join them by {_JOINED}")
        if not self.is_pad():
            return self.access("a source")
        self.position += 2
        if self.is_pad():
            self.fail("pad(pad(...)) pads twice; once is enough")
        inner = self.access("a tensor inside pad(...)")
        value = self.padding() if self.accept(",") else 0
        self.expect(")", "after the access in pad(...)")
        return Reference(inner.name, inner.indices, padded=True, padding=value)

    def padding(self) -> int | float:
        """Read ``"-"* (NUMBER | "inf")``: the value of elements outside of the tensor."""
        sign = 1
        while self.accept("-"):
            sign = -sign
        token = self.next
        if self.accept("inf"):
            return sign * inf
        if token.kind != "number":
            self.fail(f"expected a number, which stands for what lies outside, found {token}")
        self.take()
        value = int(token.text) if token.text.isdecimal() else float(token.text)
        if not isfinite(value):
            self.fail(f"number {token.text} is too large", token)
        return sign * value

    def is_pad(self) -> bool:
        return self.next.text == "pad" and self.is_call()

    def access(self, what: str) -> Reference:
        name = self.next
        if name.kind != "name":
            self.fail(f"expected {what}, for example 'a[i,k]', found {name}")
        if self.is_call():
            self.fail(
                f"unknown function {name.text!r}: sources have pad(...), max(...) and min(...) "
                f"only; put a new source, as d[i,k], in its place, and define that by a prologue: "
                f"--prologue 'd[i,k] = {name.text}(...)', in Python with_prologue"
            )
        self.take()
        if not self.accept("["):
            self.fail(
                f"{name.text!r} has no indices; write {name.text}[i] for a tensor "
                f"or {name.text}[] for a scalar",
                name,
            )
        return Reference(name.text, self.indices(name))

    def check_iteration(self, token: Token) -> None:
        super().check_iteration(token)
        self.mentioned[token.text] = None
        if len(self.mentioned) > LOOPS:
            self.fail(f"expected at most {LOOPS} iterations", token)
