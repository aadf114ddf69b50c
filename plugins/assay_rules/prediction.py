"""How near a prediction comes to the reference, for world-model tasks: states, texts, edits and numbers."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import Field

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.answer import AnswerOptions, find_answer
from assay_rules.exact import references
from assay_rules.json_text import NotJsonError, read_json, unfenced
from assay_rules.text import answer_zone, shown
from assay_rules.tools import BadCallError, value_key

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")


class StateOptions(Options):
    """How states are compared."""

    score: Literal["share", "all"] = "share"
    """`share`: equal leaves / leaves of either state, so that extra leaves cost as much as missing ones; `all`: 1 where
    the states are equal."""


@dataclass(frozen=True)
class StateMatch:
    """In [0, 1]: how much of the predicted state, a JSON value, equals the reference's; numbers by value."""

    options: StateOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            return Verdict.abstain("gold_unparseable", fault="ours", evidence=problem)
        zone = answer_zone(rollout.text)
        if zone is None or not zone.strip():
            return Verdict.abstain("no_answer", evidence="the response has no text after its reasoning")
        try:
            state = set(_leaves(read_json(unfenced(zone), exact=True)))
        except (NotJsonError, BadCallError, RecursionError) as error:
            return Verdict.abstain("answer_unparseable", evidence=f"the state is not JSON: {error}")
        gold = set(_leaves(_gold_state(task)))
        equal, either = len(state & gold), len(state | gold)
        value = equal / either if self.options.score == "share" else float(equal == either)
        return Verdict.score(value, evidence=Evidence(kind="state", summary=f"{equal} of {either} leaves are equal"))

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference is no state."""
        try:
            set(_leaves(_gold_state(task)))
        except (NotJsonError, BadCallError) as error:
            return f"the reference is no state: {error}"
        return None


def _gold_state(task: Task) -> Any:
    if task.reference is None:
        raise NotJsonError("it is empty")
    return read_json(task.reference, exact=True) if isinstance(task.reference, str) else task.reference


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Hashable, Hashable]]:
    """(path, value) of every leaf of a JSON value; an empty table or list is a leaf."""
    if isinstance(value, dict) and value:
        for key, item in cast("dict[str, Any]", value).items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _leaves(item, (*path, index))
    else:
        yield (path, value_key(value))


class TextOptions(Options):
    """Where the predicted text is."""

    answer: AnswerOptions = AnswerOptions()
    """Where in the response the answer is."""
    max_characters: int = Field(default=20_000, ge=1, le=100_000)
    """Longer answers are abstained on, for their cost."""


@dataclass(frozen=True)
class TokenF1:
    """In [0, 1]: F1 of the words shared with the reference (the best of several), as SQuAD's script has it.

    Case, punctuation and English articles are ignored (Rajpurkar et al. 2016, arXiv 1606.05250).
    """

    options: TextOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        return _compared(task, rollout, self.options, token_f1, "F1")

    def check_task(self, task: Task) -> str | None:
        """One sentence when there is no text to compare with."""
        return None if references(task) else f"the reference is empty or no text: {task.reference!r}"


@dataclass(frozen=True)
class EditDistance:
    """In [0, 1]: 1 - Levenshtein distance / length of the longer text, over characters (the best of several)."""

    options: TextOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        return _compared(task, rollout, self.options, similarity, "similarity")

    def check_task(self, task: Task) -> str | None:
        """One sentence when there is no text to compare with."""
        return None if references(task) else f"the reference is empty or no text: {task.reference!r}"


def _compared(task: Task, rollout: Rollout, options: TextOptions, measure: Any, name: str) -> Verdict:
    golds = references(task)
    if not golds:
        return Verdict.abstain("gold_empty", fault="ours", evidence="the reference is empty or no text")
    found = find_answer(rollout.text, options.answer)
    if found is None:
        return Verdict.abstain("no_answer", evidence="no answer found in the response")
    if len(found.text) > options.max_characters:
        return Verdict.abstain("answer_too_long", evidence=f"{len(found.text)} characters are too many to compare")
    value = max(float(measure(found.text, gold)) for gold in golds)
    summary = f"{name} {value:.4f} of {shown(found.text)} with {shown(golds[0])}"
    return Verdict.score(value, evidence=Evidence(kind="answer", summary=summary, data=found.as_data()))


def token_f1(text: str, gold: str) -> float:
    """F1 of the multisets of words of both texts, in [0, 1]."""
    ours, theirs = Counter(_squad_words(text)), Counter(_squad_words(gold))
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total())


def _squad_words(text: str) -> list[str]:
    lowered = unicodedata.normalize("NFC", text).lower()
    return _ARTICLES.sub(" ", lowered.translate(str.maketrans("", "", string.punctuation))).split()


def similarity(text: str, gold: str) -> float:
    """1 - edit distance / length of the longer text, in [0, 1]."""
    longer = max(len(text), len(gold))
    return 1.0 - edit_distance(text, gold) / longer if longer else 1.0


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance of two texts.

    Bit-parallel (Hyyro 2003, after Myers 1999): the columns of the table are the bits of integers, so that a text of
    20,000 characters costs a tenth of a second.
    """
    if not a or not b:
        return len(a) + len(b)
    if len(a) > len(b):
        a, b = b, a
    mask, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    places: dict[str, int] = {}
    for index, character in enumerate(a):
        places[character] = places.get(character, 0) | (1 << index)
    plus, minus, distance = mask, 0, len(a)
    for character in b:
        equal = places.get(character, 0)
        diagonal = (((equal & plus) + plus) ^ plus) | equal | minus
        up, down = minus | ~(diagonal | plus) & mask, plus & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = ((up << 1) | 1) & mask, (down << 1) & mask
        plus, minus = down | ~(diagonal | up) & mask, up & diagonal
    return distance


class ErrorOptions(Options):
    """How far off a prediction may be."""

    answer: AnswerOptions = AnswerOptions()
    """Where in the response the numbers are."""
    max_error: float = Field(default=1.0, gt=0)
    """Each number's error is cut here; it is also the penalty of a prediction of the wrong length."""


@dataclass(frozen=True)
class NegativeMae:
    """In [-max_error, 0]: minus the mean absolute error over the reference's numbers, in their order."""

    options: ErrorOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        golds = _gold_numbers(task)
        if not golds:
            return Verdict.abstain("gold_unparseable", fault="ours", evidence=self.check_task(task) or "")
        found = find_answer(rollout.text, self.options.answer)
        numbers = [float(number) for number in _NUMBER.findall(found.text)] if found else []
        if found is None or not numbers:
            return Verdict.abstain("no_number", evidence="no number found in the response")
        bound = self.options.max_error
        if len(numbers) != len(golds):
            return Verdict.score(-bound, evidence=f"{len(numbers)} numbers instead of {len(golds)}")
        errors = [min(abs(number - gold), bound) for number, gold in zip(numbers, golds, strict=True)]
        value = -sum(errors) / len(errors) + 0.0
        summary = f"mean absolute error {-value:g} over {len(golds)} numbers, each cut at {bound:g}"
        return Verdict.score(
            max(value, -bound), evidence=Evidence(kind="answer", summary=summary, data=found.as_data())
        )

    def check_task(self, task: Task) -> str | None:
        """One sentence when the reference holds no numbers."""
        return None if _gold_numbers(task) else f"the reference is no number or list of numbers: {task.reference!r}"


def _gold_numbers(task: Task) -> list[float]:
    reference: object = task.reference
    if isinstance(reference, str):
        return [float(number) for number in _NUMBER.findall(reference)]
    listed = cast("list[object]", reference) if isinstance(reference, list) else [reference]
    numbers = [float(item) for item in listed if isinstance(item, int | float) and not isinstance(item, bool)]
    return numbers if len(numbers) == len(listed) else []
