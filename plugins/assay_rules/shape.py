"""The shape of a response: whether it follows a template (`format`)."""

import itertools
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pydantic import field_validator

from assay.component import Options
from assay.contracts import Rollout, Task, Verdict
from assay_rules.text import shown

THINK_ANSWER = "<think>{think}</think><answer>{answer}</answer>"
_FIELD = re.compile(r"(\{[A-Za-z_]\w*\})")
_JOINT = re.compile(r"(?<=>)\s*(?=<)|\s*\n\s*")


class Piece(NamedTuple):
    """One piece of a template: literal text, or a field that holds anything but the literals."""

    text: str
    is_field: bool


def pieces(template: str) -> list[Piece]:
    """The template's pieces in order; literals are parted at line ends and between tags, where white space is free."""
    found: list[Piece] = []
    for part in _FIELD.split(template):
        if _FIELD.fullmatch(part):
            found.append(Piece(part[1:-1], True))
        else:
            found.extend(Piece(literal.strip(), False) for literal in _JOINT.split(part) if literal.strip())
    return found


class FormatOptions(Options):
    """How the response must be built."""

    template: str = THINK_ANSWER
    """Literal text with named fields in braces. White space around each literal is free; a field is never blank and
    never holds one of the literals, so each literal occurs exactly as often as in the template, in its order."""

    @field_validator("template")
    @classmethod
    def _readable(cls, template: str) -> str:
        found = pieces(template)
        if not any(piece.is_field for piece in found) or all(piece.is_field for piece in found):
            raise ValueError("a template needs a field in braces and literal text, as in '<answer>{answer}</answer>'")
        if any(left.is_field and right.is_field for left, right in itertools.pairwise(found)):
            raise ValueError("two fields need literal text between them, or nobody can tell where one ends")
        return template


@dataclass(frozen=True)
class Format:
    """1 where the whole response follows the template, 0 where it does not."""

    options: FormatOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.problem(rollout.text)
        return Verdict.score(float(problem is None), evidence=problem or "the response follows the template")

    def check_task(self, task: Task) -> str | None:
        """Nothing of the task is needed."""
        return None

    def problem(self, text: str) -> str | None:
        """What is wrong with `text` in one sentence, or None; the time is linear in the text."""
        literals = [piece.text for piece in self._pieces if not piece.is_field]
        for literal in dict.fromkeys(literals):
            if (count := text.count(literal)) != literals.count(literal):
                return f"{literal!r} occurs {count} times instead of {literals.count(literal)}"
        at, field = 0, ""
        for piece in self._pieces:
            if piece.is_field:
                field = piece.text
                continue
            start = text.find(piece.text, at)
            if start < 0:
                return f"{piece.text!r} stands too early"
            between = text[at:start].strip()
            if field and not between:
                return f"{field!r} is empty"
            if between and not field:
                return f"text before {piece.text!r}: {shown(between, 40)}"
            at, field = start + len(piece.text), ""
        rest = text[at:].strip()
        if field and not rest:
            return f"{field!r} is empty"
        return f"text after the end: {shown(rest, 40)}" if rest and not field else None

    @cached_property
    def _pieces(self) -> list[Piece]:
        return pieces(self.options.template)
