"""Evaluation files with known wrong steps, scored by a reward source and turned into first-error figures.

Four forms are read, told apart by their columns: ProcessBench (`steps`, `label`), BIG-Bench Mistake (`steps`,
`mistake_index`), PRMBench (`modified_process`, `error_steps`, from 1) and MR-GSM8K (`model_output_steps`,
`model_output_solution_first_error_step`, from 1, `N/A` for right solutions).

A row is handed to the source as one response: its steps joined by blank lines, or by what the source was trained with
between steps (`between`). Where each step stands is in the task's facts under `step_spans` ([start, end] pairs of
characters), for sources that score given steps instead of cutting the text themselves. A source must give exactly one
score inside each step, or none of the row's scores is used: such rows, and those that it abstains on, are counted as
unscored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import JsonValue

from assay.contracts import Candidate, Message, Reward, Rollout, Span, StepScore, Task, Turn
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay.reports.first_error import (
    FirstError,
    Fitted,
    Mean,
    ScoredSteps,
    StepF1,
    first_error,
    fit_threshold,
    in_test_half,
    mean_over_subsets,
    step_f1,
)
from assay.rows import BadRowError, Row, column, read_rows, text_column
from assay.steps import join_steps

STEP_SPANS = "step_spans"
"""Key of the task's facts with the given steps."""
IN_FLIGHT = 256
"""Rows that a panel judges at once."""
BETWEEN = "\n\n"
"""What stands between the steps of a row unless another text is given."""


class StepRow(NamedTuple):
    """One solution with human labels."""

    line: int
    id: str
    problem: str
    steps: tuple[str, ...]
    first_error: int | None
    """From 0; None where every step is right."""
    wrong: tuple[int, ...] | None
    """All wrong steps where they are known."""
    domain: str


AskSteps = Callable[[Sequence[Candidate]], Awaitable[Sequence[Sequence[StepScore] | None]]]
"""Candidates to their step scores, in order; None where the source did not score."""


class _Judge(Protocol):
    async def judge(self, task: Task, rollout: Rollout, /) -> Reward: ...


@dataclass(frozen=True)
class StepReport:
    """First-error figures of one file."""

    whole: FirstError
    """Over the test half, at the threshold fitted on the development half; or over all rows where it was given."""
    domains: Mapping[str, FirstError]
    """The same by subset or category, at the same threshold; empty where there is only one."""
    mean_f1: Mean
    """F1 over the domains."""
    step_f1: StepF1 | None
    """Step-wise F1 where all wrong steps are known (PRMBench)."""
    step_f1_by_domain: Mapping[str, StepF1]
    rows: int
    unscored: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            **self.whole.to_dict(),
            "rows": self.rows,
            "domains": {name: figures.to_dict() for name, figures in self.domains.items()},
            "mean_f1": self.mean_f1.plain,
            "mean_f1_size_weighted": self.mean_f1.size_weighted,
            "step_f1": _step_f1_dict(self.step_f1),
            "step_f1_by_domain": {name: _step_f1_dict(found) for name, found in self.step_f1_by_domain.items()},
        }


def has_step_labels(data: Mapping[str, Any]) -> bool:
    """Whether a row is of one of the four forms."""
    return any(steps in data and label in data for steps, label, _ in _FORMS.values())


def read_step_rows(path: str | Path) -> list[StepRow]:
    """All rows of a file; raises `ConfigError` with file and line for the first that cannot be used."""
    return step_rows(read_rows(path), str(path))


def step_rows(rows: Iterable[Row | BadRowError], path: str) -> list[StepRow]:
    """The same of the file's rows."""
    found: list[StepRow] = []
    for row in rows:
        if isinstance(row, BadRowError):
            raise row
        found.append(_step_row(row, path))
    if not found:
        raise ConfigError(f"{path}: no row with labelled steps; the file is empty")
    return found


def as_candidate(row: StepRow, between: str = BETWEEN) -> Candidate:
    """The row as what a source judges; its ids begin with the line, since files repeat their own."""
    name = f"{row.line}:{row.id}"
    text, spans = join_steps(row.steps, between)
    facts: dict[str, JsonValue] = {STEP_SPANS: [[span.start, span.end] for span in spans]}
    task = Task(id=name, messages=(Message(role="user", content=row.problem),), facts=facts)
    return Candidate(task=task, rollout=Rollout(id=name, task_id=name, group_id=name, turns=(Turn(text=text),)))


def ask_source(source: RewardSource) -> AskSteps:
    """A source in memory, asked in batches of the size that it likes."""

    async def ask(candidates: Sequence[Candidate]) -> list[Sequence[StepScore] | None]:
        found: list[Sequence[StepScore] | None] = []
        size = source.limits.max_batch
        for start in range(0, len(candidates), size):
            verdicts = await source.judge(candidates[start : start + size])
            found += [verdict.steps if verdict.status == "scored" else None for verdict in verdicts]
        return found

    return ask


def ask_panel(panel: _Judge) -> AskSteps:
    """A panel with one entry, which keeps its own batches."""

    async def ask(candidates: Sequence[Candidate]) -> list[Sequence[StepScore] | None]:
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(candidate: Candidate) -> Sequence[StepScore] | None:
            async with slots:
                reward = await panel.judge(candidate.task, candidate.rollout)
            part = reward.parts[0] if reward.parts else None
            return part.steps if part is not None and part.status == "scored" else None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(candidate)) for candidate in candidates]
        return [task.result() for task in tasks]

    return ask


def align(steps: Sequence[StepScore], spans: Sequence[Span]) -> tuple[float, ...] | None:
    """One score per given step, or None unless exactly one score ends inside each.

    A blank step (an empty span) cannot be scored and makes the row unusable.
    """
    if len(steps) != len(spans):
        return None
    ordered = sorted(steps, key=lambda step: step.span.end)
    inside = all(
        span.start < step.span.end <= max(span.end, span.start + 1) or step.span == span
        for step, span in zip(ordered, spans, strict=True)
    )
    return tuple(step.value for step in ordered) if inside else None


async def evaluate_steps(
    rows: Sequence[StepRow],
    ask: AskSteps,
    *,
    threshold: float | None = None,
    seed: int = 0,
    between: str = BETWEEN,
) -> StepReport:
    """Score `rows` and report; without a threshold it is fitted on the development half and the test half is reported.

    Raises `ConfigError` where no row is scored, or where it cannot be fitted: the development half lacks rows with or
    without an error.
    """
    candidates = [as_candidate(row, between) for row in rows]
    answers = await ask(candidates)
    scored: list[ScoredSteps | None] = []
    for row, candidate, steps in zip(rows, candidates, answers, strict=True):
        pairs: Any = candidate.task.facts[STEP_SPANS]
        spans = [Span(start=start, end=end) for start, end in pairs]
        scores = None if steps is None else align(steps, spans)
        kept = scores is not None
        scored.append(ScoredSteps(row.problem, scores, row.first_error, row.wrong, row.domain) if kept else None)
    usable = [row for row in scored if row is not None]
    if not usable:
        raise ConfigError(
            f"first-error evaluation: none of {len(rows)} rows got one score inside each of its steps; name a source "
            "that gives step scores, and say what it was trained with between them"
        )
    if threshold is not None:
        fitted, reported = Fitted(threshold, 0, None), list(zip(rows, scored, strict=True))
    else:
        fitted = _fitted([row for row in usable if not in_test_half(row.problem, seed=seed)])
        reported = [pair for pair in zip(rows, scored, strict=True) if in_test_half(pair[0].problem, seed=seed)]
    return _report(reported, fitted, seed)


def _fitted(rows: Sequence[ScoredSteps]) -> Fitted:
    try:
        return fit_threshold(rows)
    except ValueError as error:
        raise ConfigError(
            f"first-error evaluation: no threshold can be fitted on the development half: {error}. Give a threshold, "
            "or a file with both kinds of rows"
        ) from error


def _report(reported: Sequence[tuple[StepRow, ScoredSteps | None]], fitted: Fitted, seed: int) -> StepReport:
    def figures(pairs: Sequence[tuple[StepRow, ScoredSteps | None]]) -> FirstError:
        kept = [scored for _, scored in pairs if scored is not None]
        return first_error(kept, fitted, unscored=len(pairs) - len(kept), seed=seed)

    names = sorted({row.domain for row, _ in reported})
    domains = {name: figures([pair for pair in reported if pair[0].domain == name]) for name in names}
    usable = [scored for _, scored in reported if scored is not None]
    listed = [row for row in usable if row.wrong is not None]
    whole = figures(reported)
    return StepReport(
        whole=whole,
        domains=domains if len(domains) > 1 else {},
        mean_f1=mean_over_subsets(
            {n: (found.f1, found.with_error + found.without_error) for n, found in domains.items()}
        ),
        step_f1=step_f1(listed, fitted.threshold) if listed else None,
        step_f1_by_domain={n: step_f1([row for row in listed if row.domain == n], fitted.threshold) for n in names}
        if listed and len(names) > 1
        else {},
        rows=len(reported),
        unscored=whole.unscored,
    )


class _Form(NamedTuple):
    steps: str
    label: str
    base: int
    """Index of the first step."""


_FORMS = {
    "processbench": _Form("steps", "label", 0),
    "bigbench_mistake": _Form("steps", "mistake_index", 0),
    "prmbench": _Form("modified_process", "error_steps", 1),
    "mr_gsm8k": _Form("model_output_steps", "model_output_solution_first_error_step", 1),
}
_PROBLEMS = ("problem", "modified_question", "question", "input")
"""PRMBench also keeps the question that the modified one was made of; the labelled steps answer the modified one."""
_DOMAINS = ("domain", "classification", "question_type")


def _step_row(row: Row, path: str) -> StepRow:
    form = next((form for form in _FORMS.values() if form.steps in row.data and form.label in row.data), None)
    if form is None:
        have = ", ".join(row.data)
        raise BadRowError(
            f"{path}:{row.line}: no labelled steps; this row has {have or 'no columns'}. Known are "
            "ProcessBench (steps, label), BIG-Bench Mistake (steps, mistake_index), PRMBench (modified_process, "
            "error_steps) and MR-GSM8K",
            row.line,
        )
    steps = column(row, form.steps, path=path)
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):  # pyright: ignore[reportUnknownVariableType]
        raise BadRowError(f"{path}:{row.line}: column {form.steps!r} must be a list of texts, at least one", row.line)
    first, wrong = _labels(row, form, len(steps), path)  # pyright: ignore[reportUnknownArgumentType]
    problem = next((name for name in _PROBLEMS if name in row.data), "problem")
    domain = next((str(row.data[name]) for name in _DOMAINS if name in row.data), "")
    identity = next((str(row.data[name]) for name in ("id", "idx", "uuid") if name in row.data), str(row.line))
    return StepRow(
        row.line,
        identity,
        text_column(row, problem, path=path),
        tuple(steps),  # pyright: ignore[reportUnknownArgumentType]
        first,
        wrong,
        domain,
    )


def _labels(row: Row, form: _Form, count: int, path: str) -> tuple[int | None, tuple[int, ...] | None]:
    """First wrong step and all wrong ones, from 0."""
    label = column(row, form.label, path=path)
    if form.label == "error_steps":
        if not isinstance(label, list) or not all(isinstance(n, int) and n >= form.base for n in label):  # pyright: ignore[reportUnknownVariableType]
            raise BadRowError(f"{path}:{row.line}: column {form.label!r} must list step numbers from 1", row.line)
        # PRMBench numbers some steps beyond the last one: they are in no solution, and nothing can find them.
        wrong: tuple[int, ...] = tuple(sorted({n - form.base for n in label if n - form.base < count}))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return (wrong[0] if wrong else None), wrong
    if label is None or label in (-1, "N/A"):
        if row.data.get("model_output_solution_correctness") == "wrong":
            raise BadRowError(
                f"{path}:{row.line}: column {form.label!r} is {label!r}, although the solution is wrong; give the "
                "number of its first wrong step",
                row.line,
            )
        return None, None
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label - form.base < count:
        raise BadRowError(
            f"{path}:{row.line}: column {form.label!r} must be the number of a step from {form.base} to "
            f"{count - 1 + form.base}, or -1, null or N/A for no error; found {label!r}",
            row.line,
        )
    return label - form.base, None


def _step_f1_dict(found: StepF1 | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"f1": found.f1, "negative_f1": found.negative_f1, "prm_score": found.prm_score, "steps": found.steps}
