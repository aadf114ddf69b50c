"""Where in a response the answer is, for the rules that compare one; a visible policy, linear in the text."""

import re
from collections import deque
from typing import Literal, NamedTuple

from pydantic import JsonValue

from assay.component import Options
from assay_rules.text import answer_zone, storable

Rule = Literal["tag", "boxed", "phrase", "hashes", "last_line", "whole"]

_PHRASE = re.compile(r"\b(?:answer|result|choice|solution)\b(?:\s+(?:is|are)\b\s*:?|\s*[:=])", re.IGNORECASE)
_LAYERS = 8  # more wrapping than anybody writes; a bound, so that a megabyte of dollars stays linear
_MARKS = ("**", "$$", "$", "`")
_TEXT_COMMAND = re.compile(r"^\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{(.*)\}$", re.DOTALL)


class AnswerOptions(Options):
    """Which marks of an answer are looked for, in this order; the first rule that finds its mark decides."""

    rules: tuple[Rule, ...] = ("tag", "boxed", "phrase", "hashes", "whole")
    """`tag`: inside the last `<answer>` block; `boxed`: the last `\\boxed{}`; `phrase`: after the last "answer is" or
    "answer:", to the end of its line; `hashes`: after the last `####`; `last_line`; `whole`: all of the zone."""
    think: bool = True
    """Leave out reasoning in `<think>` tags."""


class Answer(NamedTuple):
    """What was found, where, and by which rule."""

    text: str
    rule: Rule
    start: int
    """Index of the first character, in the response."""

    def as_data(self) -> JsonValue:
        """The answer as JSON for evidence."""
        return {"text": storable(self.text), "rule": self.rule, "start": self.start}


def find_answer(text: str, options: AnswerOptions) -> Answer | None:
    """The answer in `text`, or None where no rule finds one or reasoning never ends."""
    zone = answer_zone(text) if options.think else text
    if zone is None:
        return None
    offset = len(text) - len(zone)
    for rule in options.rules:
        found = _FINDERS[rule](zone)
        if found is _UNCLOSED:
            return None
        if found is not None and (span := _trimmed(zone, *found)):
            start, end = span
            return Answer(zone[start:end], rule, offset + start)
    return None


_UNCLOSED = (-1, -1)
"""What a finder returns for a mark that opens and never closes: no answer, also by later rules."""


def _tag(zone: str) -> tuple[int, int] | None:
    start = zone.rfind("<answer>")
    if start < 0:
        return None
    end = zone.find("</answer>", start)
    return _UNCLOSED if end < 0 else (start + len("<answer>"), end)


def _boxed(zone: str) -> tuple[int, int] | None:
    start = max(zone.rfind("\\boxed{"), zone.rfind("\\fbox{"))
    if start < 0:
        return None
    start = zone.index("{", start) + 1
    depth, at = 1, start
    for at in range(start, len(zone)):
        character = zone[at]
        if character in "{}" and zone[at - 1] != "\\":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return start, at
    return _UNCLOSED


def _phrase(zone: str) -> tuple[int, int] | None:
    ends = deque((match.end() for match in _PHRASE.finditer(zone)), maxlen=1)
    if not ends:
        return None
    start = ends[0]
    while start < len(zone) and zone[start] in "* \t":
        start += 1
    if start < len(zone) and zone[start] == "\n":
        start += 1
    else:
        start = ends[0]
    return start, _line_end(zone, start)


def _hashes(zone: str) -> tuple[int, int] | None:
    start = zone.rfind("####")
    return None if start < 0 else (start + 4, _line_end(zone, start))


def _last_line(zone: str) -> tuple[int, int] | None:
    end = len(zone.rstrip())
    return (zone.rfind("\n", 0, end) + 1, end) if end else None


def _whole(zone: str) -> tuple[int, int] | None:
    return 0, len(zone)


def _line_end(zone: str, start: int) -> int:
    end = zone.find("\n", start)
    return len(zone) if end < 0 else end


def _trimmed(zone: str, start: int, end: int) -> tuple[int, int] | None:
    r"""The span without white space, bold, dollars and a `\text{}` around it; None when nothing is left."""
    for _layer in range(_LAYERS):
        piece = zone[start:end]
        inner = piece.strip()
        start += len(piece) - len(piece.lstrip())
        end = start + len(inner)
        if not inner:
            return None
        if wrapped := _TEXT_COMMAND.match(inner):
            start, end = start + wrapped.start(1), start + wrapped.end(1)
        elif mark := _wrapping(inner):
            start, end = start + len(mark), end - len(mark)
        elif inner.endswith(".") and _wrapping(inner[:-1]):
            end -= 1
        elif inner.count("**") == 1 and inner.startswith("**"):
            start += 2
        elif inner.count("**") == 1 and inner.rstrip(".").endswith("**"):
            end = start + inner.rindex("**")
        else:
            break
    return start, end


def _wrapping(inner: str) -> str:
    """The mark that `inner` begins and ends with, or an empty string."""
    return next((m for m in _MARKS if len(inner) >= 2 * len(m) and inner.startswith(m) and inner.endswith(m)), "")


_FINDERS = {
    "tag": _tag,
    "boxed": _boxed,
    "phrase": _phrase,
    "hashes": _hashes,
    "last_line": _last_line,
    "whole": _whole,
}
