"""Lines, indentation and tokens of the text form."""

from __future__ import annotations

import functools
import re

from qdtrace.errors import QdError
from qdtrace.frozen import frozen

_TOKEN = r"""
      (?P<space>[ ]+|\#.*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<literal>-?(?:inf|nan(?:\(0x[0-9a-f]+\))?|\d+(?:\.\d*)?(?:e[+-]?\d+)?):[a-z]+[0-9]+)
    | (?P<dims>\d+(?:x\d+)+)
    | (?P<number>-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?![A-Za-z0-9_]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>[:=,()\[\]{}@])
    """


@functools.cache
def _token() -> re.Pattern[str]:
    """Returns the pattern of a token, which takes 3 ms to compile: most processes read no text."""
    return re.compile(_TOKEN, re.VERBOSE)


class ParseError(QdError):
    """Error of a text that is no graph: the line and column where reading stopped, and the rule broken there."""


@frozen(slots=True)
class Token:
    """A word, literal, number, string or mark; `kind` of a mark is the mark itself, of an end of line "end"."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the line" if self.kind == "end" else f"`{self.text}`"


class Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, depth: int, tokens: list[Token]) -> None:
        self.depth = depth
        self.tokens = tokens
        self.at = 0

    @property
    def next(self) -> Token:
        """The token not yet read."""
        return self.tokens[self.at]

    def is_next(self, *texts: str) -> bool:
        """Returns whether the next tokens are these words or marks."""
        coming = self.tokens[self.at : self.at + len(texts)]
        return len(coming) == len(texts) and all(
            t.text == want and t.kind != "string" for t, want in zip(coming, texts, strict=True)
        )

    def take(self, text: str) -> bool:
        """Reads the word or mark if it is next, and returns whether it was."""
        if self.is_next(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Reads the word or mark, which must be next."""
        token = self.next
        if not self.take(text):
            raise fail(token, f"needs `{text}`, got {token}")
        return token

    def expect_word(self, what: str) -> Token:
        """Reads a word, which must be next; `what` says of what kind."""
        token = self.next
        if token.kind != "word":
            raise fail(token, f"needs {what}, got {token}")
        self.at += 1
        return token

    def end(self) -> None:
        """Raises ParseError unless all tokens are read."""
        if self.next.kind != "end":
            raise fail(self.next, f"needs the end of the line, got {self.next}")


def fail(token: Token, rule: str) -> ParseError:
    """Returns the error for a rule broken at a token."""
    return ParseError(f"line {token.line}, column {token.column}: {rule}")


def read_lines(text: str) -> list[Line]:
    """Returns the tokens of the lines that are not empty; two spaces are one level of depth."""
    lines: list[Line] = []
    for number, source in enumerate(text.splitlines(), 1):
        tokens: list[Token] = []
        position = 0
        while position < len(source):
            found = _token().match(source, position)
            here = Token("mark", source[position], number, position + 1)
            if found is None:
                raise fail(here, f"no word, literal or mark begins with {source[position]!r}")
            kind = found.lastgroup or ""
            if kind != "space":
                shown = found.group()
                tokens.append(Token(shown if kind == "mark" else kind, shown, number, position + 1))
            position = found.end()
        if tokens:
            indent = tokens[0].column - 1
            if indent % 2:
                raise fail(tokens[0], f"needs an indentation of pairs of spaces, got {indent}")
            tokens.append(Token("end", "", number, len(source.rstrip()) + 1))
            lines.append(Line(indent // 2, tokens))
    return lines
