r"""The last `\boxed{...}`: one scan over braces, boxes in boxes, and boxes that are one list."""

import re

from assay_math.found import Extraction, Missing

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[^a-zA-Z]|[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
JOIN = re.compile(
    r"(?:[\s,;.$&]|\\\(|\\\)|\\\[|\\\]|\\[,;:! ]|\\quad|\\text\{\s*(?:and|or|,)\s*\}|\*|\band\b|\bor\b|和|或|、|，)*"
)
_OR = re.compile(r"\bor\b|或")
_NEXT_SENTENCE = re.compile(r"[.;]\s*\S|\n\s*\n")


def boxed(response: str, start: int, end: int, prompt: str, choices: bool) -> Extraction | Missing | None:
    """The last box of the zone, or the list of boxes that it ends; None when there is no box."""
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
        if len(gap) > 60 or not JOIN.fullmatch(gap) or _NEXT_SENTENCE.search(gap):
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
        brace = match.group()
        if brace == "{":
            stack.append(None)
        elif brace == "}":
            if not stack:
                continue
            opened = stack.pop()
            if opened is None:
                continue
            open_boxes.pop()
            while boxes and boxes[-1][1] > opened[1]:
                boxes.pop()
            boxes.append((opened[0], opened[1], match.end()))
        elif brace[1] in "bf":
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
