"""A cursor over tokens, with what every layer of the reader needs from the layers above it."""

from abc import ABC, abstractmethod

from assay_math.expression import Node
from assay_math.lexer import Token, UnreadableError

MAX_DEPTH = 48
"""Deepest nesting that is read; hostile input ends in `UnreadableError` instead of a deep stack."""


class Cursor(ABC):
    """The place in the tokens, the depth of nesting, and the fences that are open."""

    def __init__(self, tokens: list[Token]) -> None:
        """A cursor at the first of `tokens`, which end in an `end` token."""
        self.tokens = tokens
        self.position: int = 0
        self.depth: int = 0
        self.fences: list[str] = []
        self.in_set: int = 0

    @property
    def token(self) -> Token:
        """The token at the cursor."""
        return self.tokens[self.position]

    def ahead(self, count: int = 1) -> Token:
        """A token further on; the end token behind the last."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        """The token at the cursor, which moves on."""
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def at(self, *texts: str) -> bool:
        """Whether one of these signs or commands stands at the cursor."""
        token = self.tokens[self.position]
        return token.kind in ("symbol", "command") and token.text in texts

    def accept(self, *texts: str) -> bool:
        """Whether one of these signs or commands stood at the cursor; it is then passed."""
        if self.at(*texts):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Pass `text`; raises `UnreadableError` when something else stands there."""
        if not self.accept(text):
            found = self.token.text or "the end"
            raise UnreadableError(f"{text!r} is missing before {found!r}")

    def enter(self) -> None:
        """Go one level deeper; raises `UnreadableError` past the limit. The caller takes the level back."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError(f"nesting deeper than {MAX_DEPTH}")

    @abstractmethod
    def nested(self, text: str) -> Node:
        r"""The tree of another text, such as the content of `\text{...}`."""

    @abstractmethod
    def answer(self) -> Node:
        """Everything up to a closing bracket or the end."""

    @abstractmethod
    def relation(self) -> Node:
        """One item of a list."""

    @abstractmethod
    def sum(self) -> Node:
        """Terms joined by signs."""

    @abstractmethod
    def power(self) -> Node:
        """A primary with its exponents and postfix signs."""

    @abstractmethod
    def begins_factor(self, previous: Node) -> bool:
        """Whether the next token begins a factor that is joined without a sign."""

    @abstractmethod
    def function(self, name: str) -> Node:
        """A known function with its power, base and argument."""
