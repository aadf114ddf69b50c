r"""Where the answer is: the zone after the reasoning, then boxes, answer phrases, `####`, the closing statement.

Everything is linear in the text: boxes are matched by one scan over braces, phrases are searched backwards with plain
substring searches, and no pattern can backtrack over more than a line. What is found says by which rule, and where.
"""

import re
from typing import NamedTuple

from assay_math.options import MathPolicy
from assay_math.reading import read

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[^a-zA-Z]|[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_JOIN = re.compile(r"(?:[\s,;.$&]|\\\(|\\\)|\\\[|\\\]|\\[,;:! ]|\\quad|\\text\{\s*(?:and|or|,)\s*\}|\*|\band\b|\bor\b|和|或|、|，)*")
_OR = re.compile(r"\bor\b|或")
_NEXT_SENTENCE = re.compile(r"[.;]\s*\S|\n\s*\n")

_PHRASES = (
    "answer is", "answer:", "answers are", "answer are", "answer：", "answer =", "answer would be", "answer must be", "option is",
    "choice is", "答案是", "答案为", "答案：", "答案:", "故选", "应选", "选择", "réponse est", "réponse :", "respuesta es",
    "antwort ist", "antwort lautet", "antwort:", "risposta è", "resposta é", "ответ:", "答えは",
)  # fmt: skip
_CASELESS = re.compile("|".join(sorted((re.escape(p) for p in _PHRASES), key=len, reverse=True)), re.IGNORECASE)
_LINE_CHARS = 1_000
_STOP = re.compile(
    r"(?:,?\s+(?:because|since|which|where|as|so|when|after|while|whereas|given|due|for|if|with|not|but|by|and\s+(?:the|it|so|not)|in\s+(?:the|total))\b"
    r"|\s+[—–]\s|,\s+(?:the|we|it|this|that|so|then|and)\s|\s+\((?!\s*-?[\d\\])|[。；！？\n]|[!?](?:\s|$)|[.;:]\s+(?=\S)).*",
    re.DOTALL | re.IGNORECASE,
)
_HEAD = re.compile(r"^(?:[\s*_:：=]|\bis\b|\bthe\b(?=\s+(?:number|value|option|choice|letter)\b)|\b(?:simply|just|therefore|then|thus|clearly|exactly|option|choice|number|value|是|为)\b)*", re.IGNORECASE)
_MARKUP = re.compile(r"\*\*|__|`")
_FORMULAS = re.compile(r"\$\$(?P<a>[^$]+)\$\$|(?<!\\)\$(?P<b>[^$\n]+?)(?<!\\)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]", re.DOTALL)
_CLOSING = re.compile(
    r"\b(?:is|are|was|be|equals?|equal to|gives?|get|gets|obtain|obtains|have|has|had|pays?|costs?|earns?|makes?|needs?|takes?|"
    r"spends?|leaves?|left|contains?|receives?|becomes?|est|es|ist|sono|vale|是|为|等于)\s*:?\s+(?:exactly |equal to |a total of |about )?"
    r"(?P<value>(?:[-+]?[$€£¥]?\s?[-+]?[\d½¼¾⅓⅔⅕⅛√π(\[{|\\.−]).*)$",
    re.IGNORECASE | re.DOTALL,
)
_NOT_CLOSING = re.compile(
    r"\b(?:possible|options?|choices|candidates?|either|between|might|maybe|perhaps|could|may be|guess|ignore|output|score|reward|"
    r"suppose|assume|given that|question|says|find|if)\b|\?\s*$",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。])\s+(?=\S)|\n+")


class Extraction(NamedTuple):
    """An answer as it stands in the response."""

    text: str
    """The answer's own text; several boxes are joined by commas (or by `or`)."""
    rule: str
    start: int
    """First character in the response."""
    end: int
    """One past the last character."""
    parts: int = 1
    """Number of boxes that it was joined from."""


class Missing(NamedTuple):
    """No answer: why, in a few words."""

    reason: str


def zone(response: str, policy: MathPolicy) -> tuple[int, int] | Missing:
    """Where answers may stand, as (start, end): behind the last closing tag, in the last `tail_chars` characters."""
    start = 0
    if policy.think_close:
        closed = response.rfind(policy.think_close)
        start = closed + len(policy.think_close) if closed >= 0 else 0
        if policy.think_open and response.find(policy.think_open, start) >= 0:
            return Missing("the reasoning never ends")
    return max(start, len(response) - policy.tail_chars), len(response)


def extract(response: str, policy: MathPolicy, *, prompt: str = "", choices: bool = False) -> Extraction | Missing:
    """The answer of `response`, by the first rule of the policy that finds one."""
    where = zone(response, policy)
    if isinstance(where, Missing):
        return where
    start, end = where
    if not response[start:].strip() if end - start < 4_096 else False:
        return Missing("nothing follows the reasoning" if start else "the response is empty")
    for rule in policy.rules:
        found = _RULES[rule](response, start, end, prompt, choices)
        if found is not None:
            return found
    return Missing("no statement of an answer was found")


# ---- boxes ----------------------------------------------------------------------------------------------------------


def _boxed(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | Missing | None:
    last = max(response.rfind("\\boxed", start), response.rfind("\\fbox", start))
    if last < 0:
        return None
    head = _BOX.match(response, last)
    if head is None:
        return None
    if response[head.end() : head.end() + 1] != "{":
        return _unbraced(response, last, head.end())
    first = min(place for place in (response.find("\\boxed", start), response.find("\\fbox", start)) if place >= 0)
    boxes = _match_braces(response, first, end)
    if boxes is None:
        return Missing("the last box never closes")
    content, begin, finish = boxes[-1]
    text = response[content : finish - 1]
    parts = [text]
    alternative = False
    for earlier in reversed(boxes[:-1]):
        gap = response[earlier[2] : begin]
        if len(gap) > 60 or not _JOIN.fullmatch(gap) or _NEXT_SENTENCE.search(gap):
            break
        alternative |= _OR.search(gap) is not None
        parts.insert(0, response[earlier[0] : earlier[2] - 1])
        begin = earlier[1]
    if len(parts) == 1:
        return Extraction(text, "boxed", begin, finish)
    return Extraction((" \\text{ or } " if alternative else ", ").join(parts), "boxed", begin, finish, len(parts))


def _match_braces(response: str, first: int, end: int) -> list[tuple[int, int, int]] | None:
    """Outermost boxes as (content, begin, finish), or None when the last one that opens never closes."""
    boxes: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int] | None] = []
    open_boxes: list[int] = []
    for match in _BRACES.finditer(response, first, end):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            if not stack:
                continue
            opened = stack.pop()
            if opened is None:
                continue
            open_boxes.pop()
            while boxes and boxes[-1][1] > opened[1]:
                boxes.pop()
            boxes.append((opened[0], opened[1], match.end()))
        elif token[1] in "bf":
            stack.append((match.end(), match.start()))
            open_boxes.append(match.start())
    # A box that stays open only voids the answer when nothing was boxed after it.
    if open_boxes and (not boxes or boxes[-1][1] < open_boxes[-1]):
        return None
    return boxes or None


def _unbraced(response: str, begin: int, place: int) -> Extraction | Missing:
    match = re.compile(r"\\[a-zA-Z]+|\S").match(response, place)
    if match is None:
        return Missing("the last box never closes")
    digits = re.compile(r"-?\d+(?:\.\d+)?").match(response, place)
    match = digits or match
    return Extraction(match.group(), "boxed", begin, match.end())


# ---- phrases and closing statements ---------------------------------------------------------------------------------


def _phrase(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | Missing | None:
    last = None
    for match in _CASELESS.finditer(response, max(start, end - 20_000), end):
        last = match
    if last is None:
        return None
    line = response[last.end() : min(end, last.end() + _LINE_CHARS)]
    if not line.strip(" *:_\n：."):
        return None
    head = _HEAD.match(line)
    offset = head.end() if head else 0
    return _candidate(line[offset:], last.end() + offset, "phrase", choices)


def _hashes(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | None:
    last = response.rfind("####", start)
    if last < 0:
        return None
    place = last + 4
    line = response[place : min(end, place + _LINE_CHARS)].lstrip("#").partition("\n")[0]
    return _candidate(line, place, "hashes", choices) if line.strip() else None


def _formula(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | None:
    tail = max(start, end - 4_000)
    text = response[tail:end].rstrip()
    pieces = list(_SENTENCE.finditer(text))
    begin = 0
    for match in reversed(pieces):
        if _FORMULAS.search(text, match.end()) or text[match.end() :].strip(" .*$\\)]"):
            begin = match.end()
            break
    if text.count("\\[", 0, begin) > text.count("\\]", 0, begin):
        begin = text.rfind("\\[", 0, begin)
    sentence = text[begin:]
    if not sentence.strip() or _NOT_CLOSING.search(sentence) or (prompt and sentence.strip() in prompt):
        return None
    return _statement(sentence, tail + begin)


def _statement(sentence: str, place: int) -> Extraction | None:
    """The value that a closing sentence states: its last formulas, the value behind its verb, or itself."""
    formulas = list(_FORMULAS.finditer(sentence))
    if formulas and not _is_price_pair(formulas[-1]):
        last = formulas[-1]
        first = last
        for earlier in reversed(formulas[:-1]):
            if not _JOIN.fullmatch(sentence[earlier.end() : first.start()]):
                break
            first = earlier
        body = sentence[first.start() : last.end()]
        unit = re.match(r"\s*(?:[A-Za-z°%]+(?:\s+[A-Za-z]+)?)(?=\s*\.?\s*$)", sentence[last.end() :])
        if unit is None and sentence[last.end() :].strip(" .,!$*\n"):
            after = sentence[last.end() :].strip(" .,!$*\n")
            if len(after.split()) > 8:
                return None
        finish = last.end() + (unit.end() if unit else 0)
        text = body + (unit.group() if unit else "")
        if unit and read(text).node is None:
            text, finish = body, last.end()
        return Extraction(text, "formula", place + first.start(), place + finish)
    value = _CLOSING.search(sentence)
    if value is not None:
        return _candidate(value["value"], place + value.start("value"), "formula", choices=False)
    whole = sentence.strip().strip("*").rstrip(".")
    answer = read(whole) if len(whole) < 200 else None
    if answer is None or answer.node is None or answer.node.op == "text":
        return None
    return Extraction(whole, "formula", place, place + len(sentence))


def _is_price_pair(match: re.Match[str]) -> bool:
    """Whether `$...$` is the text between two prices rather than a formula."""
    body = match["b"]
    return body is not None and re.match(r"\d", body) is not None and re.search(r"[a-z]{2,} ", body) is not None


def _candidate(line: str, place: int, rule: str, choices: bool) -> Extraction | None:
    """The answer at the head of `line`: as much of it as reads as one answer."""
    line = _MARKUP.sub("", line)
    if choices:
        text = line.split("\n")[0].strip()
        return Extraction(text, rule, place, place + len(text)) if text else None
    formula = _FORMULAS.match(line.lstrip())
    if formula is not None and not _is_price_pair(formula):
        extent = re.compile(r"[^\n]*").match(line)
        line = line if "\\[" in formula.group() or "$$" in formula.group() else (extent.group() if extent else line)
    text = _STOP.sub("", line).strip()
    if not text and line.strip():
        text = line.strip().partition("\n")[0]
    text = text.rstrip(" .,;!*。")
    if not text:
        return None
    return Extraction(text, rule, place, place + len(text))


_RULES = {"boxed": _boxed, "phrase": _phrase, "hashes": _hashes, "formula": _formula}
