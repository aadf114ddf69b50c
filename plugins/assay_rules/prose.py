"""Words, sentences and languages of running text."""

import re
import unicodedata
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

from assay.errors import PluginError


class _Identifier(Protocol):
    """The part of py3langid's untyped identifier that is used here."""

    labels: list[str]

    def classify(self, text: str) -> tuple[str, float]: ...


_WORD = re.compile(r"\w+")
_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f\u0964]+[\"')\]\u201d\u2019*_]*(?=\s|$)|[\u3002\uff01\uff1f\u0964]+")
_BEFORE = r"(?:^|[\s(\[\"'])"
_TITLE = re.compile(rf"{_BEFORE}(?:(?i:mr|mrs|ms|dr|prof|st|vs|e\.g|i\.e|cf|fig|vol|approx)|[A-Z])\.$")
_SHORT = re.compile(rf"{_BEFORE}(?:jr|sr|etc|inc|ltd|co|dept|est|a\.m|p\.m|u\.s|u\.k|ph\.d)\.$", re.IGNORECASE)
_NUMBER_SIGN = re.compile(rf"{_BEFORE}no\.$", re.IGNORECASE)
_NOT_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$|https?://\S+|</?\w+>", re.DOTALL)

_SCRIPTS = {
    "ar": "ARABIC", "fa": "ARABIC", "ur": "ARABIC", "ps": "ARABIC", "ug": "ARABIC", "he": "HEBREW",
    "hi": "DEVANAGARI", "mr": "DEVANAGARI", "ne": "DEVANAGARI", "bn": "BENGALI", "as": "BENGALI", "pa": "GURMUKHI",
    "gu": "GUJARATI", "or": "ORIYA", "ta": "TAMIL",
    "te": "TELUGU",  # codespell:ignore te
    "kn": "KANNADA", "ml": "MALAYALAM",
    "si": "SINHALA", "th": "THAI", "lo": "LAO", "ka": "GEORGIAN", "am": "ETHIOPIC", "km": "KHMER", "hy": "ARMENIAN",
    "el": "GREEK", "ru": "CYRILLIC", "uk": "CYRILLIC", "bg": "CYRILLIC", "be": "CYRILLIC", "mk": "CYRILLIC",
    "ky": "CYRILLIC", "kk": "CYRILLIC", "mn": "CYRILLIC", "ko": "HANGUL", "zh": "CJK", "dz": "TIBETAN",
}  # fmt: skip
_JAPANESE = ("CJK", "HIRAGANA", "KATAKANA")


def words(text: str) -> list[str]:
    r"""The runs of `\w+`."""
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """The sentences of `text`; abbreviations, initials and decimals end none, text without a final mark is one."""
    found: list[str] = []
    start = 0
    for mark in _END.finditer(text):
        if mark.group().startswith(".") and len(mark.group()) == 1 and _abbreviates(text, mark.end()):
            continue
        found.append(text[start : mark.end()])
        start = mark.end()
    found.append(text[start:])
    return [sentence.strip() for sentence in found if _WORD.search(sentence)]


def _abbreviates(text: str, end: int) -> bool:
    """Whether the point before `end` belongs to an abbreviation in the middle of a sentence."""
    before, following = text[max(0, end - 12) : end], text[end : end + 3].strip()
    if not following:
        return False  # at the very end of the text even "etc." ends a sentence
    if _TITLE.search(before):
        return True
    return (bool(_SHORT.search(before)) and not following[0].isupper()) or (
        bool(_NUMBER_SIGN.search(before)) and following[0].isdigit()
    )


def prose(text: str) -> str:
    """`text` without code, formulas, tags and addresses, whose letters say nothing of a language."""
    return _NOT_PROSE.sub(" ", text)


class Detected(NamedTuple):
    """The likeliest language of a text."""

    code: str
    """ISO 639-1, or an empty string for a text without letters."""
    probability: float


def detect_language(text: str) -> Detected:
    """The likeliest language of `text`, by py3langid (Lui and Baldwin 2012); the same everywhere.

    Raises:
        PluginError: py3langid is not installed.
    """
    letters = prose(text)
    if not any(character.isalpha() for character in letters):
        return Detected("", 0.0)
    code, probability = _identifier().classify(letters)
    return Detected(code, float(probability))


def known_languages() -> frozenset[str]:
    """The ISO 639-1 codes that can be told apart."""
    return frozenset(_identifier().labels)


def script_share(text: str, code: str) -> float:
    """Share in [0, 1] of the letters of `text` that belong to the script of the language `code`."""
    wanted = _JAPANESE if code == "ja" else (_SCRIPTS.get(code, "LATIN"),)
    letters = [character for character in prose(text) if character.isalpha()]
    if not letters:
        return 0.0
    return sum(unicodedata.name(letter, "").startswith(wanted) for letter in letters) / len(letters)


def passages(text: str, letters: int = 80) -> list[str]:
    """`text` in passages of whole words with at least so many letters each, long enough to tell a language."""
    found: list[str] = []
    current: list[str] = []
    size = 0
    for word in prose(text).split():
        current.append(word)
        size += sum(character.isalpha() for character in word)
        if size >= letters:
            found.append(" ".join(current))
            current, size = [], 0
    if current:
        rest = " ".join(current)
        if found and size < letters // 2:
            found[-1] += " " + rest
        else:
            found.append(rest)
    return found


@lru_cache(maxsize=1)
def _identifier() -> _Identifier:
    try:
        from py3langid import langid
    except ImportError as error:
        raise PluginError(
            "assay_rules: the language cannot be told; py3langid is not installed. Install it with: pip install "
            '"assay[language]".'
        ) from error
    return cast("Any", langid).LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
