r"""Where the answer is: the zone after the reasoning, then boxes, answer phrases, `####`, the closing statement.

Everything is linear in the text: boxes are matched by one scan over braces, phrases are searched backwards with plain
substring searches, and no pattern can backtrack over more than a line. What is found says by which rule, and where.
"""

import re
from functools import lru_cache

from assay_math.boxes import boxed
from assay_math.found import Extraction, Missing
from assay_math.options import MathPolicy
from assay_math.statements import closing, hashes, phrase
from assay_math.vocabulary import ALTERNATIVE

_RULES = {"boxed": boxed, "phrase": phrase, "hashes": hashes, "formula": closing}


@lru_cache(maxsize=64)
def _tag(tag: str) -> re.Pattern[str]:
    """`tag` in any case and, between angle brackets, with spaces inside."""
    named = re.fullmatch(r"<(/?)([\w-]+)>", tag)
    space = r"\s{0,8}"
    pattern = f"<{space}{named[1]}{space}{re.escape(named[2])}{space}>" if named else re.escape(tag)
    return re.compile(pattern, re.IGNORECASE)


def zone(response: str, policy: MathPolicy) -> tuple[int, int] | Missing:
    """Where answers may stand, as (start, end): behind the last closing tag, in the last `tail_chars` characters."""
    start = 0
    if policy.think_close:
        for closed in _tag(policy.think_close).finditer(response):
            start = closed.end()
        if policy.think_open and _tag(policy.think_open).search(response, start):
            return Missing("the reasoning never ends")
    start = max(start, len(response) - policy.tail_chars)
    return _in_answer_tags(response, start) or (start, len(response))


_OPEN_ANSWER, _CLOSE_ANSWER = "<answer>", "</answer>"


def _in_answer_tags(response: str, start: int) -> tuple[int, int] | Missing | None:
    """The last `<answer>` block where the response ends with one, as (start, end); blocks side by side are a list."""
    tail = response[max(start, len(response) - _OFFER_CHARS) :].rstrip().lower()
    if not tail.endswith(_CLOSE_ANSWER):
        return None
    lower = response[start:].lower()
    if len(lower) != len(response) - start:  # a few capitals grow when lowered, which would shift every place
        lower = response[start:]
    end = lower.rfind(_CLOSE_ANSWER)
    begin = lower.rfind(_OPEN_ANSWER, 0, end)
    if begin < 0:
        return None
    if lower[:begin].rstrip(" \t\r\n,;").endswith(_CLOSE_ANSWER):
        return Missing("several answers stand side by side")
    return start + begin + len(_OPEN_ANSWER), start + end


_OFFERED = re.compile(
    rf"(?:[\s$*]|\\[)\]])*(?:{ALTERNATIVE}|,|and\b)\s*(?:\$|\\\()?\s*(?:[A-Za-z]\s*=\s*)?"
    r"(?P<value>[-+−]?\d++(?:[.,/]\d++)*+(?:\s?\\?%)?+)(?=\s*(?:\$|\\\))?\s*(?:[).,;!?\n]|$))",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r"(?:[\s$*]|\\[)\]])*[(.,;]\s*(?:but\s+|and\s+|al?though\s+)?\$?(?P<value>[-+−]?\d++(?:[.,/]\d++)*+(?:\s?\\?%)?+)"
    r"\$?\s+(?:(?:is|would\s+be|may\s+be|might\s+be|could\s+be)\s+(?:(?:also|too|equally|just\s+as)\b|possible\b)|also\s+works?)",
    re.IGNORECASE,
)
_OFFERED_BEFORE = re.compile(
    r"(?<![\w.,/^])(?P<value>[-+−]?\d++(?:[.,/]\d++)*+(?:\s?\\?%)?+)(?:\$|\\\))?\s*,?\s*(?:\bor\b|/)(?:\s+(?:maybe|perhaps|possibly)\b)?"
    r"\s*(?:\$|\\\()?\s*$",
    re.IGNORECASE,
)
_OFFER_CHARS = 120


def offered(response: str, found: Extraction) -> str | None:
    """The number that stands beside the answer as another one (`(or 5)`, `, but it may be 5`, `5 or` before a box)."""
    behind = response[found.end : found.end + _OFFER_CHARS]
    match = _OFFERED.match(behind) or _ALSO.match(behind)
    if match is None and found.rule == "boxed":
        match = _OFFERED_BEFORE.search(response[max(0, found.start - _OFFER_CHARS) : found.start])
    return match["value"] if match is not None else None


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
