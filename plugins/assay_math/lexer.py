r"""Characters to tokens. Linear in the text; every character that is not mathematics is refused by name."""

import re
import unicodedata
from typing import Literal, NamedTuple

Kind = Literal["number", "base", "text", "command", "word", "letter", "symbol", "end"]


class UnreadableError(Exception):
    """An answer cannot be read; the message says in one line what stands in the way."""


class Token(NamedTuple):
    """One token; `space` says whether white space stood before it."""

    kind: Kind
    text: str
    space: bool = False


_NUMBER = r"\d+\.(?=\\(?:overline|bar|dot)\b)|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\d])|\.\d+"
_GROUPED = (
    r"(?:(?!0)\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+)(?![\d])(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+(?!\d)"
    r"|\d{1,3}(?:\.\d{3}){2,}(?![\d.])|\d{1,3}(?:'\d{3})+(?!\d)"
)
_REST = (
    r"|(?P<text>\\text\s*\{(?P<body>[^{}]*)\})"
    r"|(?P<command>\\(?:[a-zA-Z]+|[{}|%\\&#_]))"
    r"|(?P<word>[^\W\d_]{2,}|[\u3040-\u9fff\uac00-\ud7af])|(?P<letter>[^\W\d_])"
    r"|(?P<symbol>\*\*|<=|>=|!=|==|\.\.\.?|[-+*/^_=<>(){}\[\],;:|!%'&€£¥₹₩¢])"
    r"|(?P<space>\s+)"
)
_BASE = (
    r"(?P<base>\d[0-9A-Z]*(?:\.[0-9A-Z]+)?\s*_\s*(?:\{\s*\d{1,2}\s*\}|\d(?![\d\w]))"
    r"|[0-9A-Z]{2,}_\{(?:1[1-9]|2\d|3[0-6])\})"
)
_WITH_GROUPS = re.compile(_BASE + f"|(?P<number>{_GROUPED}|{_NUMBER})" + _REST)
_PLAIN = re.compile(_BASE + f"|(?P<number>{_NUMBER})" + _REST)
_OPEN = frozenset({"(", "[", "\\{"})
_CLOSE = frozenset({")", "]", "\\}"})
MAX_TOKENS = 2_000


class Tokens(NamedTuple):
    """The tokens of one answer, and whether commas or spaces were read as separators of thousands."""

    items: tuple[Token, ...]
    grouped: bool


def lex(text: str, *, groups: bool = True) -> Tokens:
    """The tokens of normalised `text`; raises `UnreadableError` at the first character that is not mathematics.

    With `groups`, digits in groups of three are one number outside brackets (`1,234,567`); inside brackets a comma
    always separates, as in `(1,234)`.
    """
    items: list[Token] = []
    depth = 0
    grouped = False
    position, space = 0, False
    while position < len(text):
        pattern = _WITH_GROUPS if groups and depth == 0 else _PLAIN
        match = pattern.match(text, position)
        if match is None:
            raise UnreadableError(_describe(text[position]))
        position = match.end()
        kind = match.lastgroup
        found = match.group()
        if kind == "space":
            space = True
            continue
        if kind == "body" or kind == "text":
            items.append(Token("text", match["body"].strip(), space))
        elif kind == "number":
            if not found.isascii():
                found = "".join(str(unicodedata.digit(c)) if c.isdigit() else c for c in found)
            if "," in found or " " in found:
                grouped = True
            items.append(Token("number", found, space))
        else:
            if found in _OPEN:
                depth += 1
            elif found in _CLOSE:
                depth = max(0, depth - 1)
            items.append(Token(kind, found, space))  # pyright: ignore[reportArgumentType]  # the group names are kinds
        space = False
        if len(items) > MAX_TOKENS:
            raise UnreadableError(f"more than {MAX_TOKENS} tokens")
    items.append(Token("end", "", space))
    return Tokens(tuple(items), grouped)


def _describe(character: str) -> str:
    name = unicodedata.name(character, f"U+{ord(character):04X}")
    category = unicodedata.category(character)
    if category in ("Cf", "Cc", "Cs", "Co", "Cn"):
        return f"a hidden or control character ({name})"
    return f"a character that is not mathematics ({name})"
