"""Pools with verdicts, answers and scores: what is right, who says the same, and what a source gives each response.

An answer is the data's own, or what the verdict source found in the response (its evidence of kind `answer`). Two
answers of a pool are one where their texts are equal; where there is a verdict source, also where it calls a response
right against the other answer as the reference. Who reads no answer never votes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Candidate, Judgement, Reward, Rollout, Task
from assay.errors import ConfigError, JudgingError
from assay.judging import open_panel
from assay.protocols import RewardSource
from assay.registry import Registry
from assay.reports.best_of import Aggregate, Sample, aggregate
from assay.reranking.pools import RIGHT_FROM, Pool, Response
from assay.together import together

T = TypeVar("T")
IN_FLIGHT = 256
"""Responses that are judged at once."""


class Scores(NamedTuple):
    """What a source gives one response; no value where it did not score."""

    value: float | None
    steps: tuple[float, ...] = ()

    def by(self, how: Aggregate) -> float | None:
        """One number: the source's own, or its step scores aggregated."""
        if self.value is None or how == "value":
            return self.value
        return aggregate(self.steps, how)


Scorer = Callable[[Sequence[Response]], Coroutine[Any, Any, list[Scores]]]
"""Responses to their scores, in order."""


class Judge(Protocol):
    """What gives rewards: a panel."""

    async def judge(self, task: Task, rollout: Rollout, /) -> Reward:
        """The reward of one response."""
        ...


@dataclass(frozen=True)
class JudgedPools:
    """Pools and, per response, whether it is right and the class of its answer."""

    pools: Sequence[Pool]
    correct: Mapping[str, bool | None]
    """By rollout id; None where nobody could say."""
    answers: Mapping[str, str | None]
    """By rollout id: the name of the class of equal answers; None where no answer was read."""
    verdict: str
    """Who says what is right."""
    unjudged: Mapping[str, int] = field(default_factory=dict[str, int])
    """Status to the number of responses without a verdict."""

    @property
    def responses(self) -> list[Response]:
        """All of them, in order."""
        return [response for pool in self.pools for response in pool.responses]

    def samples(self, scores: Sequence[Scores], how: Aggregate) -> list[list[Sample]]:
        """The pools as a report takes them, with one score for each of `responses`."""
        at = iter(scores)
        return [
            [
                Sample(
                    next(at).by(how),
                    self.correct[response.rollout.id],
                    self.answers[response.rollout.id],
                    len(response.rollout.text),
                )
                for response in pool.responses
            ]
            for pool in self.pools
        ]


async def judge_pools(
    pools: Sequence[Pool],
    verdict: RewardEntry | None,
    *,
    registry: Registry,
    context: BuildContext,
    judging: JudgingConfig,
) -> JudgedPools:
    """Say what is right: by `verdict`, or without it by the data's own column.

    Raises:
        ConfigError: there is neither.
    """
    responses = [response for pool in pools for response in pool.responses]
    if verdict is None:
        known = {response.rollout.id: response.correct for response in responses}
        if all(value is None for value in known.values()):
            raise ConfigError(
                "assay rerank: nothing says which responses are right; name a column with --correct, or a verdict "
                "source with --verdict, for example --verdict math"
            )
        answers = {response.rollout.id: response.answer for response in responses}
        return JudgedPools(pools, known, answers, "the data")
    evidence: dict[str, str | None] = {}

    def observe(candidate: Candidate, judgement: Judgement) -> None:
        found = next((item.data for item in judgement.verdict.evidence if item.kind == "answer"), None)
        evidence.setdefault(candidate.rollout.id, _answer_text(found))

    async with _opened(verdict, registry, context, judging, observe) as panel:
        rewards = await together(
            [panel.judge(response.task, response.rollout) for response in responses], at_once=IN_FLIGHT
        )
        correct: dict[str, bool | None] = {}
        unjudged: dict[str, int] = {}
        for response, reward in zip(responses, rewards, strict=True):
            status = reward.parts[0].status if reward.parts else "failed"
            right = None if reward.value is None else reward.value >= RIGHT_FROM
            correct[response.rollout.id] = right
            if status != "scored":
                unjudged[status] = unjudged.get(status, 0) + 1
        read = {r.rollout.id: r.answer if r.answer is not None else evidence.get(r.rollout.id) for r in responses}
        classes = await together([_classes(pool, read, panel) for pool in pools], at_once=IN_FLIGHT)
    answers = {name: label for found in classes for name, label in found.items()}
    return JudgedPools(pools, correct, answers, verdict.name, unjudged)


def column_scorer() -> Scorer:
    """The scores that the data holds."""

    async def score(responses: Sequence[Response]) -> list[Scores]:
        return [Scores(response.score) for response in responses]

    return score


def source_scorer(source: RewardSource) -> Scorer:
    """The scores of a built source, asked directly and in its own batches; what it raises is raised.

    Raises `JudgingError` where it answers another number of candidates than it was asked.
    """

    async def score(responses: Sequence[Response]) -> list[Scores]:
        found: list[Scores] = []
        size = max(1, source.limits.max_batch)
        for start in range(0, len(responses), size):
            part = responses[start : start + size]
            verdicts = await source.judge([Candidate(task=each.task, rollout=each.rollout) for each in part])
            if len(verdicts) != len(part):
                raise JudgingError(f"rerank: the source gave {len(verdicts)} verdicts for {len(part)} responses")
            found += [Scores(verdict.value, tuple(step.value for step in verdict.steps)) for verdict in verdicts]
        return found

    return score


@asynccontextmanager
async def pooled_scorer(
    entry: RewardEntry, *, registry: Registry, context: BuildContext, judging: JudgingConfig
) -> AsyncGenerator[Scorer]:
    """The scorer that a reward source is, for as long as the context is open."""
    async with _opened(entry, registry, context, judging, None) as panel:

        async def score(responses: Sequence[Response]) -> list[Scores]:
            rewards = await together(
                [panel.judge(response.task, response.rollout) for response in responses], at_once=IN_FLIGHT
            )
            return [_scores(reward) for reward in rewards]

        yield score


@asynccontextmanager
async def _opened(
    entry: RewardEntry, registry: Registry, context: BuildContext, judging: JudgingConfig, observe: Any
) -> AsyncGenerator[Judge]:
    async with open_panel([entry], registry=registry, judging=judging, context=context, observe=observe) as panel:
        before, context.workers = context.workers, panel.workers
        try:
            yield panel
        finally:
            context.workers = before  # the next panel must not be given workers that end with this one


def _scores(reward: Reward) -> Scores:
    part = reward.parts[0] if reward.parts else None
    if part is None or part.status != "scored":
        return Scores(None)
    return Scores(part.value, tuple(step.value for step in part.steps))


async def _classes(pool: Pool, read: Mapping[str, str | None], judge: Judge) -> dict[str, str | None]:
    """Rollout id to the name of its answer's class; a new text is compared with the first text of each class."""
    found: dict[str, str | None] = {}
    by_text: dict[str, str] = {}
    heads: list[str] = []
    for response in pool.responses:
        text = read[response.rollout.id]
        if text is not None and text not in by_text:
            same = await _first_equal(response, heads, judge)
            by_text[text] = text if same is None else same
            if same is None:
                heads.append(text)
        found[response.rollout.id] = None if text is None else by_text[text]
    return found


async def _first_equal(response: Response, heads: Sequence[str], judge: Judge) -> str | None:
    for number, head in enumerate(heads):
        name = f"{response.rollout.id}-same-{number}"
        task = response.task.model_copy(update={"id": name, "reference": head})
        rollout = response.rollout.model_copy(update={"id": name, "task_id": name})
        reward = await judge.judge(task, rollout)
        status: Literal["scored", "abstained", "failed"] = reward.parts[0].status if reward.parts else "failed"
        if status == "scored" and reward.value is not None and reward.value >= RIGHT_FROM:
            return head
    return None


def _answer_text(data: Any) -> str | None:
    """The answer in evidence: a text, or what stands under `answer` or `text`."""
    if isinstance(data, Mapping):
        table = cast("Mapping[str, Any]", data)
        data = table.get("answer", table.get("text"))
    if data is None or isinstance(data, str):
        return data
    return json.dumps(data, sort_keys=True)
