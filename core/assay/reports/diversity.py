"""How different the responses to one prompt still are: distinct texts and answers, reflection words, and the collapse.

A policy that has stopped exploring gives one text for a prompt, whatever its reward says; pass@k then falls while
pass@1 rises. The numbers here are logged every step, and `CollapseWatch` says once when they have fallen.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.contracts import Judgement, Rollout
from assay.training.reflection import REFLECTION_WORDS

_REFLECTION = re.compile(r"\b(?:" + "|".join(map(re.escape, REFLECTION_WORDS)) + r")\b", re.IGNORECASE)


def answer_of(judgement: Judgement) -> str | None:
    """The answer that a source extracted, from its evidence of kind `answer`; None where it names none."""
    for item in judgement.verdict.evidence:
        if item.kind != "answer":
            continue
        data: Any = item.data
        if isinstance(data, Mapping):
            data = data.get("answer", data.get("text"))  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(data, str | int | float):
            return " ".join(str(data).split())
    return None


def diversity(groups: Iterable[Sequence[Rollout]], answers: Mapping[str, str]) -> dict[str, float]:
    """Means over the groups with at least two rollouts.

    `distinct_texts` and `distinct_answers`: different ones as a share of those there are, 1 where all differ, 1/G where
    all are equal; texts are compared without surrounding blanks, answers (by rollout id) over the rollouts that have
    one. `reflection_words`: `REFLECTION_WORDS` per response, over all responses.
    """
    texts: list[float] = []
    found: list[float] = []
    words = responses = 0
    for group in groups:
        here = [rollout.text.strip() for rollout in group]
        responses += len(here)
        words += sum(len(_REFLECTION.findall(text)) for text in here)
        if len(here) >= 2:
            texts.append(len(set(here)) / len(here))
        given = [answers[rollout.id] for rollout in group if rollout.id in answers]
        if len(given) >= 2:
            found.append(len(set(given)) / len(given))
    numbers: dict[str, float] = {}
    if texts:
        numbers["distinct_texts"] = sum(texts) / len(texts)
    if found:
        numbers["distinct_answers"] = sum(found) / len(found)
    if responses:
        numbers["reflection_words"] = words / responses
    return numbers


class CollapseWatch:
    """Says once that the texts of a group have become the same: a policy without steps or clocks of its own.

    The first `settle` steps give the level that the run began with. Afterwards the mean of the last `settle` steps is
    compared with it: below `share` of that level is a collapse.
    """

    def __init__(self, *, settle: int = 5, share: float = 0.5) -> None:
        """A watch; `settle` in steps, `share` between 0 and 1."""
        self._settle, self._share = settle, share
        self._first: list[float] = []
        self._last: list[float] = []
        self._said = False

    def step(self, distinct_texts: float | None) -> str | None:
        """Take note of one step; the sentence where the collapse is found first, else None."""
        if distinct_texts is None:
            return None
        if len(self._first) < self._settle:
            self._first.append(distinct_texts)
            return None
        self._last = [*self._last, distinct_texts][-self._settle :]
        began, now = sum(self._first) / len(self._first), sum(self._last) / len(self._last)
        if self._said or len(self._last) < self._settle or now >= self._share * began:
            return None
        self._said = True
        return (
            f"the responses to one prompt have become alike: {now:.0%} of a group's texts are distinct, {began:.0%} at "
            "the start. The policy explores less: raise the temperature or the KL or entropy term, or stop earlier"
        )
