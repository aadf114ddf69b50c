"""A program for torchrun: some updates of a tiny model and of a source that learns, and what came of them in a folder.

torchrun --nproc-per-node 2 tests/distributed/steps.py MODEL OUT PRESET STEPS [CHECKPOINT]

`PRESET` may end in `+lora`: then an adapter is trained.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import assay_optim
from assay.component import BuildContext
from assay.config.training import LoraSettings, OptimizerSettings
from assay.contracts import Candidate, Message, Reward, RewardPart, Rollout, Sampling, ScoredGroup, Task, Turn, Verdict
from assay.training.checkpoint import load_trainer, save_trainer
from assay.training.model import load_policy
from assay.training.ranks import Ranks
from assay.training.sharding import ShardedRanks, launched
from assay.training.trainer import Trainer
from assay.training.weights import Publisher
from assay_prms.prime import Prime, PrimeOptions


def draw_groups(seed: int) -> list[ScoredGroup]:
    draw = random.Random(seed)
    groups: list[ScoredGroup] = []
    for number in range(3):
        task = Task(id=f"t{number}", messages=(Message(role="user", content="x"),))
        prompt = tuple(draw.randrange(3, 90) for _ in range(draw.randrange(2, 7)))
        rollouts = tuple(
            Rollout(
                id=f"{number}-{index}",
                task_id=task.id,
                group_id=task.id,
                prompt_ids=prompt,
                turns=(Turn(text="x", token_ids=ids, logprobs=tuple(-4.5 + draw.random() for _ in ids)),),
                sampling=Sampling(max_new_tokens=8, temperature=0.9),
            )
            for index, ids in enumerate(
                tuple(draw.randrange(3, 90) for _ in range(draw.randrange(1, 8))) for _ in range(4)
            )
        )
        values = [draw.random() for _ in rollouts]
        rewards = tuple(
            Reward(
                rollout_id=rollout.id,
                value=value,
                parts=(RewardPart(source="sums", weight=1.0, status="scored", value=value),),
            )
            for rollout, value in zip(rollouts, values, strict=True)
        )
        groups.append(ScoredGroup(task=task, rollouts=rollouts, rewards=rewards))
    return groups


def learning_source(model: str) -> Prime:
    """One whose reference is another model than the one that learns, so that its first scores are not 0."""
    learner, reference = load_policy(model), load_policy(model)
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in reference.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=noise)
    reference.model.requires_grad_(False)
    options = PrimeOptions(
        beta=0.5, learning_rate=1e-3, max_grad_norm=0.5, accuracy_low=0.0, accuracy_high=1.0, token_budget=48
    )
    return Prime(learner, reference, options)


def scores(verdicts: Sequence[Verdict]) -> list[list[float]]:
    """What every token is paid."""
    return [[step.value for step in verdict.steps] for verdict in verdicts]


async def learn(source: Prime, groups: Sequence[ScoredGroup]) -> tuple[Sequence[Verdict], dict[str, float]]:
    """Judge, then learn, as the loop does."""
    batch = [Candidate(task=group.task, rollout=rollout) for group in groups for rollout in group.rollouts]
    return await source.judge(batch), dict(await source.learn(groups))


def main(model: str, out: str, preset: str, steps: str, checkpoint: str | None = None) -> None:
    torch.set_num_threads(1)
    ranks = ShardedRanks(timeout_s=600) if launched() else Ranks()
    policy = load_policy(model)
    name, _, adapter = preset.partition("+")
    made = next(part for part in assay_optim.assay_policy_optimizers() if part.name == name)
    optimizer = made.build(made.config(), BuildContext())
    lora = LoraSettings(rank=4) if adapter else None
    settings = OptimizerSettings(learning_rate=1e-3, micro_batch_tokens=48, max_grad_norm=0.5, lora=lora)
    source = learning_source(model)
    source.divide(ranks)
    trainer = Trainer(policy, optimizer, settings, seed=1, ranks=ranks)
    if checkpoint is not None:
        load_trainer(trainer, Path(checkpoint))
        source.load_state(Path(checkpoint))
    folder = Path(out)
    gradients: list[dict[str, Tensor]] = []
    clip = ranks.clip

    def clipped(parameters: Sequence[Tensor], limit: float | None) -> float:
        norm = clip(parameters, limit)
        grads = {f"{len(gradients)}/{at}": one.grad for at, one in enumerate(parameters) if one.grad is not None}
        gradients.append(ranks.gathered(grads))
        return norm

    ranks.clip = clipped
    lines: list[dict[str, float]] = []
    judged: list[list[list[float]]] = []
    for _ in range(int(steps)):
        groups = draw_groups(trainer.version)
        verdicts, learned = asyncio.run(learn(source, groups))
        judged.append(scores(verdicts))
        lines.append(learned | trainer.step(groups).metrics)
    if ranks.rank == 0:
        folder.mkdir(parents=True)
        save_file(gradients[0] | gradients[1], folder / "gradients.safetensors")  # the source's, and the policy's
        (folder / "metrics.json").write_text(json.dumps(lines), encoding="utf-8")
        (folder / "scores.json").write_text(json.dumps(judged), encoding="utf-8")
    published = Publisher(policy, folder=folder / "weights", ranks=ranks).publish(1)
    assert published.path is not None
    save_trainer(trainer, folder / "checkpoint")
    source.save_state(folder / "checkpoint")
    if isinstance(ranks, ShardedRanks):
        ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
