r"""Five rewrites that change an answer's writing and not its meaning: what every verifier of mathematics must accept.

They are used by the tests and benchmarks, and by anyone who wants to see what a verifier makes of their own golds.
A rewrite that does not apply to an answer gives None.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from assay_math.reading import read

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d*\.\d+")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")


def spacing(gold: str) -> str | None:
    """Spaces around signs and behind commas, thin spaces outside."""
    if "\\text" in gold or "\\mbox" in gold:
        return f" {gold} "
    spaced = re.sub(r"(?<![\\a-zA-Z])([+=<>-])", r" \1 ", gold)
    spaced = re.sub(r"(?<!\{),(?!\\!|\s|\d{3}(?!\d))", r",\\; ", spaced)
    return f"\\,{spaced}\\ "


def display_fractions(gold: str) -> str | None:
    r"""`\frac` as `\dfrac`, or back."""
    if "\\dfrac" in gold:
        return gold.replace("\\dfrac", "\\frac")
    return gold.replace("\\frac", "\\dfrac") if "\\frac" in gold else None


def other_number(gold: str) -> str | None:
    """A fraction as a decimal of ten places, a decimal as a fraction, an integer as either."""
    fraction = _FRACTION.fullmatch(gold.strip())
    if fraction is not None and int(fraction[3]):
        return f"{fraction[1]}{int(fraction[2]) / int(fraction[3]):.10f}"
    if _DECIMAL.fullmatch(gold):
        value = Fraction(gold)
        return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    if _INTEGER.fullmatch(gold):
        return f"{gold}.0" if len(gold) % 2 else f"\\frac{{{int(gold) * 3}}}{{3}}"
    return None


def reordered(gold: str) -> str | None:
    """A set or a plain list of simple parts, backwards."""
    inner = re.fullmatch(r"\\\{([^{}()]*)\\\}", gold)
    if inner is not None:
        return "\\{" + ", ".join(part.strip() for part in reversed(inner[1].split(","))) + "\\}"
    node = read(gold).node
    if node is None or node.op != "list" or re.search(r"\\text|[(=\[]", gold):
        return None
    return ", ".join(part.strip() for part in reversed(gold.split(",")))


def wrapped(gold: str) -> str | None:
    """In or out of a text command, with or without a unit, in brackets that do nothing."""
    if _INTEGER.fullmatch(gold) or _DECIMAL.fullmatch(gold):
        return f"{gold}\\text{{ units}}"
    if re.fullmatch(r"[A-Za-z]{2,}", gold):
        return f"\\text{{{gold}}}"
    text = re.fullmatch(r"\\text\{([^{}]*)\}", gold)
    if text is not None:
        return text[1]
    unit = re.fullmatch(r"([\d.\s]+?)\\text\s*\{[^{}]*\}\.?", gold)
    if unit is not None:
        return unit[1] if "or" not in gold and "and" not in gold else None
    if "^\\circ" in gold and not re.search(r"\\(?:cos|sin|tan)|,", gold):
        return gold.replace("^\\circ", "\\text{ degrees}")
    if "\\%" in gold:
        return gold.replace("\\%", "\\text{ percent}")
    return f"\\left({gold}\\right)" if re.match(r"\\(?:sqrt|[dt]?frac)", gold) and not gold.endswith(".") else None


REWRITES: Mapping[str, Callable[[str], str | None]] = {
    "spacing": spacing,
    "display fractions": display_fractions,
    "other number": other_number,
    "reordered": reordered,
    "wrapped": wrapped,
}
"""The rewrites by name."""
