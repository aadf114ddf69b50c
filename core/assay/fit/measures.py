"""What a reward model is worth while it is trained: first errors in a file, best-of-n over held-out responses.

Both are computed by the reward source that the objective offers, with the code that a loaded folder uses. A response
that the source does not score is counted apart and is in no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from assay.contracts import Candidate, Message, Rollout, Task, Turn, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay.reports.best_of import Aggregate, Sample, aggregate, best_of
from assay.reports.first_error import ScoredSteps, first_error, fit_threshold, split_halves
from assay.rows import BadRowError, Row, column, read_rows
from assay.training.group_rows import prompt_of


def read_first_errors(path: Path, *, shown: str) -> list[tuple[str, tuple[str, ...], int | None]]:
    """(problem, steps, first wrong step or None) of a file in ProcessBench's form.

    Raises `ConfigError` with file and line for a row that is none.
    """
    found: list[tuple[str, tuple[str, ...], int | None]] = []
    for row in read_rows(path):
        if isinstance(row, BadRowError):
            raise row
        steps, label = column(row, "steps", path=shown), column(row, "label", path=shown)
        listed = cast("list[Any]", steps) if isinstance(steps, list) else []
        texts = [step for step in listed if isinstance(step, str)]
        whole = bool(texts) and len(texts) == len(listed)
        if not whole or not isinstance(label, int) or isinstance(label, bool) or not -1 <= label < len(texts):
            raise ConfigError(
                f"{shown}:{row.line}: a list of texts in 'steps' and the index of the first wrong one (or -1) in "
                f"'label' are expected; found label {label!r}"
            )
        found.append((_text(row, "problem", shown), tuple(texts), None if label < 0 else label))
    return found


async def first_errors(
    source: RewardSource,
    rows: Sequence[tuple[str, tuple[str, ...], int | None]],
    *,
    separator: str,
    seed: int,
) -> dict[str, Any]:
    """First-error figures on the test half, with the threshold fitted on the development half, as plain JSON."""
    candidates = [_candidate(problem, separator.join(steps), index) for index, (problem, steps, _) in enumerate(rows)]
    scored: list[ScoredSteps] = []
    unscored = 0
    for (problem, steps, wrong), verdict in zip(rows, await _judge(source, candidates), strict=True):
        if verdict.status != "scored" or len(verdict.steps) != len(steps):
            unscored += 1
        else:
            scored.append(ScoredSteps(problem, tuple(step.value for step in verdict.steps), wrong))
    development, test = split_halves(scored, seed=seed)
    if not development or not test:
        return {"unscored": unscored, "rows": len(rows), "f1": None}
    return {**first_error(test, fit_threshold(development), unscored=unscored, seed=seed).to_dict(), "rows": len(test)}


async def best_of_held_out(
    source: RewardSource,
    rows: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    aggregates: Sequence[Aggregate],
    *,
    seed: int,
) -> dict[str, Any]:
    """Best-of-n of each aggregation over held-out rows with `prompt`, `response` and `label`, as plain JSON.

    Answers are not compared here, so there is no vote: `assay rerank` prints the majority beside the model.
    """
    rows = [row for row in rows if isinstance(row.get("response"), str) and row.get("label") is not None]
    candidates = [_candidate(row.get("prompt", ""), row["response"], index) for index, row in enumerate(rows)]
    verdicts = await _judge(source, candidates)
    report: dict[str, Any] = {}
    for how in aggregates:
        pools: dict[str, list[Sample]] = {}
        for row, candidate, verdict in zip(rows, candidates, verdicts, strict=True):
            steps = [step.value for step in verdict.steps]
            score = (aggregate(steps, how) if steps else verdict.value) if verdict.status == "scored" else None
            sample = Sample(score, bool(row["label"] > 0), None, len(row["response"]))
            pools.setdefault(str(prompt_of(candidate.task)), []).append(sample)
        found = best_of(list(pools.values()), sizes, seed=seed)
        strategies = {name: found.rows[name] for name in ("argmax", "any of n")}
        report[how] = {
            "first": found.first.to_dict(),
            "strategies": {
                name: {str(n): each.to_dict() for n, each in row.items()} for name, row in strategies.items()
            },
            "over_optimised": found.over_optimised,
            "problems": found.problems,
            "samples": found.samples,
            "unscored": found.unscored,
        }
    return report


def _candidate(prompt: Any, response: str, index: int) -> Candidate:
    messages = (Message(role="user", content=prompt),) if isinstance(prompt, str) else tuple(map(_message, prompt))
    task = Task(id=f"held-{index}", messages=messages)
    rollout = Rollout(id=f"held-{index}", task_id=task.id, group_id=task.id, turns=(Turn(text=response),))
    return Candidate(task=task, rollout=rollout)


def _message(message: Mapping[str, Any]) -> Message:
    return Message(role=message["role"], content=message["content"])


def _text(row: Row, name: str, shown: str) -> str:
    value = column(row, name, path=shown)
    if not isinstance(value, str):
        raise ConfigError(f"{shown}:{row.line}: column {name!r} must be text; found {type(value).__name__}")
    return value


async def _judge(source: RewardSource, candidates: Sequence[Candidate]) -> list[Verdict]:
    size = source.limits.max_batch
    verdicts: list[Verdict] = []
    for start in range(0, len(candidates), size):
        verdicts.extend(await source.judge(candidates[start : start + size]))
    return verdicts
