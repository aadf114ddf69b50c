"""Is a verifier right? Its verdicts on data with golds, against labels, and beside another verifier.

On data: the gold itself must be accepted; an empty answer, the question sent back, and the gold of another row must
not; and three runs must agree. Against labels: who is accepted, by kind, with the rates of both errors and their
intervals. Between two verifiers: where they differ, the largest difference first. An abstention is never counted as a
number: it stands in columns of its own, and only the candidate's own fault counts as "not accepted".
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Candidate, Judgement, Rollout, Task, Turn
from assay.errors import ConfigError
from assay.judging import open_panel
from assay.registry import Registry
from assay.reports.differences import (
    EXAMPLES,
    Answer,
    Outcome,
    Said,
    differences,
    gold_text,
    is_accepted,
    is_ours,
    more,
    verdict_class,
)
from assay.reports.page import Section, section_rows
from assay.reports.statistics import wilson
from assay.reports.text import one_line

WRAPPERS = {"as it is": "{}", "in a phrase": "The answer is {}", "in a box": "\\boxed{{{}}}"}
"""How a gold is offered as a response; a verifier need accept one of them."""
_AT_ONCE = 256


class Bench:
    """One entry of `rewards` on the bench: `async with Bench(...)`, then `judge` as often as wanted, never cached."""

    def __init__(
        self, entry: RewardEntry, *, registry: Registry, context: BuildContext, judging: JudgingConfig | None = None
    ) -> None:
        """Check the entry; raises `ConfigError` for an unknown name or option."""
        settings = (judging or JudgingConfig()).model_copy(update={"cache": False, "on_unhealthy": "mask"})
        self.name = entry.name
        self._seen: dict[str, list[Judgement]] = {}
        self._judged = 0
        self._panel = open_panel([entry], registry=registry, judging=settings, context=context, observe=self._observe)

    async def __aenter__(self) -> Self:
        """Build the sources."""
        await self._panel.__aenter__()
        if self._panel.judges_groups:
            await self._panel.aclose()
            raise ConfigError(f"{self.name}: it judges whole groups, so it cannot be audited answer by answer")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the sources."""
        await self._panel.aclose()

    @property
    def middle(self) -> float:
        """The value from which an answer counts as accepted: the middle of the sources' range."""
        ranges = [source.limits.value_range for source in self._panel.sources.values()]
        return (min(low for low, _ in ranges) + max(high for _, high in ranges)) / 2

    async def complaints(self, tasks: Sequence[Task]) -> list[tuple[Task, str]]:
        """Tasks whose gold cannot be read, and why."""
        found = [(task, await self._panel.check_task(task)) for task in tasks]
        return [(task, "; ".join(problems)) for task, problems in found if problems]

    async def judge(self, answers: Sequence[tuple[Task, str]]) -> list[Outcome]:
        """One outcome per (task, text), in order."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(task: Task, text: str) -> Outcome:
            self._judged += 1
            rollout = Rollout(id=f"audit-{self._judged}", task_id=task.id, group_id="audit", turns=(Turn(text=text),))
            async with room:
                reward = await self._panel.judge(task, rollout)
            judgements = self._seen.pop(rollout.id, [])
            evidence = "; ".join(item.summary for judgement in judgements for item in judgement.verdict.evidence[:2])
            if not reward.parts:
                return Outcome("abstained", None, reward.reason or "no source applies", "ours", evidence)
            part = reward.parts[0]
            value = part.value if part.status == "scored" else None
            return Outcome(part.status, value, part.reason, part.fault, evidence)

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, text)) for task, text in answers]
        return [task.result() for task in running]

    def _observe(self, candidate: Candidate, judgement: Judgement) -> None:
        self._seen.setdefault(candidate.rollout.id, []).append(judgement)


async def audit_data(bench: Bench, tasks: Sequence[Task]) -> list[Section]:
    """What holds of a verifier on tasks with golds: five sections, each with its worst examples."""
    unreadable = await bench.complaints(tasks)
    bad = {id(task) for task, _ in unreadable}  # the objects: a file may give one name to several rows
    readable = [task for task in tasks if id(task) not in bad]
    sections = [_unreadable(unreadable, len(tasks))]
    if not readable:
        return sections
    accepted_as: dict[int, str] = {}
    by_wrapper: dict[str, int] = {}
    said: dict[int, str] = {}
    runs: list[tuple[Task, str]] = []
    for name, wrapper in WRAPPERS.items():
        pairs = [(task, wrapper.format(gold_text(task))) for task in readable]
        runs += pairs
        outcomes = await bench.judge(pairs)
        for place, outcome in enumerate(outcomes):
            if is_accepted(outcome, bench.middle):
                accepted_as.setdefault(place, wrapper)
                by_wrapper[name] = by_wrapper.get(name, 0) + 1
            else:
                said[place] = outcome.said
    sections.append(_golds(readable, accepted_as, by_wrapper, said))
    sections.append(await _never(bench, "an empty answer is not accepted", [(task, "") for task in readable]))
    sections.append(await _never(bench, "the question sent back is not accepted", [(t, t.prompt) for t in readable]))
    offered_as = {id(task): accepted_as.get(place, "{}") for place, task in enumerate(readable)}
    others = [(task, offered_as[id(task)].format(gold)) for task, gold in neighbours(readable)]
    sections.append(await _never(bench, "another row's gold is not accepted", others))
    sections.append(await _agreement(bench, runs[: len(readable)]))
    return sections


async def audit_labels(bench: Bench, answers: Sequence[Answer]) -> list[Section]:
    """The verifier against the labels of its answers: confusion and error rates in all and by kind, and the errors."""
    outcomes = await bench.judge([(answer.task, answer.text) for answer in answers])
    pairs = list(zip(answers, outcomes, strict=True))
    kinds = sorted({answer.kind for answer in answers if answer.kind})
    rows = [confusion_row("all", pairs, bench.middle)]
    if len(kinds) > 1:
        rows += [confusion_row(kind, [p for p in pairs if p[0].kind == kind], bench.middle) for kind in kinds]
    columns = (
        "kind",
        "rows",
        "right accepted",
        "right rejected",
        "right abstained",
        "wrong accepted",
        "wrong rejected",
        "wrong abstained",
        "not judged",
        "false positives",
        "false negatives",
    )
    notes = (
        "abstained is the candidate's own fault (no answer, an unreadable one) and counts as not accepted; not judged "
        "is ours (a bad gold, a failure) and counts nowhere. Rates are over judged rows, with 95 % Wilson intervals.",
    )
    wrong = [
        (answer, outcome)
        for answer, outcome in pairs
        if answer.label is not None and not is_ours(outcome) and is_accepted(outcome, bench.middle) != answer.label
    ]
    wrong.sort(key=lambda pair: pair[0].label is True)
    return [
        Section("against the labels", columns, section_rows(rows), notes),
        Section(
            "where verifier and label differ, false positives first",
            ("row", "kind", "label", "verdict", "gold", "answer", "evidence"),
            tuple(_example(answer, outcome) for answer, outcome in wrong[:EXAMPLES]),
            more(len(wrong)),
        ),
    ]


async def audit_against(bench: Bench, other: Bench, answers: Sequence[Answer]) -> list[Section]:
    """Where two verifiers differ, the largest difference first."""
    pairs = [(answer.task, answer.text) for answer in answers]
    first = Said(bench.name, await bench.judge(pairs), bench.middle)
    return differences(answers, first, Said(other.name, await other.judge(pairs), other.middle))


def neighbours(tasks: Sequence[Task]) -> list[tuple[Task, str]]:
    """Every task with the gold of the next row that names other numbers, or other words where it has no numbers.

    So `x=5` is no neighbour of `5`, which is the same answer. Tasks without such a row are left out.
    """
    golds = [gold_text(task) for task in tasks]
    found: list[tuple[Task, str]] = []
    for index, task in enumerate(tasks):
        following = (golds[(index + step) % len(tasks)] for step in range(1, len(tasks)))
        other = next((gold for gold in following if _content(gold) != _content(golds[index])), None)
        if other is not None:
            found.append((task, other))
    return found


def confusion_row(kind: str, pairs: Sequence[tuple[Answer, Outcome]], middle: float) -> list[str]:
    """Counts of one kind, and the rates of false positives and false negatives with their intervals."""
    counts: Counter[tuple[bool, str]] = Counter(
        (answer.label, verdict_class(outcome, middle)) for answer, outcome in pairs if answer.label is not None
    )
    classes = ("accepted", "rejected", "abstained")
    negatives = sum(counts[False, name] for name in classes)
    positives = sum(counts[True, name] for name in classes)
    false_negatives = positives - counts[True, "accepted"]
    return [
        kind,
        str(counts.total()),
        *(str(counts[True, name]) for name in classes),
        *(str(counts[False, name]) for name in classes),
        str(counts[True, "not judged"] + counts[False, "not judged"]),
        str(wilson(counts[False, "accepted"], negatives)) if negatives else "no wrong answers",
        str(wilson(false_negatives, positives)) if positives else "no right answers",
    ]


def _unreadable(unreadable: Sequence[tuple[Task, str]], count: int) -> Section:
    rows = section_rows([(task.id, one_line(gold_text(task), 80), problem) for task, problem in unreadable[:EXAMPLES]])
    notes = (f"{len(unreadable)} of {count} golds cannot be read; they are left out below.", *more(len(unreadable)))
    return Section("golds can be read", ("row", "gold", "problem"), rows, notes, good=not unreadable)


def _golds(
    tasks: Sequence[Task], accepted: dict[int, str], by_wrapper: dict[str, int], said: dict[int, str]
) -> Section:
    missed = [(place, task) for place, task in enumerate(tasks) if place not in accepted]
    rates = ", ".join(f"{name} {wilson(by_wrapper.get(name, 0), len(tasks))}" for name in WRAPPERS)
    rows = [(task.id, one_line(gold_text(task), 80), said.get(place, "")) for place, task in missed[:EXAMPLES]]
    notes = (f"{len(tasks) - len(missed)} of {len(tasks)} golds are accepted ({rates}).", *more(len(missed)))
    return Section("the gold is accepted", ("row", "gold", "verdict"), section_rows(rows), notes, good=not missed)


async def _never(bench: Bench, title: str, pairs: Sequence[tuple[Task, str]]) -> Section:
    outcomes = await bench.judge(pairs)
    accepted = [
        (task.id, one_line(gold_text(task), 60), one_line(text, 100), outcome.said, one_line(outcome.evidence, 120))
        for (task, text), outcome in zip(pairs, outcomes, strict=True)
        if is_accepted(outcome, bench.middle)
    ]
    columns = ("row", "gold", "answer", "verdict", "evidence")
    notes = (f"{len(accepted)} of {len(pairs)} are accepted.", *more(len(accepted)))
    return Section(title, columns, section_rows(accepted[:EXAMPLES]), notes, good=not accepted)


async def _agreement(bench: Bench, pairs: Sequence[tuple[Task, str]]) -> Section:
    runs = [await bench.judge(pairs) for _ in range(3)]
    differing = [
        (task.id, *(run[index].said for run in runs))
        for index, (task, _) in enumerate(pairs)
        if len({run[index][:4] for run in runs}) > 1
    ]
    notes = (f"{len(differing)} of {len(pairs)} answers were judged differently in three runs.",)
    columns = ("row", "run 1", "run 2", "run 3")
    rows = section_rows(differing[:EXAMPLES])
    return Section("three runs agree", columns, rows, notes, good=not differing)


def _example(answer: Answer, outcome: Outcome) -> tuple[str, ...]:
    return (
        answer.task.id,
        answer.kind,
        "right" if answer.label else "wrong",
        outcome.said,
        one_line(gold_text(answer.task), 60),
        one_line(answer.text[-400:], 160),
        one_line(outcome.evidence, 160),
    )


def _content(text: str) -> tuple[str, ...]:
    """The numbers of a text in any order, or its words, or else its signs."""
    numbers = re.findall(r"\d+", text)
    return tuple(sorted(numbers)) or tuple(re.findall(r"\w+", text.casefold())) or ("".join(text.split()),)


def as_label(value: Any) -> bool | None:
    """A label as true or false: booleans, 0 and 1, and the usual words; None where it is none of these."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    words = {"true": True, "right": True, "correct": True, "yes": True, "1": True}
    words |= {"false": False, "wrong": False, "incorrect": False, "no": False, "0": False}
    return words.get(str(value).strip().casefold()) if isinstance(value, str) else None
