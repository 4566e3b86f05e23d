"""Tokens of operators and epilogues, and the check that their brackets balance."""

from __future__ import annotations

import re
from dataclasses import dataclass

from amos.errors import ParseError, quote
from amos.ir.limits import TEXT

#: Longer literals are typing errors, and Python refuses to convert huge ones.
_MAX_DIGITS = 18

# The signs of division, modulo and absolute values are no part of the language: they are read so
# that the parser can say what is wrong with them.
_PATTERN = re.compile(
    r"(?P<space>\s+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<symbol>\+=|\*=|//|>>|[\[\](),+\-*=/%|])"
)

_CLOSING = {"[": "]", "(": ")"}


@dataclass(frozen=True)
class Token:
    """A word of the text, and its zero-based column.

    ``kind`` is ``"name"``, ``"number"``, ``"symbol"`` or ``"end"``.
    """

    kind: str
    text: str
    column: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)


def to_one_line(text: str) -> str:
    """Replace each white-space character of a text by one space, so that carets stay in place."""
    if not isinstance(text, str):
        raise ParseError(f"expected a text such as 'out[i] += a[i, k]', got {quote(text)}", "", 0)
    if len(text) > TEXT:
        raise ParseError(
            f"expected at most {TEXT} characters, got {len(text)}", f"{text[:60]}…", 60
        )
    return re.sub(r"\s", " ", text)


def tokenize(text: str) -> list[Token]:
    """Split a statement into tokens; the last one has the kind ``"end"``.

    Raises:
        ParseError: a character that the language does not have, an integer that
            is too long, or a bracket without its partner.

    >>> [token.text for token in tokenize("a[i] += 2")]
    ['a', '[', 'i', ']', '+=', '2', '']
    """
    tokens: list[Token] = []
    column = 0
    while column < len(text):
        match = _PATTERN.match(text, column)
        if match is None:
            raise ParseError(f"unexpected character {text[column]!r}", text, column)
        word, kind = match.group(), match.lastgroup
        if word.isdecimal() and len(word) > _MAX_DIGITS:
            raise ParseError(f"integer of {len(word)} digits is too large", text, column)
        if kind != "space":
            tokens.append(Token(str(kind), word, column))
        column = match.end()
    _check_brackets(tokens, text)
    return [*tokens, Token("end", "", len(text.rstrip()))]


def _check_brackets(tokens: list[Token], text: str) -> None:
    """Find unbalanced brackets before parsing: the caret then marks the bracket itself."""
    opened: list[Token] = []
    for token in tokens:
        if token.text in _CLOSING:
            opened.append(token)
        elif token.text in _CLOSING.values():
            if not opened:
                raise ParseError(f"unbalanced bracket: {token} closes nothing", text, token.column)
            start = opened.pop()
            if _CLOSING[start.text] != token.text:
                raise ParseError(
                    f"unbalanced bracket: expected {_CLOSING[start.text]!r} "
                    f"to close {start}, found {token}",
                    text,
                    token.column,
                )
    if opened:
        raise ParseError(
            f"unbalanced bracket: {opened[-1]} is never closed", text, opened[-1].column
        )
