"""What verifiers said of answers, and where two of them differ: the largest difference first.

One-sided abstentions are counted apart; an abstention is never a number.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from assay.contracts import Judgement, Status, Task
from assay.contracts.verdict import Fault
from assay.reports.page import Section, section_rows
from assay.reports.statistics import wilson
from assay.reports.text import one_line

EXAMPLES = 20
"""Rows of a list of examples."""


class Outcome(NamedTuple):
    """What a verifier said of one response."""

    status: Status
    value: float | None
    reason: str | None
    fault: Fault | None
    evidence: str

    @property
    def said(self) -> str:
        """In a few words."""
        return f"{self.value:g}" if self.value is not None else f"{self.status}: {self.reason}"


class Answer(NamedTuple):
    """One response to a task, with a label where somebody gave one."""

    task: Task
    text: str
    label: bool | None = None
    kind: str = ""
    rollout: str = ""
    """Id of the rollout, where it is one of a run."""

    @property
    def row(self) -> str:
        """What the answer is called in a list."""
        return self.rollout or self.task.id


class Said(NamedTuple):
    """What one verifier said of a list of answers."""

    name: str
    outcomes: Sequence[Outcome]
    middle: float
    """The value from which an answer counts as accepted."""


def differences(answers: Sequence[Answer], first: Said, second: Said) -> list[Section]:
    """A table of both verifiers' outcomes, and the answers that both scored differently, the largest difference first.

    Raises `ValueError` where a verifier said something of more or fewer answers.
    """
    counts: Counter[tuple[str, str]] = Counter()
    differing: list[tuple[float, Answer, Outcome, Outcome]] = []
    for answer, a, b in zip(answers, first.outcomes, second.outcomes, strict=True):
        counts[verdict_class(a, first.middle), verdict_class(b, second.middle)] += 1
        if a.value is not None and b.value is not None and a.value != b.value:
            differing.append((abs(a.value - b.value), answer, a, b))
    differing.sort(key=lambda item: -item[0])
    classes = ("accepted", "rejected", "abstained", "not judged")
    table = [[name, *(counts[name, other] for other in classes)] for name in classes]
    both = sum(counts[a, b] for a in classes[:2] for b in classes[:2])
    same = counts["accepted", "accepted"] + counts["rejected", "rejected"]
    note = f"of {both} answers that both scored, they agree on {same}" if both else "no answer was scored by both"
    if both:
        note += f": {wilson(same, both)}"
    return [
        Section(f"{first.name} (down) and {second.name} (across)", ("", *classes), section_rows(table), (note,)),
        Section(
            "the largest differences",
            ("row", first.name, second.name, "gold", "answer"),
            section_rows(
                [
                    (answer.row, a.said, b.said, one_line(gold_text(answer.task), 60), one_line(answer.text, 120))
                    for _, answer, a, b in differing[:EXAMPLES]
                ]
            ),
            more(len(differing)),
        ),
    ]


def recorded_differences(answers: Sequence[Answer], judgements: Sequence[Sequence[Judgement]]) -> list[Section]:
    """Where the sources of a run differ, pair by pair, on the rollouts that both judged.

    `judgements` are those of each answer. Only sources whose values lie in [0, 1] are compared; the others are named.
    """
    said: dict[str, dict[int, Outcome]] = {}
    for place, each in enumerate(judgements):
        for judgement in each:
            verdict = judgement.verdict
            evidence = "; ".join(item.summary for item in verdict.evidence[:2])
            found = Outcome(verdict.status, judgement.value, verdict.reason, verdict.fault, evidence)
            said.setdefault(judgement.source, {})[place] = found
    scaled = {name: outcomes for name, outcomes in said.items() if _is_share(outcomes.values())}
    sections: list[Section] = []
    for (first, ours), (second, theirs) in combinations(scaled.items(), 2):
        if both := sorted(ours.keys() & theirs.keys()):
            one, two = (Said(n, [o[place] for place in both], 0.5) for n, o in ((first, ours), (second, theirs)))
            sections += differences([answers[place] for place in both], one, two)
    if len(said) > 1 and (others := sorted(said.keys() - scaled.keys())):
        sections.append(Section("not compared", notes=(f"on another scale than 0 to 1: {', '.join(others)}",)))
    return sections


def _is_share(outcomes: Iterable[Outcome]) -> bool:
    """Whether every value lies in [0, 1]."""
    return all(outcome.value is None or 0 <= outcome.value <= 1 for outcome in outcomes)


def gold_text(task: Task) -> str:
    """The reference as a response would write it: text as it is, the first of several, anything else as JSON."""
    reference = task.reference
    if isinstance(reference, list) and reference and all(isinstance(item, str) for item in reference):
        return str(reference[0])
    return reference if isinstance(reference, str) else json.dumps(reference, ensure_ascii=False)


def is_accepted(outcome: Outcome, middle: float) -> bool:
    """Whether an answer counts as right."""
    return outcome.value is not None and outcome.value >= middle


def verdict_class(outcome: Outcome, middle: float) -> str:
    """`accepted`, `rejected`, `abstained` (the candidate's fault) or `not judged` (ours)."""
    if outcome.value is not None:
        return "accepted" if is_accepted(outcome, middle) else "rejected"
    return "not judged" if is_ours(outcome) else "abstained"


def is_ours(outcome: Outcome) -> bool:
    """Whether it is our doing, not the candidate's, that there is no score."""
    return outcome.status != "scored" and outcome.fault == "ours"


def more(count: int) -> tuple[str, ...]:
    """A note on what a list of examples leaves out."""
    return (f"{count - EXAMPLES} more are not shown.",) if count > EXAMPLES else ()
