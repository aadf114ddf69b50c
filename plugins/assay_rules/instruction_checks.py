r"""The 25 kinds of IFEval (Zhou et al. 2023, arXiv 2311.07911): one function each, from a text to what is wrong.

Where the original is loose, the text of the instruction decides: keywords are literal whole words (not regular
expressions or parts of words), words are runs of `\w`, bullets are lines that begin with `* ` or `- ` (a horizontal
rule is none), a highlight has no blanks inside its stars, a section, a postscript and the answer after a repeated
prompt are not empty, and a text without a single letter is neither upper nor lower case.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from assay_rules.json_text import NotJsonError, read_json, unfenced
from assay_rules.prose import detect_language, script_share, sentences, words
from assay_rules.text import shown

Relation = Literal["at least", "less than", "at most", "more than", "exactly"]
_RELATIONS: dict[Relation, Callable[[int, int], bool]] = {
    "at least": lambda found, wanted: found >= wanted,
    "less than": lambda found, wanted: found < wanted,
    "at most": lambda found, wanted: found <= wanted,
    "more than": lambda found, wanted: found > wanted,
    "exactly": lambda found, wanted: found == wanted,
}
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_STARS = re.compile(r"(?<!\*)\*(?![\s*])[^*\n]*(?<![\s*])\*(?!\*)|\*\*(?![\s*])[^*\n]*(?<![\s*])\*\*")
_BULLET = re.compile(r"^[ \t]*[*-][ \t]+\S", re.MULTILINE)
_PARAGRAPH_MARK = re.compile(r"(?<!\*)\*{3}(?!\*)")
_RESPONSE_MARK = re.compile(r"(?<!\*)\*{6}(?!\*)")
_TITLE = re.compile(r"<<([^\n<>]+)>>")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")


class Check(NamedTuple):
    """What one instruction asks for and whether the text follows it."""

    followed: bool
    found: str
    """What was found, in a few words."""


def _count(number: int, relation: Relation, wanted: int, what: str) -> Check:
    return Check(_RELATIONS[relation](number, wanted), f"{number} {what}, asked for {relation} {wanted}")


def _occurrences(text: str, keyword: str) -> int:
    pattern = r"\s+".join(re.escape(part) for part in keyword.split())
    return len(re.findall(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE))


def existence(text: str, *, keywords: Sequence[str]) -> Check:
    """All keywords occur."""
    missing = [word for word in keywords if not _occurrences(text, word)]
    return Check(not missing, f"missing {', '.join(map(shown, missing))}" if missing else "all keywords occur")


def frequency(text: str, *, keyword: str, frequency: int, relation: Relation = "at least") -> Check:
    """A keyword occurs so often."""
    return _count(_occurrences(text, keyword), relation, frequency, f"times {shown(keyword)}")


def forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> Check:
    """None of the words occurs."""
    used = [word for word in forbidden_words if _occurrences(text, word)]
    return Check(not used, f"uses {', '.join(map(shown, used))}" if used else "no forbidden word")


def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: Relation = "at least") -> Check:
    """A letter (or sign), whatever its case, occurs so often."""
    return _count(text.casefold().count(letter.casefold()), let_relation, let_frequency, f"times {shown(letter)}")


def response_language(text: str, *, language: str) -> Check:
    """The whole text is in one language, an ISO 639-1 code."""
    wanted = language.casefold().partition("-")[0]
    found = detect_language(text)
    share = script_share(text, wanted)
    return Check(found.code == wanted and share >= 0.8, f"language {found.code!r}, asked for {wanted!r}")


def number_sentences(text: str, *, num_sentences: int, relation: Relation = "at least") -> Check:
    """So many sentences."""
    return _count(len(sentences(text)), relation, num_sentences, "sentences")


def number_paragraphs(text: str, *, num_paragraphs: int) -> Check:
    """So many paragraphs, divided by `***`; an empty one between two marks is wrong."""
    parts = _PARAGRAPH_MARK.split(text)
    inner_empty = any(not part.strip() for part in parts[1:-1])
    check = _count(sum(bool(part.strip()) for part in parts), "exactly", num_paragraphs, "paragraphs")
    return Check(check.followed and not inner_empty, check.found + (", one is empty" if inner_empty else ""))


def number_words(text: str, *, num_words: int, relation: Relation = "at least") -> Check:
    """So many words."""
    return _count(len(words(text)), relation, num_words, "words")


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> Check:
    """So many paragraphs, divided by blank lines, and the n-th begins with a word."""
    parts = [part for part in re.split(r"\n[ \t]*\n\s*", text.strip()) if part.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
        return Check(False, f"{len(parts)} paragraphs, asked for {num_paragraphs}")
    first = re.search(r"\w+(?:['\u2019-]\w+)*", parts[nth_paragraph - 1])
    word = first.group().casefold() if first else ""
    wanted = first_word.casefold().strip()
    return Check(word == wanted, f"paragraph {nth_paragraph} begins with {shown(word)}, asked for {shown(wanted)}")


def number_placeholders(text: str, *, num_placeholders: int) -> Check:
    """At least so many `[placeholders]`."""
    return _count(len(_PLACEHOLDER.findall(text)), "at least", num_placeholders, "placeholders")


def postscript(text: str, *, postscript_marker: str) -> Check:
    """A postscript with its marker, and text after it."""
    letters = re.sub(r"[\s.]", "", postscript_marker).casefold()
    spaced = r"\.\s?".join(letters) + r"\.?" if letters in ("ps", "pps") else re.escape(postscript_marker.strip())
    found = re.search(rf"(?<![\w.]){spaced}(?!\w)[\s:.*]*\w", text, re.IGNORECASE)
    return Check(found is not None, "postscript found" if found else f"no {shown(postscript_marker)} with text")


def number_bullet_lists(text: str, *, num_bullets: int) -> Check:
    """Exactly so many bullets."""
    return _count(len(_BULLET.findall(text)), "exactly", num_bullets, "bullets")


def constrained_response(text: str, *, options: Sequence[str] = _ANSWERS) -> Check:
    """Exactly one of the allowed answers occurs."""
    used = [option for option in options if option in text]
    return Check(len(used) == 1, f"{len(used)} of the allowed answers")


def number_highlighted_sections(text: str, *, num_highlights: int) -> Check:
    """At least so many `*highlights*`."""
    return _count(len(_STARS.findall(text)), "at least", num_highlights, "highlights")


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> Check:
    """At least so many sections, each begun by the word and a number, none empty."""
    mark = re.compile(rf"(?<!\w){re.escape(section_spliter.strip())}[ \t]?\d+")
    parts = mark.split(text)[1:]
    return _count(sum(bool(words(part)) for part in parts), "at least", num_sections, "sections with text")


def json_format(text: str) -> Check:
    """The whole text is JSON, one code fence allowed."""
    try:
        read_json(unfenced(text))
    except NotJsonError as error:
        return Check(False, f"not JSON: {error}")
    return Check(True, "JSON")


def title(text: str) -> Check:
    """A title in double angular brackets."""
    found = any(match.strip() for match in _TITLE.findall(text))
    return Check(found, "title found" if found else "no <<title>>")


def two_responses(text: str) -> Check:
    """Two different responses, divided by six stars."""
    parts = [part.strip() for part in _RESPONSE_MARK.split(text)]
    if parts and not parts[0]:
        parts = parts[1:]
    if parts and not parts[-1]:
        parts = parts[:-1]
    followed = len(parts) == 2 and all(parts) and parts[0] != parts[1]
    return Check(followed, f"{len(parts)} responses" + (", equal" if len(parts) == 2 and not followed else ""))


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> Check:
    """The prompt word for word, and then an answer."""
    start, wanted = " ".join(text.split()).casefold(), " ".join(prompt_to_repeat.split()).casefold()
    if not start.startswith(wanted):
        return Check(False, "does not begin with the prompt")
    return Check(bool(words(start[len(wanted) :])), "begins with the prompt")


def end_checker(text: str, *, end_phrase: str) -> Check:
    """The phrase is the very end."""
    followed = text.strip().strip('"').casefold().endswith(end_phrase.strip().casefold())
    return Check(followed, f"ends with {shown(text.strip()[-len(end_phrase) - 10 :])}")


def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: Relation = "at least") -> Check:
    """So many words in capitals alone."""
    return _count(sum(word.isupper() for word in words(text)), capital_relation, capital_frequency, "capital words")


def english_capital(text: str) -> Check:
    """English in capitals alone."""
    return _cased(text, text.isupper(), "lower-case letters")


def english_lowercase(text: str) -> Check:
    """English in small letters alone."""
    return _cased(text, text.islower(), "capital letters")


def _cased(text: str, followed: bool, other: str) -> Check:
    if not followed:
        return Check(False, f"{other}, or no letter at all")
    if script_share(text, "en") < 0.9:
        return Check(False, "not in Latin letters")
    # Short texts tell no language; only a clear finding in a long one speaks against English.
    if sum(character.isalpha() for character in text) >= 60:
        found = detect_language(text)
        if found.code not in ("en", "") and found.probability >= 0.9:
            return Check(False, f"language {found.code!r}, asked for 'en'")
    return Check(True, "one case only")


def no_comma(text: str) -> Check:
    """No comma of any script."""
    commas = sum(text.count(comma) for comma in ",\uff0c\u060c\u3001")
    return Check(commas == 0, f"{commas} commas")


def quotation(text: str) -> Check:
    """The whole text in double quotation marks."""
    inner = text.strip()
    followed = len(inner) > 2 and inner[0] + inner[-1] in ('""', "\u201c\u201d") and bool(inner[1:-1].strip())
    return Check(followed, "quoted" if followed else "no quotation marks around it")


CHECKS: dict[str, Callable[..., Check]] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
"""IFEval's own names to their checks."""

ALIASES = {
    "keywords": "existence",
    "include_keywords": "existence",
    "keyword_existence": "existence",
    "keyword_frequency": "frequency",
    "language": "response_language",
    "sentences": "number_sentences",
    "paragraphs": "number_paragraphs",
    "words": "number_words",
    "first_word": "nth_paragraph_first_word",
    "paragraph_first_word": "nth_paragraph_first_word",
    "placeholders": "number_placeholders",
    "bullets": "number_bullet_lists",
    "number_bullets": "number_bullet_lists",
    "bullet_lists": "number_bullet_lists",
    "choice": "constrained_response",
    "highlights": "number_highlighted_sections",
    "number_highlights": "number_highlighted_sections",
    "highlighted_sections": "number_highlighted_sections",
    "sections": "multiple_sections",
    "number_sections": "multiple_sections",
    "json": "json_format",
    "json_only": "json_format",
    "end_phrase": "end_checker",
    "ends_with": "end_checker",
    "quoted": "quotation",
    "capital_words": "capital_word_frequency",
    "number_capital_words": "capital_word_frequency",
    "all_caps": "english_capital",
    "uppercase": "english_capital",
    "all_lowercase": "english_lowercase",
    "all_lower": "english_lowercase",
    "lowercase": "english_lowercase",
    "no_commas": "no_comma",
}
"""Shorter names to the second part of IFEval's."""
