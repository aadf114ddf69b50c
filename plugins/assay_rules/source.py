"""A rule as a reward source: one synchronous function of a task and a rollout, with its limits and its gold check."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from assay.component import Workers
from assay.contracts import Candidate, Limits, ResourceLimits, Rollout, Task, Verdict
from assay.errors import JudgingError

MAX_CHARACTERS = 1_000_000
"""Longer responses are abstained on, unread."""
IN_PLACE_CHARACTERS = 65_536
"""Longer responses are judged in a worker process: a rule runs in the loop of the run and must never hold it up."""
WORKER = "assay_rules.worker:judge"
_WALL_S = 30.0
_CPU_S = 10.0


class Rule(Protocol):
    """Decides one rollout by fixed rules; the same input gives the same verdict everywhere."""

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout whose text is not blank."""
        ...

    def check_task(self, task: Task) -> str | None:
        """One sentence when the task's own data cannot be judged against, else None."""
        ...


@dataclass(frozen=True)
class Elsewhere:
    """Where long responses are judged: the pool, and how the worker builds the same rule."""

    workers: Workers
    name: str
    options: str
    """As JSON."""
    above: int = IN_PLACE_CHARACTERS
    """Responses of more characters go there."""


class RuleSource:
    """The reward source of one rule; blank and endless responses abstain before the rule is asked."""

    def __init__(
        self, rule: Rule, limits: Limits, *, blank_abstains: bool = True, elsewhere: Elsewhere | None = None
    ) -> None:
        """Wrap `rule`; `limits` are what the source declares. Without `elsewhere` long responses are judged here."""
        self.rule = rule
        self.limits = limits
        self._blank_abstains = blank_abstains
        self._elsewhere = elsewhere

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        found: dict[int, Verdict] = {}
        long: dict[int, Candidate] = {}
        for index, candidate in enumerate(batch):
            length = _length(candidate.rollout)
            if self._elsewhere is not None and self._elsewhere.above < length <= MAX_CHARACTERS:
                long[index] = candidate
                continue
            found[index] = self.judge_one(candidate.task, candidate.rollout)
            if length > IN_PLACE_CHARACTERS // 8:
                await asyncio.sleep(0)  # a batch of long responses leaves the loop to others in between
        if self._elsewhere is not None and long:
            try:
                async with asyncio.TaskGroup() as group:
                    running = {
                        index: group.create_task(_judged_by(self._elsewhere, candidate.task, candidate.rollout))
                        for index, candidate in long.items()
                    }
            except* JudgingError as errors:
                raise errors.exceptions[0] from None
            found.update((index, task.result()) for index, task in running.items())
        return [found[index] for index in range(len(batch))]

    def judge_one(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout; safe to call from any thread."""
        length = _length(rollout)
        if self._blank_abstains and length <= MAX_CHARACTERS and not rollout.text.strip():
            return Verdict.abstain("empty_response", evidence="the response is empty")
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


def _length(rollout: Rollout) -> int:
    return sum(len(turn.text) for turn in rollout.turns)


async def _judged_by(elsewhere: Elsewhere, task: Task, rollout: Rollout) -> Verdict:
    """The verdict of a worker, which is the one that would be given here."""
    payload: dict[str, JsonValue] = {
        "name": elsewhere.name,
        "options": elsewhere.options,
        "task": task.model_dump(mode="json"),
        "rollout": rollout.model_dump(mode="json"),
    }
    limits = ResourceLimits(wall_s=_WALL_S, cpu_s=_CPU_S)
    answer = await elsewhere.workers.call(WORKER, payload, limits=limits)
    if answer.status == "ok":
        return Verdict.model_validate(answer.value)
    if answer.status == "raised":
        raise JudgingError(f"{elsewhere.name}: {answer.detail}")
    return Verdict.abstain("limit", evidence=f"{answer.status}: {answer.detail}")


def rule_limits(low: float = 0.0, high: float = 1.0, *, max_batch: int = 64) -> Limits:
    """The limits of a rule that costs microseconds (in a worker: seconds) and whose values lie in [low, high]."""
    return Limits(max_batch=max_batch, value_range=(low, high), timeout_s=_WALL_S)
