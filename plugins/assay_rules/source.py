"""A rule as a reward source: one synchronous function of a task and a rollout, with its limits and its gold check."""

from collections.abc import Sequence
from typing import Protocol

from assay.contracts import Candidate, Limits, Rollout, Task, Verdict

MAX_CHARACTERS = 1_000_000
"""Longer responses are abstained on: a rule runs in the loop of the run and must never hold it up."""


class Rule(Protocol):
    """Decides one rollout by fixed rules; the same input gives the same verdict everywhere."""

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout whose text is not blank."""
        ...

    def check_task(self, task: Task) -> str | None:
        """One sentence when the task's own data cannot be judged against, else None."""
        ...


class RuleSource:
    """The reward source of one rule; blank and endless responses abstain before the rule is asked."""

    def __init__(self, rule: Rule, limits: Limits, *, blank_abstains: bool = True) -> None:
        """Wrap `rule`; `limits` are what the source declares."""
        self.rule = rule
        self.limits = limits
        self._blank_abstains = blank_abstains

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [self.judge_one(candidate.task, candidate.rollout) for candidate in batch]

    def judge_one(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout; safe to call from any thread."""
        if self._blank_abstains and not rollout.text.strip():
            return Verdict.abstain("empty_response", evidence="the response is empty")
        length = sum(len(turn.text) for turn in rollout.turns)
        if length > MAX_CHARACTERS:
            return Verdict.abstain(
                "response_too_long", evidence=f"{length} characters; at most {MAX_CHARACTERS} are read"
            )
        return self.rule.judge(task, rollout)

    def check_task(self, task: Task) -> str | None:
        """One sentence when the task's own data cannot be judged against, else None."""
        return self.rule.check_task(task)

    async def aclose(self) -> None:
        """Nothing to let go of."""


def rule_limits(low: float = 0.0, high: float = 1.0, *, max_batch: int = 64) -> Limits:
    """The limits of a rule that costs microseconds and whose values lie in [low, high]."""
    return Limits(max_batch=max_batch, value_range=(low, high))
