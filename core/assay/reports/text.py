"""Makes text that a model wrote safe to look at: nothing hidden, nothing endless."""

import unicodedata

FOLD = 2000


def visible(text: str) -> str:
    """`text` with control and direction characters shown as symbols, and lines over 2,000 characters folded.

    Escaping for HTML is the template's job.
    """
    lines = "".join(_symbol(character) for character in text).split("\n")
    return "\n".join(line if len(line) <= FOLD else f"{line[:FOLD]}... [{len(line):,} characters]" for line in lines)


def one_line(text: str, width: int = 100) -> str:
    """`text` in one line of at most `width` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= width else line[: width - 3] + "..."


def _symbol(character: str) -> str:
    if character in "\n\t":
        return character
    category = unicodedata.category(character)
    if category == "Cc":
        return chr(0x2400 + ord(character)) if ord(character) < 0x20 else f"<U+{ord(character):04X}>"
    if category in ("Cf", "Cs", "Co", "Zl", "Zp"):
        return f"<U+{ord(character):04X}>"
    return character
