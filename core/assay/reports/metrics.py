"""The lines of `metrics.jsonl` and `evaluations.jsonl`: counts stand beside every mean."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from assay.contracts import Reward, Rollout
from assay.pipeline.evaluate import Answer
from assay.pipeline.loop import StepReport
from assay.reports.diversity import diversity
from assay.reports.statistics import Interval, pass_at_k, standard_error, tally, wilson_clustered

CORRECT_FROM = 0.5
"""A held-out answer counts as correct from this value on."""


def rollout_status(reward: Reward) -> Literal["scored", "abstained", "failed"]:
    """The worst status among the parts of the `reward` channel; *abstained* where no source applied at all."""
    statuses = {part.status for part in reward.parts if part.channel == "reward"}
    if not statuses:
        return "abstained"
    if "failed" in statuses:
        return "failed"
    return "abstained" if "abstained" in statuses else "scored"


def step_line(
    report: StepReport, panel_metrics: Mapping[str, float], answers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What one step was made of and what it did, as plain JSON; `answers` are extracted answers by rollout id."""
    rewards = [reward for _, group, _ in report.batch.decisions for reward in group.rewards]
    rollouts = [rollout for _, group, _ in report.batch.decisions for rollout in group.rollouts]
    values = [reward.value for reward in rewards if reward.value is not None]
    statuses = Counter(rollout_status(reward) for reward in rewards)
    lengths = [sum(len(turn.token_ids or ()) for turn in rollout.turns if turn.trainable) for rollout in rollouts]
    numbers = {key: value for key, value in report.metrics.items() if math.isfinite(value)}
    line: dict[str, Any] = {
        **numbers,
        "step": report.step,
        "reward": _mean(values),
        "reward_se": standard_error(values),
        "rollouts": len(rewards),
        "scored": statuses["scored"],
        "abstained": statuses["abstained"],
        "failed": statuses["failed"],
        "masked": len(rewards) - len(values),
        "groups": len(report.batch.decisions),
        "kept_groups": len(report.batch.groups),
        "equal_groups": sum(len(set(group.values) - {None}) == 1 for _, group, _ in report.batch.decisions),
        "length": _mean(lengths),
        "truncated": sum(rollout.truncated for rollout in rollouts) / max(1, len(rollouts)),
        "forced_stops": sum(map(_stopped_by_force, rollouts)) / max(1, len(rollouts)),
    }
    line |= diversity((group.rollouts for _, group, _ in report.batch.decisions), answers or {})
    line |= {f"dropped_{reason}": count for reason, count in sorted(report.batch.dropped.items())}
    line |= {f"judge.{key}": value for key, value in panel_metrics.items()}
    return line


def evaluation_line(step: int, answers: Sequence[Answer], *, pass_at: Sequence[int]) -> dict[str, Any]:
    """Accuracy of held-out answers with its interval, the share of extracted answers apart, and the other sources.

    Answers to the same question are no independent trials: with several per question the intervals are cluster-robust.
    """
    names = list(answers[0].rewards) if answers else []
    line: dict[str, Any] = {"step": step, "answers": len(answers)}
    for name in names:
        line[name] = _judged([(answer.task.id, answer.rewards[name]) for answer in answers])
    by_task: dict[str, list[bool]] = {}
    for answer in answers:
        value = answer.rewards["accuracy"].value
        if value is not None:
            by_task.setdefault(answer.task.id, []).append(value >= CORRECT_FROM)
    for k in pass_at:
        shares = [pass_at_k(len(right), sum(right), k) for right in by_task.values() if len(right) >= k]
        if shares:
            line[f"pass@{k}"] = _mean(shares)
    return line


def _stopped_by_force(rollout: Rollout) -> bool:
    """Whether a phrase stands in the response that the policy did not write."""
    return any(turn.role == "assistant" and not turn.trainable for turn in rollout.turns)


def _judged(rewards: Sequence[tuple[str, Reward]]) -> dict[str, Any]:
    """Counts and shares of rewards, each with the id of its task."""
    parts = [(task_id, part) for task_id, reward in rewards for part in reward.parts]
    counts = tally((part.status, None if part.declared else part.value) for _, part in parts)
    values = [(task_id, reward.value) for task_id, reward in rewards if reward.value is not None]
    facts: dict[str, Any] = {"scored": counts.scored, "abstained": counts.abstained, "failed": counts.failed}
    if values:
        right = [(task_id, value >= CORRECT_FROM) for task_id, value in values]
        facts |= {"correct": sum(correct for _, correct in right), "of": len(values)}
        facts["interval"] = list(wilson_clustered(_by_task(right)))
    if parts:
        scored = ((task_id, part.status == "scored" and not part.declared) for task_id, part in parts)
        facts["extracted"] = list(wilson_clustered(_by_task(scored)))
    return facts


def _by_task(outcomes: Iterable[tuple[str, bool]]) -> list[tuple[float, int]]:
    """Successes and trials of each task."""
    found: dict[str, tuple[float, int]] = {}
    for task_id, success in outcomes:
        right, trials = found.get(task_id, (0.0, 0))
        found[task_id] = (right + success, trials + 1)
    return list(found.values())


def is_source(name: str, value: Any) -> bool:
    """Whether an entry of an evaluation line is what a source beside the deciding one says of the same answers."""
    return name != "accuracy" and isinstance(value, dict) and "interval" in value


def interval_of(facts: Mapping[str, Any], key: str = "interval") -> Interval | None:
    """The interval that a line holds, or None."""
    return Interval(*facts[key]) if key in facts else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) / len(known) if known else None
