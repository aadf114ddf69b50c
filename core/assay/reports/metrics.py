"""The lines of `metrics.jsonl` and `evaluations.jsonl`: counts stand beside every mean."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from assay.contracts import Reward
from assay.pipeline.evaluate import Answer
from assay.pipeline.loop import StepReport
from assay.reports.diversity import diversity
from assay.reports.statistics import Interval, pass_at_k, standard_error, tally, wilson

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
        "kept_groups": len(report.batch.groups) - report.stale,
        "equal_groups": sum(len(set(group.values) - {None}) == 1 for _, group, _ in report.batch.decisions),
        "length": _mean(lengths),
        "truncated": sum(rollout.truncated for rollout in rollouts) / max(1, len(rollouts)),
    }
    line |= diversity((group.rollouts for _, group, _ in report.batch.decisions), answers or {})
    line |= {f"dropped_{reason}": count for reason, count in sorted(report.batch.dropped.items())}
    line |= {f"judge.{key}": value for key, value in panel_metrics.items()}
    return line


def evaluation_line(step: int, answers: Sequence[Answer], *, pass_at: Sequence[int]) -> dict[str, Any]:
    """Accuracy of held-out answers with its interval, the share of extracted answers apart, and the other sources."""
    names = list(answers[0].rewards) if answers else []
    line: dict[str, Any] = {"step": step, "answers": len(answers)}
    for name in names:
        rewards = [answer.rewards[name] for answer in answers]
        line[name] = _judged(rewards)
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


def _judged(rewards: Sequence[Reward]) -> dict[str, Any]:
    parts = [part for reward in rewards for part in reward.parts]
    counts = tally((part.status, None if part.declared else part.value) for part in parts)
    values = [reward.value for reward in rewards if reward.value is not None]
    facts: dict[str, Any] = {"scored": counts.scored, "abstained": counts.abstained, "failed": counts.failed}
    if values:
        correct = sum(value >= CORRECT_FROM for value in values)
        facts |= {"correct": correct, "of": len(values), "interval": list(wilson(correct, len(values)))}
    if parts:
        facts["extracted"] = list(wilson(counts.scored, len(parts)))
    return facts


def is_source(name: str, value: Any) -> bool:
    """Whether an entry of an evaluation line is what a source beside the deciding one says of the same answers."""
    return name != "accuracy" and isinstance(value, dict) and "interval" in value


def interval_of(facts: Mapping[str, Any], key: str = "interval") -> Interval | None:
    """The interval that a line holds, or None."""
    return Interval(*facts[key]) if key in facts else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) / len(known) if known else None
