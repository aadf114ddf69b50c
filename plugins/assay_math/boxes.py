r"""The last `\boxed{...}`: balanced braces, boxes in boxes, and boxes that are one list.

Every character is looked at a bounded number of times: braces are matched forward from one box at a time, from the
last one backwards, and the walk ends at the first box that neither holds the answer nor is listed with it.
"""

import re

from assay_math.found import Extraction, Missing

_BRACE = re.compile(r"\\[^a-zA-Z]|[{}]")
_HEAD = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_TOKEN = re.compile(r"-?\d+(?:\.\d+)?|\\[a-zA-Z]+|\S")
_JOINS = r"[\s,;.$&]|\\\(|\\\)|\\\[|\\\]|\\[,;:! ]|\\quad|\\text\{\s*(?:and|or|,)\s*\}|\*|\band\b|\bor\b|和|或|、|，"
JOIN = re.compile(f"(?:{_JOINS})*")
"""What may stand between formulas that are one list."""
_LABEL = r"[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=\s*"
_JOIN_BOXES = re.compile(
    rf"(?:{_JOINS}|[()/|]|\b(?:maybe|perhaps|possibly|else|alternatively|also|either)\b|\b{_LABEL})*"
)
"""As `JOIN`, with the words of a guess, and the short left side of the box that follows (`or $x =`)."""
_LABEL_BEFORE = re.compile(rf"(?<![A-Za-z\\]){_LABEL}(?:\$|\\\(|\\\[)?\s*$")
_LABEL_CHARS = 16
_OR = re.compile(r"\bor\b|或")
_NEXT_SENTENCE = re.compile(r"\.|;\s*\S|\n\s*\n")
_MAX_GAP = 60
_MAX_NESTING = 16
_MAX_PARTS = 256


def boxed(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | Missing | None:
    """The last box of the zone, or the list of boxes that it ends; None when there is no box."""
    last = _previous(response, start, end)
    if last is None:
        return _framed(response, start, end)
    return _box_at(response, start, end, last)


def _framed(response: str, start: int, end: int) -> Extraction | Missing | None:
    r"""The last `\fbox{...}` of a zone without `\boxed`."""
    last = response.rfind("\\fbox", start, end)
    return _box_at(response, last, end, last) if last >= 0 else None


def _box_at(response: str, start: int, end: int, last: int) -> Extraction | Missing | None:
    """The box that begins at `last`, with those around it and listed before it."""
    head = _HEAD.match(response, last, end)
    if head is None:
        return None
    if response[head.end() : head.end() + 1] != "{":
        return _unbraced(response, last, head.end())
    finish = _close(response, head.end(), end)
    if finish is None:
        return Missing("the last box never closes")
    if not response[head.end() + 1 : finish - 1].strip():
        return Missing("the last box is empty")
    last, content, finish = _outermost(response, start, end, (last, head.end() + 1, finish))
    parts = [response[content : finish - 1]]
    labels = [_label(response, start, last)]
    alternative = False
    begin = last
    while len(parts) < _MAX_PARTS and (listed := _listed_before(response, start, begin)) is not None:
        earlier, text, gap = listed
        alternative |= _OR.search(gap) is not None
        parts.append(text)
        labels.append(_label(response, start, earlier))
        begin = earlier
    if len(set(parts)) == 1:
        return Extraction(parts[0], "boxed", last, finish)
    if all(labels):
        parts = [part if "=" in part else label + part for label, part in zip(labels, parts, strict=True)]
    joined = (" \\text{ or } " if alternative else ", ").join(reversed(parts))
    return Extraction(joined, "boxed", begin, finish, len(parts))


def _previous(response: str, start: int, end: int) -> int | None:
    """Where the last box before `end` begins."""
    place = response.rfind("\\boxed", start, end)
    return place if place >= 0 else None


def _close(response: str, opening: int, end: int) -> int | None:
    """One past the brace that closes the one at `opening`, or None."""
    depth = 0
    for match in _BRACE.finditer(response, opening, end):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.end()
    return None


def _outermost(response: str, start: int, end: int, box: tuple[int, int, int]) -> tuple[int, int, int]:
    """The box around `box` (begin, content, end) that no other is around."""
    for _ in range(_MAX_NESTING):
        around = _previous(response, start, box[0])
        head = _HEAD.match(response, around, end) if around is not None else None
        if around is None or head is None or response[head.end() : head.end() + 1] != "{":
            break
        if _close(response, head.end(), box[0]) is not None:
            break
        finish = _close(response, head.end(), end)
        if finish is None:
            break
        box = (around, head.end() + 1, finish)
    return box


def _listed_before(response: str, start: int, begin: int) -> tuple[int, str, str] | None:
    """The box before `begin` that only a comma, a word or a space parts from it: (begin, content, gap)."""
    earlier = _previous(response, start, begin)
    head = _HEAD.match(response, earlier) if earlier is not None else None
    if earlier is None or head is None or response[head.end() : head.end() + 1] != "{":
        return None
    finish = _close(response, head.end(), begin)
    if finish is None or begin - finish > _MAX_GAP:
        return None
    gap = response[finish:begin]
    if not _JOIN_BOXES.fullmatch(gap) or _NEXT_SENTENCE.search(gap):
        return None
    return earlier, response[head.end() + 1 : finish - 1], gap


def _label(response: str, start: int, begin: int) -> str:
    """The short left side before the box at `begin` (`x =`), or an empty string."""
    match = _LABEL_BEFORE.search(response[max(start, begin - _LABEL_CHARS) : begin])
    return match.group().strip(" $\\([") if match is not None else ""


def _unbraced(response: str, begin: int, place: int) -> Extraction | Missing:
    r"""The one token that `\boxed 5` boxes."""
    match = _TOKEN.match(response, place)
    return (
        Missing("the last box never closes")
        if match is None
        else Extraction(match.group(), "boxed", begin, match.end())
    )
