"""Answers without a box: behind an answer phrase, behind `####`, or stated by the closing sentence."""

import re
from typing import NamedTuple

from assay_math.boxes import JOIN
from assay_math.found import Extraction, Missing
from assay_math.reading import read

_PHRASES = (
    "answer is", "answer:", "answers are", "answer are", "answer：", "answer =", "answer would be", "answer must be",
    "answer to the question is", "answer to this question is", "answer to the problem is", "answer to this problem is",
    "answer, then, is", "answer therefore is",
    "option is", "choice is", "答案是", "答案为", "答案：", "答案:", "答：", "答:", "故选", "应选", "选择", "所以选",
    "因此选", "答案选", "réponse est", "réponse :", "respuesta es", "antwort ist", "antwort lautet",
    "antwort:", "risposta è",
    "resposta é", "ответ:", "答えは",
)  # fmt: skip
_LINE_CHARS = 1_000
_STOP = re.compile(
    r"(?:,?\s+(?:because|since|which|where|as|so|when|after|while|whereas|given|due|for|if|(?:along\s+|together\s+)?with|not|but|by(?!\s*\$?\d)|and\s+(?:the|it|so|not)|in\s+(?:the|total))\b"
    r"|\s+[—–]\s(?!\s*[-$]?\d)|,\s+(?:the|we|it|this|that|so|then|and)\s|\s+\((?!\s*(?:or\b|and\b|-?[\d\\]))|[。；！？\n]|\?(?:\s|$)|!(?=\s+(?-i:[A-Z\"'“(*])|\s*(?:\n|$))|[.;:]\s+(?=\S)).*",
    re.DOTALL | re.IGNORECASE,
)
_HEAD = re.compile(
    r"^(?:[\s*_:：=]|\bis\b|\bthe\b(?=\s+(?:number|value|option|choice|letter)\b)|\b(?:simply|about|approximately|approx|around|roughly|just|therefore|then|thus|clearly|exactly|option|choice|number|value|是|为)\b)*",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"(?<![\d)\]}])(?<!\b[A-Za-z])\*\*|\*\*(?![\w(-])|__|`")  # `7**2` is a power
_DELIMITERS = re.compile(r"\\\\|\\\$|\$\$|\$|\\\(|\\\)|\\\[|\\\]")
_CLOSERS = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_STATES = re.compile(
    r"\b(?:is|are|was|be|equals?|equal to|gives?|gets?|obtains?|have|has|had|pays?|costs?|earns?|makes?|needs?|takes?|"
    r"spends?|leaves?|left|contains?|receives?|becomes?|measures?|owes?|leaving|giving|making|totall?ing|yielding|"
    r"equall?ing|resulting in|for a total of|est|es|ist|sono|vale)\b"
    r"(?:\s+(?:us|you|him|her|them|me)\b)?(?:\s+with\b)?\s*:?\s*"
    r"(?:exactly |equal to |a total of |about |approximately |around |roughly )?"
    r"(?=[-+−]?\s?[$€£¥\\(\[{|√π.]?[-+−]?\s?[\d½¼¾⅓⅔⅕⅛√π(\[{|\\])|[是为]\s*(?=[-\d$\\])|(?<=等于)\s*(?=[-\d$\\])",
    re.IGNORECASE,
)
_CONNECTIVES = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|finally|consequently|accordingly|in conclusion|in total|as a result|that is|"
    r"we\s+(?:get|find|obtain|have)|(?:this|which|that)\s+gives(?:\s+us)?)\b\s*[,:]?\s*)+",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\W*[A-Z][A-Za-z ]{0,24}[:：]\s*(?=[-+−$€£¥]?[\d\\(\[{√π])")
_QUANTITY = re.compile(r"(?<![\w.,/^=+*-])[-+−]?\\?[$€£¥]?\d[\d,.]*(?:/\d+)?\s?[%°]?(?![\w=+*/^])")
_DECIMALS_END = re.compile(r"\.\d+$")
_VALUE_FOLLOWS = re.compile(r"\s*[-−]?\s?\\?[$€£¥]?\d")
_ARITHMETIC_TAIL = re.compile(r"(?<![\w.])[$€£¥]?[\d(][\d.,%$€£¥+*/×÷−x^() -]*$")
_OPERATION = re.compile(r"\d\s*%?\)?\s*[-+*/×÷−x^]\s*\(?\s*[$€£¥]?\d")
_SUM_CHARS = 120
_COURTESY = re.compile(
    r"(?:(?<=[.!?\n])|(?<=[.!?\n]\s))\s*(?:i\s+)?(?:hope\s+(?:this|that|it)|let\s+me\s+know|feel\s+free|is\s+there\s+anything|"
    r"if\s+you\s+(?:have|need)|thank\s|thanks|good\s+luck|happy\s+to)[^.!?\n]{0,120}[.!?]*\s*$",
    re.IGNORECASE,
)
"""A last sentence that says nothing about the question."""
_NAMES_IT = re.compile(
    r"\s+(?:is|are)\s+(?:the|our)\s+(?:(?!not\b)\w+\s+){0,2}(?:solutions?|answers?|values?|results?|roots?|zeros?)\W*$",
    re.IGNORECASE,
)
_NOT_CLOSING = re.compile(
    r"\b(?:possible\s+\w+s|options?|choices|"
    r"candidates?\s+(?:answers?|values?|results?|solutions?|are|include)|either|between|might|maybe|perhaps|could|"
    r"may be|guess|ignore|"
    r"(?<!not\s)(?:remains?|needs?|have|has|want)\s+to\s+(?:check|verify|show|prove|test)|"
    r"suppose|assume|given that|question|says|if|try|tried|instead)\b|\?\s*$"
    r"|^\W*(?:please\s+)?(?:output|let|choose|pick|print|return|mark|grade|give|rate|assign|award|find|use|set|system|score)\b",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"\b(?:than|at least|at most|not|no|under|over|below|above|up to|exceeds?|nearly|almost|"
    r"negative|minus|half of|double|twice|triple|(?:root|multiple|factor|divisor|power|square|cube) of|except|"
    r"divisible by|(?:rul(?:es?|ed|ing)|leav(?:es?|ing))\s+out|exclud(?:es?|ed|ing)|reject(?:s|ed|ing)?|"
    r"discard(?:s|ed|ing)?|step|equations?|eq|figure|fig|table|section|chapter|page|problem|question|exercise|example|theorem|lemma)"
    r"[\s.]*[($]*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:(?:\bnot|n['’]t|\bnever|\bcannot|\bhardly|\bunlikely|\bno\s+longer)\s+"
    r"(?:(?:be|equals?|to|have|has|get|gives?|the|an?|exactly|possibly|also|even|really|simply|actually|any)\s+){0,3}"
    r"|(?:(?:\bnot|\bnever|n['’]t)\s+(?:true|the\s+case|believe|think|say|claim)|\b(?:doubt|(?:false|untrue)\s+that|what\s+if|"
    r"(?:wrong|incorrect|invalid|rejected)\s+(?:final\s+)?answer))\b[^.,;:!?\n]{0,60})"
    r"[$\\(\[{*\s]{0,6}$",
    re.IGNORECASE,
)
"""What stands before a value that is denied, not stated."""
_DISMISSED = re.compile(
    r"[\s$)\]}*]*(?:fails?\b|cannot\b|can['’]t\b|(?:is|are|was|were|seems?|looks?)\s+(?:too|wrong|incorrect|impossible|"
    r"invalid|excluded|ruled\s+out)\b|(?:does|do|did|is|are|was|were|can|could|will|would)(?:\s+not|n['’]t)\s+(?:work|fit|"
    r"satisfy|match|hold|count|the\b|correct|right|valid|possible|allowed|an?\s+(?:\w+\s+)?(?:answer|solution)))",
    re.IGNORECASE,
)
"""What stands behind a value that is dismissed."""
_BEFORE_CHARS = 120
_DOMAIN = re.compile(r",?\s+(?:for\s+(?:all|every|each|any)|in\s+terms\s+of|with\s+respect\s+to)\s+(?:\w+\s+)?")
"""What a last formula may be about without being the answer (`$f(x) = 2x$ for all $x$`)."""
_NEGATIVE = re.compile(r"(?:negative|minus)\s+(?=[$€£¥]?\d)", re.IGNORECASE)
_FILLER = re.compile(
    r"(?:[\W_]|\b(?:an?|the|total|sum|of|exactly|equal|equals|to|about|approximately|around|roughly|found|given|by|only|at|in|as|that|it|"
    r"you|we|she|he|they|is|are|x|y|n|final|result|value|number|answer|choice|option)\b)*",
    re.IGNORECASE,
)
_OPERATOR = re.compile(
    r"!\s|\s*(?:[-+*/^=×÷·<>]|\\(?:times|cdot|div|pm|le|ge|lt|gt|ne|approx)\b)|\s+(?:squared\b|cubed\b|factorial\b|divided\b|multiplied\b|increased\b|decreased\b|(?:times|plus|minus|over|more\s+than|less\s+than|"
    r"(?:raised\s+)?to\s+the|choose|mod|modulo)\s+\S)",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\W*\d[^.\n]*?\b(?:if|when|for|unless)\b", re.IGNORECASE)
_OTHER_CASE = re.compile(
    r"(?:[,;]|\b(?:and|but|or))\s*\$?-?\d\S*\s+(?:if|when|for|otherwise|else|unless)\b", re.IGNORECASE
)
_CHOSEN = re.compile(
    r"\b(?i:option|choose|choice|pick|select|选)\s*:?\s*\(?([A-J])\)?(?:\s+is\s+(?:the\s+)?(?:correct|right|best)(?:\s+(?:answer|option|choice|one))?)?\W*$"
)
_NO_QUANTITY = re.compile(r"\b(?:score|reward|grade|points?|correct|wrong)\b|[\"{}<>]", re.IGNORECASE)
_UNIT_BEHIND = re.compile(r"\s*(?:[A-Za-z°%]+(?:\s+[A-Za-z]+)?)(?=\s*\.?\s*$)")
_ABOUT = re.compile(r"\s*[,(]?\s*(?:(?:or|which\s+is)\s+)?(?:about|approximately|roughly|≈)\s*")
_CLOSING_CHARS = 3_000
_SENTENCE = re.compile(r"(?<=[.!?。])\s+(?=\S)|\n+|(?<=\\\])\s+(?=[A-Z])|(?<=\$\$)\s+(?=[A-Z])")
_NUMBER = re.compile(r"[-+−]?\d[\d.,/^]*")
_LEADING = re.compile(
    r"[-+−]?\\?[$€£¥]?\d[\d,.]*(?:\s+(?!(?:and|or|as|plus|along|together|also)\b)[A-Za-z°%]+)?(?=\s)", re.IGNORECASE
)
_SHARE = re.compile(r"([-+−]?\d[\d.,]*\s?(?:\\?%|per\s?cent\b))\s+of\s+[^\d$\\]*", re.IGNORECASE)
_FORMULA_THEN_WORDS = re.compile(
    r"(\$[^$]{1,300}\$|\\\([^$]{1,300}?\\\))\s+(?!(?:and|or|as|plus|along|together|also|if|to)\b)[^\d$\\]{1,120}"
)
_ALTERNATIVES = re.compile(r"(?:\bor\b|\band\b|\bto\b|\bby\b|[,/(–-])\s*[$€£¥]?\d")
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")


def phrase(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | Missing | None:
    """What stands behind the last answer phrase, or None."""
    behind = _last_phrase(response[start:end])
    if behind is None:
        return None
    begin = start + behind
    line = response[begin : min(end, begin + _LINE_CHARS)]
    if not line.strip(" *:_\n：."):
        return None
    if prompt and _is_echo(response, begin, prompt):
        return None
    head = _HEAD.match(line)
    offset = begin + (head.end() if head else 0)
    line = line[offset - begin :]
    negative = _NEGATIVE.match(line)
    if negative is not None:
        value = _candidate(line[negative.end() :], offset + negative.end(), "phrase", choices)
        return value and value._replace(text=f"-{value.text}", start=offset)
    condition = _CONDITION.match(line)
    if condition is not None and _OTHER_CASE.search(line, condition.end()):
        return Missing("another answer in another case")
    found = _candidate(line, offset, "phrase", choices)
    if found is not None and _is_denied(response, start, found):
        return None
    if found is not None and not choices and " " in found.text and _NUMBER.search(found.text):
        answer = read(found.text) if len(found.text) < 300 else None
        if answer is not None and answer.node is not None and answer.node.op == "text":
            if not _states_plainly(found.text):
                return found
            stated = _stated_value(found.text, offset)
            if stated is not None and _is_denied(response, start, stated):
                return None
            return stated._replace(rule="phrase") if stated else found
    return found


def _is_denied(response: str, start: int, found: Extraction) -> bool:
    """Whether the sentence denies what was found (`cannot be 84`, `I do not think the answer is 84`, `84 fails`)."""
    before = response[max(start, found.start - _BEFORE_CHARS) : found.start]
    return _DENIED.search(before) is not None or _DISMISSED.match(response, found.end, found.end + 80) is not None


def _states_plainly(text: str) -> bool:
    """Whether the first number in `text` is its value: known words before it, or a verb, and no operation behind it."""
    number = _NUMBER.search(text)
    if number is None:
        return True
    if _OPERATOR.match(text, number.end()):
        return False
    before = text[: number.start()].rstrip("$€£¥\\({[ ")
    return _FILLER.fullmatch(before) is not None or _STATES.search(text) is not None


def _is_echo(response: str, begin: int, prompt: str) -> bool:
    """Whether the line around an answer phrase stands in the question as it is."""
    first = response.rfind("\n", 0, begin) + 1
    line = response[first : begin + _LINE_CHARS].partition("\n")[0].strip()
    return len(line.split()) > 3 and line in prompt


def _last_phrase(text: str) -> int | None:
    """Where the text behind the last answer phrase begins."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals grow when lowered, which would shift every place
        lower = "".join(c if len(c.lower()) > 1 else c.lower() for c in text)
    found = [(place, len(each)) for each in _PHRASES if (place := lower.rfind(each)) >= 0]
    return sum(max(found)) if found else None


def hashes(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | None:
    """What stands behind the last `####`, or None."""
    last = response.rfind("####", start)
    if last < 0:
        return None
    place = last + 4
    line = response[place : min(end, place + _LINE_CHARS)].lstrip("#").partition("\n")[0]
    return _candidate(line, place, "hashes", choices) if line.strip() else None


def closing(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | None:
    """What the last sentence states, or None where it states nothing."""
    tail = max(start, end - _CLOSING_CHARS)
    text = response[tail:end].rstrip()
    text = _COURTESY.sub("", text).rstrip()
    spans = _formulas(text)
    begin = _closing_statement(text, spans)
    sentence = text[begin:]
    stated = sentence.strip()
    # A lone number or word is an answer even where the question has it too; more than that repeats the question.
    repeats = len(stated.split()) > 1 and stated in prompt
    if not stated or repeats:
        return None
    chosen = _CHOSEN.search(sentence) if choices else None
    if chosen is not None:
        return Extraction(chosen[1], "formula", tail + begin + chosen.start(1), tail + begin + chosen.end(1))
    if _NOT_CLOSING.search(sentence):
        return None
    found = _stated(text, [span for span in spans if span.start >= begin], begin, tail)
    return None if found is None or _is_denied(response, tail, found) else found


def _stated(text: str, inside: list["_Formula"], begin: int, tail: int) -> Extraction | None:
    """What the sentence from `begin` on states, by the formulas inside it or by its words."""
    if not inside or _is_price_pair(inside[-1], text):
        return _stated_value(text[begin:], tail + begin)
    behind = _value_behind_verb(text[inside[-1].end :], tail + inside[-1].end)
    if behind is not None:
        return behind
    if len(inside) > 1 and _DOMAIN.fullmatch(text, inside[-2].end, inside[-1].start):
        text, inside = text[: inside[-2].end], inside[:-1]
    return _stated_formula(text, inside, tail)


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
            formula = _Formula(opened.start(), match.end(), content, opened.group() in ("$$", "\\["))
            # `$15$ cm$^2$`: an exponent of its own belongs to what stands before it.
            if found and content.lstrip().startswith("^") and formula.start - found[-1].end < 24:
                formula = formula._replace(start=found.pop().start)
            found.append(formula)
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
        alone = (
            spans
            and spans[-1].start >= match.end()
            and spans[-1].content in following
            and len(following) <= len(spans[-1].content) + 4
        )
        if following and not alone:
            return match.end()
    return 0


def _stated_formula(text: str, spans: list[_Formula], place: int) -> Extraction | None:
    """The last formula of a statement with those that it is listed with, and the unit behind it."""
    last = first = spans[-1]
    if len(spans) > 1 and _ABOUT.fullmatch(text[spans[-2].end : last.start]):
        exact = spans[-2]
        return Extraction(f"{exact.content} \\approx {last.content}", "formula", place + exact.start, place + last.end)
    for earlier in reversed(spans[:-1]):
        if not JOIN.fullmatch(text[earlier.end : first.start]):
            break
        first = earlier
    behind = text[last.end :]
    unit = _UNIT_BEHIND.match(behind)
    if unit is None and _NAMES_IT.fullmatch(behind) is None and len(behind.strip(" .,!*\n").split()) > 3:
        return None
    body = text[first.start : last.end]
    if unit is not None and read(body + unit.group()).node is not None:
        body += unit.group()
    return Extraction(body, "formula", place + first.start, place + first.start + len(body))


def _value_of_sum(sentence: str, place: int) -> Extraction | None:
    """What stands behind the last `=` of arithmetic (`so 60 + 20 = 80 minutes in total`)."""
    sign = sentence.rfind("=")
    if sign < 0 or _VALUE_FOLLOWS.match(sentence, sign + 1) is None:
        return None
    tail = _ARITHMETIC_TAIL.search(sentence[max(0, sign - _SUM_CHARS) : sign])
    if tail is None or _OPERATION.search(tail.group()) is None:
        return None
    return _candidate(sentence[sign + 1 :], place + sign + 1, "formula", choices=False)


def _value_behind_verb(sentence: str, place: int) -> Extraction | None:
    """The value behind the last verb of a statement (`... is 15`)."""
    verbs = list(_STATES.finditer(sentence.replace("**", "  ")))
    return _candidate(sentence[verbs[-1].end() :], place + verbs[-1].end(), "formula", choices=False) if verbs else None


def _stated_value(sentence: str, place: int) -> Extraction | None:
    """The value behind the verb of a statement, its one bold or only quantity, or the statement itself."""
    label = _LABEL.match(sentence)
    if label is not None:
        return _candidate(sentence[label.end() :], place + label.end(), "formula", choices=False)
    found = _value_of_sum(sentence, place) or _value_behind_verb(sentence, place)
    if found is not None:
        return found
    whole = _CONNECTIVES.sub("", sentence.strip().strip("*")).rstrip(".")
    answer = read(whole) if len(whole) < 200 else None
    if answer is not None and answer.node is not None and answer.node.op != "text":
        return Extraction(whole, "formula", place, place + len(sentence))
    if _NO_QUANTITY.search(sentence) or len(sentence.split()) > 40:
        return None
    bold = list(_BOLD.finditer(sentence))
    if bold and _NUMBER.search(bold[-1][1]):
        return _candidate(bold[-1][1], place + bold[-1].start(1), "formula", choices=False)
    numbers = list(_QUANTITY.finditer(sentence))
    if len(numbers) != 1 or len(_NUMBER.findall(sentence)) != 1 or _BOUND.search(sentence, 0, numbers[0].start()):
        return None
    text = numbers[0].group().strip(" .,")
    return Extraction(text, "formula", place + numbers[0].start(), place + numbers[0].start() + len(text))


def _is_price_pair(formula: _Formula, text: str) -> bool:
    """Whether `$...$` is the text between two prices rather than a formula."""
    if formula.display or re.match(r"\d", formula.content) is None:
        return False
    before_price = formula.content[-1:] in " +-*/=" and text[formula.end : formula.end + 1].isdigit()
    return before_price or re.search(r"[a-z]{2,} ", formula.content) is not None


def _candidate(raw: str, place: int, rule: str, choices: bool) -> Extraction | None:
    """The answer at the head of `raw`: as much of it as reads as one answer."""
    line = _MARKUP.sub("", raw)
    if choices:
        text = line.split("\n")[0].strip()
    else:
        text = _STOP.sub("", line).strip()
        if not text and line.strip():
            text = line.strip().partition("\n")[0]
        text = _leading_quantity(_without_stops(text))
    if not text:
        return None
    begin = raw.find(text)
    if begin >= 0:
        return Extraction(text, rule, place + begin, place + begin + len(text))
    # Markup stands inside the answer: the span is that of the characters that it was read from.
    begin = max(0, raw.find(text[0]))
    return Extraction(text, rule, place + begin, place + min(len(raw), begin + len(text) + len(raw) - len(line)))


def _without_stops(text: str) -> str:
    """`text` without final punctuation, but for the dots of digits that go on (`0.333...`)."""
    # `4!.` is a factorial, `4!` at the very end an exclamation.
    bare = text.rstrip(" .,;!*。" if text.rstrip(" *").endswith("!") else " .,;*。")
    return bare + "..." if text.endswith("...") and _DECIMALS_END.search(bare) else bare


def _leading_quantity(text: str) -> str:
    """The quantity that language begins with (`34 hours on yoga in 4 weeks`), unless alternatives follow it."""
    share = _SHARE.fullmatch(text)
    if share is not None:
        return share[1]
    formula = _FORMULA_THEN_WORDS.fullmatch(text)
    if formula is not None and read(formula[1]).node is not None and _is_language(text):
        return formula[1]
    match = _LEADING.match(text)
    number = _NUMBER.match(text)
    if number is not None and _OPERATOR.match(text, number.end()):
        return text
    if match is None or match.end() == len(text) or _ALTERNATIVES.search(text, match.end()):
        return text
    answer = read(text) if len(text) < 300 else None
    if answer is None or answer.node is None:
        return text
    # Words with commas between them are no list of answers where no other number stands among them.
    words = answer.node.op == "list" and _NUMBER.search(text, match.end()) is None
    return match.group().strip() if answer.node.op == "text" or words else text


def _is_language(text: str) -> bool:
    """Whether `text` as a whole is no mathematics."""
    answer = read(text)
    return answer.node is None or answer.node.op == "text"
