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
    r"|\s+[—–]\s|,\s+(?:the|we|it|this|that|so|then|and)\s|\s+\((?!\s*(?:or\b|and\b|-?[\d\\]))|[。；！？\n]|[!?](?:\s|$)|[.;:]\s+(?=\S)).*",
    re.DOTALL | re.IGNORECASE,
)
_HEAD = re.compile(r"^(?:[\s*_:：=]|\bis\b|\bthe\b(?=\s+(?:number|value|option|choice|letter)\b)|\b(?:simply|just|therefore|then|thus|clearly|exactly|option|choice|number|value|是|为)\b)*", re.IGNORECASE)
_MARKUP = re.compile(r"\*\*|__|`")
_DELIMITERS = re.compile(r"\\\\|\\\$|\$\$|\$|\\\(|\\\)|\\\[|\\\]")
_CLOSERS = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_STATES = re.compile(
    r"\b(?:is|are|was|be|equals?|equal to|gives?|gets?|obtains?|have|has|had|pays?|costs?|earns?|makes?|needs?|takes?|"
    r"spends?|leaves?|left|contains?|receives?|becomes?|measures?|owes?|est|es|ist|sono|vale)\b\s*:?\s*"
    r"(?:exactly |equal to |a total of |about |approximately )?(?=[-+−]?\s?[$€£¥\\(\[{|√π.]?[-+−]?\s?[\d½¼¾⅓⅔⅕⅛√π(\[{|\\])|[是为]\s*(?=[-\d$\\])|(?<=等于)\s*(?=[-\d$\\])",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\W*[A-Z][A-Za-z ]{0,24}[:：]\s*(?=[-+−$€£¥]?[\d\\(\[{√π])")
_QUANTITY = re.compile(r"(?<![\w.,/^])[-+−]?[$€£¥]?\d[\d,.]*(?:\s+\d+/\d+|/\d+)?\s*(?:[%°]|[A-Za-z]+(?:\s+[A-Za-z]+)?)?\s*$")
_NOT_CLOSING = re.compile(
    r"\b(?:possible|options?|choices|candidates?|either|between|might|maybe|perhaps|could|may be|guess|ignore|suppose|assume|"
    r"given that|question|says|if|try|tried|instead)\b|\?\s*$"
    r"|^\W*(?:please\s+)?(?:output|let|choose|pick|print|return|mark|grade|give|rate|assign|award|find|use|set|system|score)\b",
    re.IGNORECASE,
)
_NO_QUANTITY = re.compile(r"\b(?:score|reward|grade|points?|correct|wrong)\b|[\"{}<>]", re.IGNORECASE)
_UNIT_BEHIND = re.compile(r"\s*(?:[A-Za-z°%]+(?:\s+[A-Za-z]+)?)(?=\s*\.?\s*$)")
_CLOSING_CHARS = 3_000
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
    if len(set(parts)) == 1:
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
    tail = max(start, end - _CLOSING_CHARS)
    text = response[tail:end].rstrip()
    spans = _formulas(text)
    begin = _closing_statement(text, spans)
    sentence = text[begin:]
    if not sentence.strip() or _NOT_CLOSING.search(sentence) or (prompt and sentence.strip() in prompt):
        return None
    inside = [span for span in spans if span.start >= begin]
    if inside and not _is_price_pair(inside[-1]):
        return _stated_formula(text, inside, tail)
    return _stated_value(sentence, tail + begin)


class _Formula(NamedTuple):
    """A formula between delimiters: its characters, delimiters included, and its content."""

    start: int
    end: int
    content: str
    display: bool


def _formulas(text: str) -> list[_Formula]:
    """Every complete formula, in one pass over the delimiters."""
    found: list[_Formula] = []
    opened: re.Match[str] | None = None
    for match in _DELIMITERS.finditer(text):
        token = match.group()
        if token in ("\\\\", "\\$"):
            continue
        if opened is not None and token == _CLOSERS[opened.group()]:
            content = text[opened.end() : match.start()]
            found.append(_Formula(opened.start(), match.end(), content, opened.group() in ("$$", "\\[")))
            opened = None
        elif token in _CLOSERS and (opened is None or opened.group() == "$"):
            # A single dollar that meets another opener was a price.
            opened = match
    return found


def _closing_statement(text: str, spans: list[_Formula]) -> int:
    """Where the last sentence begins; a break inside a formula, or before one that stands alone, is none."""
    for match in reversed(list(_SENTENCE.finditer(text))):
        if any(span.start < match.end() and match.start() < span.end for span in spans):
            continue
        following = text[match.end() :].strip(" .*\n")
        alone = spans and spans[-1].start >= match.end() and spans[-1].content in following and len(following) <= len(spans[-1].content) + 4
        if following and not alone:
            return match.end()
    return 0


def _stated_formula(text: str, spans: list[_Formula], place: int) -> Extraction | None:
    """The last formula of a statement with those that it is listed with, and the unit behind it."""
    last = first = spans[-1]
    for earlier in reversed(spans[:-1]):
        if not _JOIN.fullmatch(text[earlier.end : first.start]):
            break
        first = earlier
    behind = text[last.end :]
    unit = _UNIT_BEHIND.match(behind)
    if unit is None and len(behind.strip(" .,!*\n").split()) > 8:
        return None
    body = text[first.start : last.end]
    if unit is not None and read(body + unit.group()).node is not None:
        body += unit.group()
    return Extraction(body, "formula", place + first.start, place + first.start + len(body))


def _stated_value(sentence: str, place: int) -> Extraction | None:
    """The value behind the verb of a statement, the one quantity that it ends with, or the statement itself."""
    label = _LABEL.match(sentence)
    if label is not None:
        return _candidate(sentence[label.end() :], place + label.end(), "formula", choices=False)
    verbs = list(_STATES.finditer(sentence))
    if verbs:
        return _candidate(sentence[verbs[-1].end() :], place + verbs[-1].end(), "formula", choices=False)
    whole = sentence.strip().strip("*").rstrip(".")
    answer = read(whole) if len(whole) < 200 else None
    if answer is not None and answer.node is not None and answer.node.op != "text":
        return Extraction(whole, "formula", place, place + len(sentence))
    quantity = _QUANTITY.search(sentence.rstrip(" .!*"))
    if quantity is None or len(re.findall(r"\d[\d.,]*", sentence)) != 1 or len(sentence.split()) > 25 or _NO_QUANTITY.search(sentence):
        return None
    return _candidate(quantity.group(), place + quantity.start(), "formula", choices=False)


def _is_price_pair(formula: _Formula) -> bool:
    """Whether `$...$` is the text between two prices rather than a formula."""
    return not formula.display and re.match(r"\d", formula.content) is not None and re.search(r"[a-z]{2,} ", formula.content) is not None


def _candidate(line: str, place: int, rule: str, choices: bool) -> Extraction | None:
    """The answer at the head of `line`: as much of it as reads as one answer."""
    line = _MARKUP.sub("", line)
    if choices:
        text = line.split("\n")[0].strip()
        return Extraction(text, rule, place, place + len(text)) if text else None
    text = _STOP.sub("", line).strip()
    if not text and line.strip():
        text = line.strip().partition("\n")[0]
    text = text.rstrip(" .,;!*。")
    if not text:
        return None
    return Extraction(text, rule, place, place + len(text))


_RULES = {"boxed": _boxed, "phrase": _phrase, "hashes": _hashes, "formula": _formula}
