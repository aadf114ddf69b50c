"""Draws answers to held-out tasks and judges them, apart from everything that training uses."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from assay.contracts import Reward, Rollout, RolloutRequest, Sampling, Task
from assay.errors import EngineError
from assay.pipeline.loop import Judge
from assay.pipeline.tickets import request_seed
from assay.protocols import RolloutEngine


class Answer(NamedTuple):
    """One held-out answer and what each panel says of it."""

    task: Task
    rollout: Rollout
    rewards: Mapping[str, Reward]
    """Name of the panel to its reward."""


async def evaluate(
    engine: RolloutEngine,
    judges: Mapping[str, Judge],
    tasks: Sequence[Task],
    *,
    sampling: Sampling,
    samples: int,
    seed: int,
    prefix: str,
    on_progress: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """`samples` answers per task in task order; ids start with `prefix`, so that they never meet those of training.

    `on_progress` is called with every answer that is drawn, and again when it is judged.
    """
    requests = [
        RolloutRequest(
            id=f"{prefix}-{index:05d}-{sample:02d}",
            task=task,
            group_id=f"{prefix}-{index:05d}",
            sampling=sampling.model_copy(update={"seed": request_seed(seed, index, sample)}),
        )
        for index, task in enumerate(tasks)
        for sample in range(samples)
    ]
    task_of = {request.id: request.task for request in requests}
    answers: dict[str, Answer] = {}

    async def judged(rollout: Rollout) -> None:
        task = task_of[rollout.id]
        rewards = {name: await judge.judge(task, rollout) for name, judge in judges.items()}
        answers[rollout.id] = Answer(task, rollout, rewards)
        on_progress()

    async with asyncio.TaskGroup() as judging:
        async for rollout in engine.generate(requests):
            on_progress()
            judging.create_task(judged(rollout))
    if len(answers) != len(requests):
        raise EngineError(f"the engine returned {len(answers)} of {len(requests)} rollouts of the evaluation")
    return [answers[request.id] for request in requests]
