"""Routes shaped for other trainers, with what each is told of an answer without a reward.

| route | trainer | asks | is told |
|---|---|---|---|
| `/openrlhf` | OpenRLHF 0.11.2 (`--reward.remote_url`) | `query`, `prompts`, `labels` | `rewards`, `scores`, logs |
| `/slime` | slime (`remote_rm`) | `prompt`, `response`, `label` | the bare number |

Both know no missing reward. A candidate's fault is told as its declared score. What is our fault has the number that
the address names, `...?masked=-1`; without it the whole answer is 424 with the reason, which the trainer logs and asks
again. OpenRLHF's `extra_logs` then count such answers (`masked`, `declared`, and per source scored, abstained, failed).
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from assay.contracts import Message, Reward, Rollout, Task
from assay.errors import ConfigError
from assay.remote.items import response_in, rollout_of, task_of
from assay.remote.unscored import Told, told
from assay.serve.service import Service
from assay.serve.wire import Wire

Finite = Annotated[float, Field(allow_inf_nan=False)]


class OpenRlhfRequest(Wire):
    """What OpenRLHF posts; a query is a decoded prompt with its response."""

    query: Annotated[tuple[str, ...], Field(min_length=1)]
    prompts: Annotated[tuple[str, ...], Field(min_length=1)]
    labels: Annotated[tuple[JsonValue, ...], Field(min_length=1)]
    """The tasks' references."""


class OpenRlhfAnswer(Wire):
    """What OpenRLHF reads: one number per query, and columns for its log."""

    rewards: tuple[Finite, ...]
    scores: tuple[Finite, ...]
    extra_logs: dict[str, tuple[Finite, ...]]


class SlimeRequest(Wire):
    """What slime posts."""

    prompt: str | Annotated[tuple[Message, ...], Field(min_length=1)]
    response: str
    label: JsonValue = None
    """The task's reference."""


async def openrlhf(
    service: Service, asked: OpenRlhfRequest, *, masked: float | None, deadline_s: float
) -> OpenRlhfAnswer:
    """The answer to OpenRLHF; raises `ConfigError` for a query without its prompt, `JudgingError` for no reward."""
    if not len(asked.query) == len(asked.prompts) == len(asked.labels):
        raise ConfigError(
            f"query: {len(asked.query)} queries, {len(asked.prompts)} prompts and {len(asked.labels)} labels; send as "
            "many of each"
        )
    pairs: list[tuple[Task, Rollout]] = []
    for index, (query, prompt, label) in enumerate(zip(asked.query, asked.prompts, asked.labels, strict=True)):
        response = response_in(query, prompt)
        if response is None:
            raise ConfigError(f"query[{index}]: it does not begin with its prompt; decode both by the same tokenizer")
        pairs.append(_pair(service, prompt, response, label, where=f"query[{index}]"))
    answers = await _told(service, pairs, masked, deadline_s)
    scores = tuple(answer.score for answer in answers)
    logs = {name: tuple(answer.flags[name] for answer in answers) for name in answers[0].flags}
    return OpenRlhfAnswer(rewards=scores, scores=scores, extra_logs=logs)


async def slime(service: Service, asked: SlimeRequest, *, masked: float | None, deadline_s: float) -> float:
    """The number for slime; raises `JudgingError` where there is none."""
    prompt = asked.prompt if isinstance(asked.prompt, str) else [message.model_dump() for message in asked.prompt]
    task = task_of(prompt, reference=asked.label, facts={}, where="prompt")
    rollout = rollout_of(asked.response, rollout_id=service.next_id(), task=task, where="response")
    return (await _told(service, [(task, rollout)], masked, deadline_s))[0].score


def _pair(service: Service, prompt: str, response: str, label: JsonValue, *, where: str) -> tuple[Task, Rollout]:
    task = task_of(prompt, reference=label, facts={}, where=where)
    return task, rollout_of(response, rollout_id=service.next_id(), task=task, where=where)


async def _told(
    service: Service, pairs: Sequence[tuple[Task, Rollout]], masked: float | None, deadline_s: float
) -> list[Told]:
    outcomes = await service.judge(pairs, only=None, deadline_s=deadline_s)
    labels = tuple(service.panel.sources)
    answers: list[Told] = []
    for index, ((_, rollout), outcome) in enumerate(zip(pairs, outcomes, strict=True)):
        where = f"query[{index}]" if len(outcomes) > 1 else "query"
        missing = Reward(rollout_id=rollout.id, value=None, reason=service.why_not(deadline_s))
        answers.append(told(outcome.reward or missing, outcome.judgements, labels, masked=masked, where=where))
    return answers
