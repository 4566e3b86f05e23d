"""Names that a statement of a chain reads and writes, found before it is parsed."""

from __future__ import annotations

from amos.ir.grammar import Reader, Reference


class Scanner(Reader):
    """The target of a statement, and all its accesses.

    Attributes:
        indexed: whether indices follow the name.
        accesses: with the target first if it is indexed.
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
            padded = self.next.text == "pad" and self.is_call()
            self.position += 2 * padded
            token = self.take()
            if token.kind == "name" and self.start >= 0 and self.next.text != "(":
                self.reads.add(token.text)
            if token.kind == "name" and self.accept("["):
                self.accesses.append(Reference(token.text, self.indices(token), padded))
            elif self.start < 0 and token.text in ("=", "+=", "*="):
                previous = self.tokens[self.position - 2]
                word = previous.text if previous.text in ("max", "min") else ""
                self.sign = (word or token.text[:-1]) if self.position > 2 or word else ""
                self.start = token.column + len(token.text)
        if self.start < 0:
            self.fail("expected '=' or '+=' after the tensor that is written")

    @property
    def iterations(self) -> list[str]:
        """Iterations that index any access."""
        return [n for access in self.accesses for index in access.indices for n in index.names]
