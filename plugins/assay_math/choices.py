"""Multiple choice: one letter, written in the ways that people write it, and never the article "a"."""

import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from assay_math.normalise import normalise
from assay_math.reading import text_form
from assay_math.vocabulary import ALTERNATIVE

_LETTER = re.compile(
    r"\W*(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer|选项)\s*(?:is\b|:|：)?\s*)?\(?\s*([A-Ja-j])(?![A-Za-z])\s*(?P<close>[)\]）])?(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}|\\(?:mathrm|textbf|mathbf)\s*\{([^{}]*)\}|[{}$]")
_OTHERS = re.compile(r"^\s*(?:,|/|&|、)?\s*\(?\s*(?:and\b|or\b|或|和|[,/&、])\s*\(?\s*[A-J]\b", re.IGNORECASE)
_OFFERED = re.compile(rf"\s*{ALTERNATIVE}\s*\(?[A-J]\b(?!['’])", re.IGNORECASE)
_REASONS = re.compile(
    r"^\s*(?:,|\.|:|;|\)|。|，|：|-|–|—|$|because\b|since\b|as\b|is\s+(?:correct|right|the)\b|\()", re.IGNORECASE
)


def option_texts(facts: Mapping[str, JsonValue]) -> dict[str, str]:
    """Letter to the option's own text (empty where unknown), from `facts["options"]` or `facts["choices"]`.

    Accepted are a list of letters, a list of texts, a table from letter to text, and a table of two lists, `label` and
    `text`; anything else is no options.
    """
    given = facts.get("options", facts.get("choices"))
    if isinstance(given, dict):
        labels, texts = given.get("label"), given.get("text")
        pairs = (
            zip(labels, texts, strict=False) if isinstance(labels, list) and isinstance(texts, list) else given.items()
        )
        table = {str(letter).upper(): str(text) for letter, text in pairs}
        return table if all(re.fullmatch("[A-J]", letter) for letter in table) else {}
    if not isinstance(given, Sequence) or isinstance(given, str):
        return {}
    letters = "ABCDEFGHIJ"
    listed = [str(item) for item in given[: len(letters)]]
    if all(re.fullmatch(r"\(?[A-J]\)?", item) for item in listed):
        return {item.strip("()"): "" for item in listed}
    return {letter: re.sub(rf"^\(?{letter}[).:]\s*", "", text) for letter, text in zip(letters, listed, strict=False)}


def gold_letter(text: str) -> str | None:
    r"""The letter of a gold such as `C`, `(C)` or `\text{(C)}`, or None."""
    bare = _TEXT.sub(lambda m: m[1] or m[2] or "", text).strip()
    match = re.fullmatch(r"\(?\s*([A-J])\s*\)?\.?", bare)
    return match[1] if match else None


def chosen(text: str, options: Mapping[str, str]) -> str | None:
    """The one letter that `text` chooses, or None when it chooses none or several."""
    bare = _TEXT.sub(lambda m: m[1] or m[2] or "", normalise(text)).strip()
    form = text_form(bare)
    by_text = [letter for letter, option in options.items() if option and text_form(option) == form]
    if len(by_text) == 1:
        return by_text[0]
    match = _LETTER.match(bare)
    if match is None:
        return None
    rest = match["rest"]
    letter = match[1].upper()
    if match[1].islower() and rest.strip(" .)"):
        return None
    if _OTHERS.match(rest) or _OFFERED.match(rest) or not (match["close"] or _REASONS.match(rest)):
        return None
    if options and letter not in options:
        return None
    return letter
