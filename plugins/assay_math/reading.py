"""Text to an `Answer`: its tree, the other ways in which it may fairly be read, or one line on why it cannot be."""

import re
from functools import lru_cache
from typing import NamedTuple

from assay_math.expression import Node
from assay_math.lexer import UnreadableError
from assay_math.normalise import normalise
from assay_math.parser import parse
from assay_math.units import is_unit_word, read_unit
from assay_math.vocabulary import FUNCTIONS

_CACHED_CHARS = 400
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WRAPPED = re.compile(r"\\text\s*\{(.*)\}", re.DOTALL)
_WORDS = re.compile(r"[^\W\d_](?:[\s,.;'’\"()&?!/-]|[^\W_])*")
_RUN = re.compile(r"[^\W\d_]+")
_ARTICLES = re.compile(r"\b(?:the|an|a)\s+(?=\w)")
_EDGES = " \t\n.,;:!?\"'`*()[]{}。"
_CLOCK = re.compile(r"\b([ap])\s?\.?\s?m\b\.?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d+),(\d+)(?![\d,])")
_SMALL_BASE = re.compile(
    r"(?P<sign>-?)\(?(?:\\text\s*\{\s*)?\(?(?P<digits>[0-9a-zA-Z]{1,40})\s*\)?\}?\)?\s*_\s*\{?(?P<base>1[1-9]|2\d|3[0-6])\}?"
)
_LETTER_UNITS = re.compile(
    r"(?P<number>[-+]?(?:\d[\d.,]*)?\d(?:\s*(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*)\s*(?:-?\d+|\{\s*-?\d+\s*\}))?)"
    r"\s+(?P<unit>[A-Za-z]{1,4}(?:\^\{?[23]\}?)?(?:\s*/\s*[A-Za-z]{1,4}(?:\^\{?[23]\}?)?)?)"
)
_SHORT = frozenset(
    [
        "yes",
        "no",
        "odd",
        "even",
        "true",
        "false",
        "none",
        "east",
        "west",
        "north",
        "south",
        "up",
        "down",
        "red",
        "all",
        "any",
        "neither",
        "both",
        "left",
        "right",
        "never",
    ]
)


class Answer(NamedTuple):
    """One answer as it was read."""

    source: str
    text: str
    """The normalised writing."""
    node: Node | None
    """Its tree, or None when it cannot be read."""
    others: tuple[Node, ...] = ()
    """Further admissible readings, as of `ff_{16}`: a product, or digits with a base."""
    lists: tuple[Node, ...] = ()
    """Readings of digits in groups of three as several numbers, as of `100,200`."""
    decimal: Node | None = None
    """The reading with commas as decimal points, where there is one."""
    problem: str = ""
    """Why it cannot be read."""


def read(source: str, *, max_chars: int = 4_000) -> Answer:
    """`source` as an answer; short answers are remembered, because the samples of one task repeat them."""
    if len(source) > max_chars:
        return Answer(source[:80], "", None, problem=f"it has {len(source)} characters; at most {max_chars} are read")
    return _remembered(source) if len(source) <= _CACHED_CHARS else _read(source)


@lru_cache(maxsize=16_384)
def _remembered(source: str) -> Answer:
    return _read(source)


def _read(source: str) -> Answer:
    text = normalise(source)
    if not text:
        return Answer(source, text, None, problem="it is empty")
    if is_words(text):
        return Answer(source, text, Node("text", (), text_form(text)))
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is not None and _balanced(wrapped[1]):
        return _read(wrapped[1])._replace(source=source)
    measured = _in_letter_units(text)
    try:
        node, tokens = parse(text)
    except (UnreadableError, RecursionError) as error:
        if measured is not None:
            return Answer(source, text, measured)
        if looks_like_language(text):
            return Answer(source, text, Node("text", (), text_form(text)))
        return Answer(source, text, None, problem=str(error) or "nesting too deep")
    if _has_words_inside(node):
        return Answer(source, text, Node("text", (), text_form(text)))
    lists = (_parsed(text, groups=False),) if tokens.grouped and "," in text else ()
    decimal = None
    if "," in text and node.op in ("list", "number"):
        pointed = _DECIMAL_COMMA.sub(r"\1.\2", text)
        decimal = _parsed(pointed) if pointed != text else None
    based = _small_digits(text) if "_" in text else None
    others = tuple(other for other in (based, measured) if other is not None)
    return Answer(source, text, node, others, tuple(part for part in lists if part is not None), decimal)


_ARITHMETIC = frozenset(
    [
        "add",
        "multiply",
        "negate",
        "divide",
        "power",
        "root",
        "call",
        "absolute",
        "floor",
        "ceil",
        "factorial",
        "binomial",
        "plus_minus",
        "degree",
        "percent",
        "unit",
    ]
)


def _has_words_inside(node: Node) -> bool:
    """Whether words stand where arithmetic needs a value (`June 20`): then the whole is language."""
    return any(part.op in _ARITHMETIC and any(inner.op == "text" for inner in part.args) for part in node.walk())


def _balanced(text: str) -> bool:
    """Whether no brace of `text` closes one that was opened before it."""
    depth = 0
    for brace in re.findall(r"\\\\|\\[{}]|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _small_digits(text: str) -> Node | None:
    """Digits with a base that are written in small letters; capital ones are told from products by the lexer."""
    match = _SMALL_BASE.fullmatch(text)
    if match is None or not any("a" <= letter <= "z" for letter in match["digits"]):
        return None
    if any(int(digit, 36) >= int(match["base"]) for digit in match["digits"]):
        return None
    return _parsed(f"{match['sign']}{match['digits'].upper()}_{{{match['base']}}}")


def _in_letter_units(text: str) -> Node | None:
    """A number with letters that stand apart from it and are units (`40 m/s`, `12 m^2`, `12 in`), or None."""
    match = _LETTER_UNITS.fullmatch(text) if text[-1:].isalnum() or text.endswith("}") else None
    if match is None or read_unit(match["unit"]) is None:
        return None
    unit = re.sub(r"\s", "", match["unit"]).replace("{", "").replace("}", "")
    return _parsed(f"{match['number']} \\text{{{unit}}}")


def _parsed(text: str, *, groups: bool = True) -> Node | None:
    try:
        return parse(text, groups=groups)[0]
    except (UnreadableError, RecursionError):
        return None


def is_words(text: str) -> bool:
    r"""Whether `text` is language: letters only, with a run that is no product of variables, function or unit."""
    bare = _TEXT.sub(r" \1 ", text).strip()
    if "\\" in bare or not _WORDS.fullmatch(bare):
        return False
    if any(character.isdigit() for character in bare):
        return False
    runs = _RUN.findall(bare)
    if any(run.lower() in ("and", "or") for run in runs):
        runs = [run for run in runs if run.lower() not in ("and", "or")]
    if "(" in bare and any(run in FUNCTIONS for run in runs):
        return False
    in_text = _TEXT.search(text) is not None
    return any(
        (len(run) >= 4 or not run.isascii() or run.lower() in _SHORT or (in_text and len(run) >= 2))
        and run not in FUNCTIONS
        and run not in ("infinity", "infty", "pi")
        for run in runs
    )


def looks_like_language(text: str) -> bool:
    """Whether text that is not mathematics contains a word, so that it can be compared as text."""
    bare = re.sub(r"\\[a-zA-Z]+", " ", _TEXT.sub(r" \1 ", text))
    if any(not character.isprintable() and not character.isspace() for character in bare):
        return False
    return any(
        (len(run) >= 3 and run not in FUNCTIONS and not is_unit_word(run)) or not run.isascii()
        for run in _RUN.findall(bare)
    ) or bool(_CLOCK.search(bare) or re.search(r"(?<!\d)\d{1,2}(?:[:.]\d\d)?\s*[ap]\.", bare))


@lru_cache(maxsize=4_096)
def text_form(text: str) -> str:
    """What two text answers must share: words without case, articles, fonts, quotes and final points."""
    bare = _TEXT.sub(r" \1 ", text).replace("{", " ").replace("}", " ").replace("\\", " ")
    bare = _CLOCK.sub(lambda match: f" {match[1].lower()}m", bare)
    bare = " ".join(bare.casefold().split()).strip(_EDGES)
    bare = _ARTICLES.sub("", bare + " ").strip(_EDGES)
    return re.sub(r"\s*([,:/-])\s*", r"\1", bare)
