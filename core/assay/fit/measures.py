"""What a reward model is worth while it is trained: first errors in a file, best-of-n over held-out responses.

Both are computed by the reward source that the objective offers, with the code that a loaded folder uses. A response
that the source does not score is counted apart and is in no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.contracts import Candidate, Message, Rollout, Task, Turn, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay.reports.best_of import Aggregate, Sample, aggregate, best_of
from assay.reports.step_rows import StepRow, ask_source, evaluate_steps
from assay.training.group_rows import prompt_of


async def first_errors(source: RewardSource, rows: Sequence[StepRow], *, seed: int, between: str) -> dict[str, Any]:
    """First-error figures on the test half, the threshold fitted on the development half, as plain JSON.

    `between` stands between the steps of a row, as it does in training.
    Where no threshold can be fitted (a source without step scores, too few rows) F1 is not defined and `why` says so.
    """
    try:
        return (await evaluate_steps(rows, ask_source(source), seed=seed, between=between)).to_dict()
    except ConfigError as error:
        return {"f1": None, "threshold": None, "rows": len(rows), "why": str(error)}


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


async def _judge(source: RewardSource, candidates: Sequence[Candidate]) -> list[Verdict]:
    size = source.limits.max_batch
    verdicts: list[Verdict] = []
    for start in range(0, len(candidates), size):
        verdicts.extend(await source.judge(candidates[start : start + size]))
    return verdicts
