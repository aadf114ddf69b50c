"""Answer-conditioned explanations (ExPO, arXiv 2507.02834): drawn with the answer in the prompt, learned without it.

An explanation is no member of its group: its reward has the channel `nll` at 1 and those of the others have it at 0.
Its prompt ids are the group's own, so that the update makes it likelier where no answer is shown. The sampler's
log-probs are of the conditioned prompt and say nothing about that; zeros stand in their place, and nothing reads them.
"""

import hashlib
import re
from collections.abc import Sequence

from assay.contracts import Message, Reward, Rollout, RolloutRequest, Sampling, ScoredGroup, Task
from assay.contracts.batch import APART
from assay.errors import EngineError
from assay.protocols import RolloutEngine


def conditioned(task: Task, template: str) -> Task:
    """The task with its last message rewritten by `template`, whose `{prompt}` and `{reference}` are filled in."""
    *before, last = task.messages
    filled = {"{prompt}": last.content, "{reference}": str(task.reference)}
    content = re.sub(r"\{prompt\}|\{reference\}", lambda mark: filled[mark[0]], template)
    return task.model_copy(update={"messages": (*before, Message(role=last.role, content=content))})


async def explained(
    engine: RolloutEngine,
    groups: Sequence[ScoredGroup],
    *,
    template: str,
    per_group: int,
    sampling: Sampling,
    seed: int,
) -> list[ScoredGroup]:
    """The groups with up to `per_group` explanations each; those cut off, stopped by force or empty are left out.

    Raises `EngineError` where the engine does not answer every request.
    """
    requests = [
        RolloutRequest(
            id=f"{group.rollouts[0].group_id}-x{sample:02d}",
            task=conditioned(group.task, template),
            group_id=f"{group.rollouts[0].group_id}-x",
            sampling=sampling.model_copy(update={"seed": _seed(seed, group.rollouts[0].group_id, sample)}),
        )
        for group in groups
        for sample in range(per_group)
    ]
    drawn: dict[str, list[Rollout]] = {}
    async for rollout in engine.generate(requests):
        drawn.setdefault(rollout.group_id, []).append(rollout)
    answered = sum(map(len, drawn.values()))
    if answered != len(requests):
        raise EngineError(f"the engine returned {answered} of {len(requests)} explanations")
    return [_joined(group, drawn.get(f"{group.rollouts[0].group_id}-x", [])) for group in groups]


def _joined(group: ScoredGroup, drawn: Sequence[Rollout]) -> ScoredGroup:
    own = group.rollouts[0]
    rollouts, rewards = list(group.rollouts), [_in_channel(reward, 0.0) for reward in group.rewards]
    for rollout in sorted(drawn, key=lambda rollout: rollout.id):
        ids = rollout.turns[-1].token_ids or ()
        stopped = any(not turn.trainable for turn in rollout.turns)
        if rollout.truncated or stopped or not rollout.text or not ids:
            continue
        turn = rollout.turns[-1].model_copy(update={"logprobs": (0.0,) * len(ids)})
        place = {"task_id": own.task_id, "group_id": own.group_id, "prompt_ids": own.prompt_ids, "turns": (turn,)}
        rollouts.append(rollout.model_copy(update=place))
        rewards.append(Reward(rollout_id=rollout.id, value=0.0, channels={"reward": 0.0, APART: 1.0}))
    return ScoredGroup(task=group.task, rollouts=tuple(rollouts), rewards=tuple(rewards))


def _in_channel(reward: Reward, value: float) -> Reward:
    return reward.model_copy(update={"channels": {**reward.channels, APART: value}})


def _seed(seed: int, group_id: str, sample: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{group_id}:explanation:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
