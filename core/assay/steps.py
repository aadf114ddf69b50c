"""A response's text cut into reasoning steps, as character ranges; labels, training and scoring share it.

Guaranteed: the pieces tile the text, so joining them gives it back exactly; a step is never empty; no cut is made
inside a code fence, display maths, an environment or a table; time is linear in the text. Not guaranteed: that a cut is
where a mathematician would make it. Positions are characters and never tokens: a scorer maps them to its own tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from assay.component import Options
from assay.contracts import Span

__all__ = ["Piece", "SplitterOptions", "join_steps", "protected_ranges", "split_steps", "step_spans"]

By = Literal["blank_line", "line", "numbered", "sentence", "separator"]


class SplitterOptions(Options):
    """How a response is cut into steps."""

    by: By = "blank_line"
    """`blank_line`; every `line`; `numbered` steps (`Step 2:`, `2.`, `2)` at the start of a line, in counting order);
    `sentence`; or a `separator` of your own."""
    separator: str | None = Field(default=None, min_length=1)
    """A text that stands between steps, taken literally; given alone it means `by = "separator"`."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.separator is not None and self.by != "separator":
            if "by" in self.model_fields_set:
                raise ValueError(f'separator is for by = "separator"; found by = "{self.by}"; remove one of the two')
            object.__setattr__(self, "by", "separator")
        if self.by == "separator" and self.separator is None:
            raise ValueError('by = "separator" needs the text that stands between steps; set separator')
        return self

    @property
    def between(self) -> str:
        """What is put between steps that are given one by one, so that this splitter finds them again."""
        if self.separator is not None:
            return self.separator
        return {"blank_line": "\n\n", "sentence": " "}.get(self.by, "\n")


class Piece(NamedTuple):
    """One step and the blank space or separators around it."""

    begin: int
    """Where the piece begins: the end of the piece before it, or 0."""
    start: int
    """First character of the step itself."""
    end: int
    """One after the step's last character that is not blank."""
    stop: int
    """One after the piece, separators included."""

    @property
    def span(self) -> Span:
        """The step itself."""
        return Span(start=self.start, end=self.end)


def split_steps(text: str, options: SplitterOptions | None = None) -> tuple[Piece, ...]:
    """The steps of `text` in order; none where it is blank."""
    options = options or SplitterOptions()
    cuts = sorted({0, len(text), *_cuts(text, options)})
    pieces: list[Piece] = []
    begin = 0
    for first, last in pairwise(cuts):
        end = _content_end(text, first, last, options)
        start = first + len(text[first:end]) - len(text[first:end].lstrip())
        if start >= end:
            if pieces:  # a blank stretch belongs to the step before it
                pieces[-1] = pieces[-1]._replace(stop=last)
                begin = last
            continue
        pieces.append(Piece(begin, start, end, last))
        begin = last
    return tuple(pieces)


def step_spans(text: str, options: SplitterOptions | None = None) -> tuple[Span, ...]:
    """The steps of `text` as spans."""
    return tuple(piece.span for piece in split_steps(text, options))


def join_steps(steps: Sequence[str], separator: str = "\n\n") -> tuple[str, tuple[Span, ...]]:
    """One text of given steps, and where each stands in it; blank ends of a step are outside its span."""
    spans: list[Span] = []
    at = 0
    for step in steps:
        start = at + len(step) - len(step.lstrip())
        spans.append(Span(start=start, end=max(start, at + len(step.rstrip()))))
        at += len(step) + len(separator)
    return separator.join(steps), tuple(spans)


def protected_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Character ranges [start, end) of code fences, display maths, environments and tables, in order, disjoint.

    A code fence that is never closed reaches to the end, as in Markdown; maths that is never closed protects nothing.
    """
    found: list[tuple[int, int]] = []
    at = 0
    ends = _Ends(text)
    for match in _OPENING.finditer(text):
        if match.start() < at:
            continue
        end = ends.after(match)
        if end is not None:
            found.append((match.start(), end))
            at = end
    return tuple(found)


_OPENING = re.compile(
    r"^[ \t]{0,3}(?P<fence>`{3,}|~{3,})|(?P<dollars>\$\$)|(?P<bracket>\\\[)|\\begin\{(?P<name>[A-Za-z]{1,20}\*?)\}"
    r"|(?P<table>^[ \t]*\|[^\n]*(?:\n[ \t]*\|[^\n]*)*)",
    re.MULTILINE,
)
_NUMBERED = re.compile(
    r"^[ \t]*(?:[#>*_]{1,6}[ \t]*)?(?:(?i:step)[ \t]+(?P<step>\d{1,3})[ \t]*[.):\-]|(?P<item>\d{1,3})[.):](?!\d))",
    re.MULTILINE,
)
_SENTENCE = re.compile(r"[.!?][\"')\]]{0,3}(?=\s)|\n")
_ABBREVIATIONS = (
    "e.g.",
    "i.e.",
    "cf.",
    "vs.",
    "etc.",
    "Mr.",
    "Mrs.",
    "Ms.",
    "Dr.",
    "Eq.",
    "eq.",
    "Fig.",
    "No.",
    "approx.",
)
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")


class _Ends:
    """Where openings close; what was once not found is not looked for again, so that hostile texts cost linear time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._absent: set[str] = set()

    def after(self, match: re.Match[str]) -> int | None:
        """One after the closing of an opening, or None."""
        if match["table"] is not None:
            return match.end()
        if match["fence"] is not None:
            mark = match["fence"]
            closing = re.compile(rf"^[ \t]{{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
            found = closing.search(self.text, match.end())
            return len(self.text) if found is None else found.end()
        closing_text = "$$" if match["dollars"] else "\\]" if match["bracket"] else f"\\end{{{match['name']}}}"
        if closing_text in self._absent:
            return None
        at = self.text.find(closing_text, match.end())
        if at < 0:
            self._absent.add(closing_text)
            return None
        return at + len(closing_text)


def _cuts(text: str, options: SplitterOptions) -> Iterator[int]:
    """Character positions at which a new piece begins."""
    free = _Free(protected_ranges(text))
    for position in _wanted(text, options):
        if free.at(position):
            yield position


def _wanted(text: str, options: SplitterOptions) -> Iterator[int]:
    if options.by == "blank_line":
        yield from (match.end() for match in _BLANK_LINE.finditer(text))
    elif options.by == "line":
        yield from (match.end() for match in re.finditer(r"\n", text))
    elif options.by == "numbered":
        yield from _numbered(text)
    elif options.by == "sentence":
        yield from _sentences(text)
    else:
        assert options.separator is not None
        at = text.find(options.separator)
        while at >= 0:
            yield at + len(options.separator)
            at = text.find(options.separator, at + len(options.separator))


def _numbered(text: str) -> Iterator[int]:
    """Line starts that go on counting, so that a nested list, a year or a decimal at a line's start is no step."""
    found = list(_NUMBERED.finditer(text))
    if any(match["step"] for match in found):
        found = [match for match in found if match["step"]]
    expected: int | None = None
    for match in found:
        number = int(match["step"] or match["item"])
        if number == expected or (expected is None and number <= 1):
            yield match.start()
            expected = number + 1


def _sentences(text: str) -> Iterator[int]:
    for match in _SENTENCE.finditer(text):
        if match[0] != "\n" and text[max(0, match.start() - 7) : match.start() + 1].endswith(_ABBREVIATIONS):
            continue
        end = match.end()
        while end < len(text) and text[end] in " \t":
            end += 1
        yield end


def _content_end(text: str, first: int, last: int, options: SplitterOptions) -> int:
    piece = text[first:last]
    if options.by == "separator" and options.separator is not None:
        while piece.endswith(options.separator):
            piece = piece[: -len(options.separator)]
    return first + len(piece.rstrip())


class _Free:
    """Whether a position may be cut; asked in rising order."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._next = 0

    def at(self, position: int) -> bool:
        while self._next < len(self._ranges) and self._ranges[self._next][1] <= position:
            self._next += 1
        return self._next >= len(self._ranges) or position <= self._ranges[self._next][0]
