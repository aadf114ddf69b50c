"""Does an optimizer or an objective learn? A tiny real model, a task of one-digit sums, seconds per answer.

`supervised_start` makes the model once: it knows the answer's format and is right part of the time. `learn` trains a
copy of it by an optimizer and says how its *exact* success rate moved (the probability of the right answer, summed by
hand over all tasks, not sampled). `attainable` is the optimum of a KL-regularised objective from that start.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.contracts.batch import Reward, ScoredGroup
from assay.contracts.rollout import Rollout, Sampling, Span, Turn, WeightSpan
from assay.contracts.task import Task
from assay.contracts.verdict import StepScore
from assay.protocols import Example, TaskSampler

if TYPE_CHECKING:
    from torch import Tensor

    from assay.config.training import OptimizerSettings
    from assay.protocols import Encoder, Objective, PolicyOptimizer
    from assay.training.model import PolicyModel

LIMIT = 3
"""Most tokens of an answer: one digit and the end, and room for a mistake."""
Channels = Callable[[Task, str], Mapping[str, float]]


@dataclass(frozen=True)
class Learned:
    """What training did; rates are exact means over all tasks."""

    before: float
    after: float
    attainable: float
    updates: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Those of the last update."""

    @property
    def share(self) -> float:
        """`after` as a share of what was attainable."""
        return self.after / self.attainable


def tasks() -> list[Task]:
    """The 16 sums of two numbers below 4, whose answers have one digit."""
    from assay.training.tiny import sum_tasks

    return [task for task in sum_tasks() if all(int(part) < 4 for part in task.id.split("-")[1:])]


def supervised_start(folder: Path, *, seed: int = 0, until: float = 0.35, format_steps: int = 0) -> Path:
    """A tiny model in `folder` that answers every sum with a digit, right in about a share `until` of its samples.

    It first learns the format from random digits for `format_steps` steps, then the sums until they are partly right.
    """
    import random

    from assay.config.training import OptimizerSettings
    from assay.training.model import load_policy
    from assay.training.tiny import make_tiny_model
    from assay.training.trainer import Trainer
    from assay.training.weights import save_policy

    make_tiny_model(folder, seed=seed, hidden_size=128, layers=2)
    policy = load_policy(str(folder))
    trainer = Trainer(policy, None, OptimizerSettings(learning_rate=2e-3, micro_batch_tokens=8192), seed=seed)
    digits = random.Random(seed)  # noqa: S311 - nothing secret
    for _ in range(format_steps):
        trainer.step_examples(
            [_example(policy, task, str(digits.randrange(10))) for task in tasks() for _ in range(4)], _Likelihood()
        )
    examples = [_example(policy, task, str(task.reference)) for task in tasks()]
    for _ in range(200):
        if success_rate(policy) >= until:
            break
        trainer.step_examples(examples, _Likelihood())
    save_policy(policy, folder)
    return folder


def learn(
    optimizer: PolicyOptimizer,
    start: Path,
    *,
    settings: OptimizerSettings,
    updates: int,
    group_size: int = 8,
    prompts: int = 16,
    seed: int = 0,
    beta: float = 0.0,
    channels: Channels | None = None,
    explained: bool = False,
    models: Mapping[str, PolicyModel] | None = None,
    stop_at: float | None = None,
) -> Learned:
    """Train a copy of `start` on sampled answers; stops early once `stop_at` x attainable is reached.

    Args:
        optimizer: a fresh one.
        start: a folder of `supervised_start`.
        settings: learning rate and the like.
        updates: most batches.
        group_size: responses per prompt.
        prompts: prompts per batch.
        seed: decides which prompts and answers are drawn.
        beta: strength of the KL to the start in the optimizer's objective, for what is attainable.
        channels: further reward channels of an answer; `process` becomes the reward of its first token.
        explained: add the right answer to each group as a text set apart (the channel `nll`).
        models: frozen policies that the optimizer names in its needs.
        stop_at: share of the attainable that is enough; None makes all updates.
    """
    import torch

    from assay.training.model import load_policy
    from assay.training.trainer import Trainer

    started = time.perf_counter()
    policy = load_policy(str(start))
    before = success_rates(policy)
    best = attainable(before, beta)
    trainer = Trainer(policy, optimizer, settings, seed=seed, models=models, max_tokens=LIMIT)
    generator = torch.Generator().manual_seed(seed)
    pool, metrics, done = tasks(), {}, 0
    for update in range(updates):
        chosen = _drawn(pool, optimizer, min(prompts, len(pool)), generator)
        if not chosen:
            break
        groups = sampled_groups(policy, chosen, group_size, generator, version=update, channels=channels)
        if explained:
            groups = [_explained(policy, group) for group in groups]
        kept = [
            group for group, decision in zip(groups, optimizer.select(groups), strict=True) if decision.action == "keep"
        ]
        metrics, done = dict(trainer.step(kept).metrics), update + 1
        if stop_at is not None and update % 5 == 4 and success_rate(policy) >= stop_at * best:
            break
    return Learned(_mean(before), success_rate(policy), best, done, time.perf_counter() - started, metrics)


def learn_examples(
    objective: Objective,
    start: Path,
    examples: Sequence[Example],
    *,
    settings: OptimizerSettings,
    updates: int,
    reference_every: int = 0,
) -> tuple[PolicyModel, PolicyModel]:
    """The model of `start`, and the same trained on `examples` by an objective."""
    from assay.training.model import load_policy
    from assay.training.trainer import Trainer

    policy = load_policy(str(start))
    trainer = Trainer(policy, None, settings, reference=load_policy(str(start)))
    for update in range(updates):
        trainer.step_examples(examples, objective)
        if reference_every and update % reference_every == reference_every - 1:
            trainer.refresh_reference()
    return load_policy(str(start)), policy


def attainable(rates: Sequence[float], beta: float) -> float:
    """Mean success of the policy that maximises success - beta KL(policy || start), from the start's rates.

    That policy is proportional to start x exp(reward / beta), so a rate p becomes p e / (p e + 1 - p), e = exp(1/beta).
    """
    if beta == 0:
        return 1.0
    gain = math.exp(min(1 / beta, 500.0))
    return _mean([rate * gain / (rate * gain + 1 - rate) for rate in rates])


def success_rate(policy: PolicyModel) -> float:
    """Probability of a right answer, mean over all tasks."""
    return _mean(success_rates(policy))


def success_rates(policy: PolicyModel) -> list[float]:
    """Probability of the right answer to each task: its digit, then the end."""
    return [math.exp(value) for value in log_probs(policy, [(task, str(task.reference)) for task in tasks()])]


def log_probs(policy: PolicyModel, answers: Sequence[tuple[Task, str]]) -> list[float]:
    """Log-probability of each whole answer, its end included."""
    import torch

    rows = [_example(policy, task, answer).sequences[0] for task, answer in answers]
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.full((len(rows), longest), policy.tokenizer.pad_token_id)
    for row, (prompt, response) in enumerate(rows):
        ids[row, : len(prompt) + len(response)] = torch.tensor([*prompt, *response])
    with torch.no_grad():
        logits: Tensor = policy.model(ids).logits.float().log_softmax(-1)
    found: list[float] = []
    for row, (prompt, response) in enumerate(rows):
        places = range(len(prompt) - 1, len(prompt) + len(response) - 1)
        found.append(sum(float(logits[row, at, token]) for at, token in zip(places, response, strict=True)))
    return found


def sampled_groups(
    policy: PolicyModel,
    chosen: Sequence[Task],
    group_size: int,
    generator: Any,
    *,
    version: int = 0,
    channels: Channels | None = None,
) -> list[ScoredGroup]:
    """Answers drawn from the policy at temperature 1, scored by whether they are right."""
    import torch

    tokenizer = policy.tokenizer
    end = tokenizer.eos_token_id
    prompts = [tuple(tokenizer(task.prompt, add_special_tokens=False).input_ids) for task in chosen]
    ids = torch.tensor([prompt for prompt in prompts for _ in range(group_size)])
    logp = torch.zeros(len(ids), LIMIT)
    with torch.no_grad():
        for step in range(LIMIT):
            # Many answers begin alike; each beginning is read once.
            beginnings, row_of = torch.unique(ids, dim=0, return_inverse=True)
            spread = policy.model(beginnings, logits_to_keep=1).logits[:, -1].float().log_softmax(-1)[row_of]
            drawn = torch.multinomial(spread.exp(), 1, generator=generator)
            logp[:, step] = spread.gather(1, drawn)[:, 0]
            ids = torch.cat([ids, drawn], dim=1)
    groups: list[ScoredGroup] = []
    sampling, rows, logps = Sampling(max_new_tokens=LIMIT), ids.tolist(), logp.tolist()
    for index, task in enumerate(chosen):
        rollouts: list[Rollout] = []
        rewards: list[Reward] = []
        for member in range(group_size):
            row = index * group_size + member
            tokens = rows[row][len(prompts[index]) :]
            ended = end in tokens
            length = tokens.index(end) + 1 if ended else LIMIT
            text = tokenizer.decode(tokens[: length - ended])
            rollout = Rollout(
                id=f"{version}-{row}",
                task_id=task.id,
                group_id=f"{version}-{task.id}",
                turns=(Turn(text=text, token_ids=tuple(tokens[:length]), logprobs=tuple(logps[row][:length])),),
                prompt_ids=prompts[index],
                weight_versions=(WeightSpan(version=version, first=0, last=length - 1),),
                finish="stop" if ended else "length",
                sampling=sampling,
            )
            value = float(ended and text == task.reference)
            extra = dict(channels(task, text)) if channels is not None else {}
            rollouts.append(rollout)
            process = extra.pop("process", None)
            steps = () if process is None or not text else (StepScore(span=Span(start=0, end=1), value=process),)
            scored = Reward(rollout_id=rollout.id, value=value, steps=steps, channels={"reward": value, **extra})
            rewards.append(scored)
        groups.append(ScoredGroup(task=task, rollouts=tuple(rollouts), rewards=tuple(rewards)))
    return groups


def encode(policy: PolicyModel) -> Encoder:
    """How a data row's prompt and response become token ids of this model, the end token included."""
    from assay.training.encoder import TextEncoder

    return TextEncoder(policy.tokenizer)


def _drawn(pool: Sequence[Task], optimizer: PolicyOptimizer, count: int, generator: Any) -> list[Task]:
    """Different tasks, as the optimizer's task sampler weighs them."""
    import torch

    samplers = [sidecar for sidecar in optimizer.sidecars if isinstance(sidecar, TaskSampler)]
    weights = samplers[0].weights([task.id for task in pool]) if samplers else [1.0] * len(pool)
    count = min(count, sum(weight > 0 for weight in weights))
    if count == 0:
        return []
    return [pool[index] for index in torch.multinomial(torch.tensor(weights), count, generator=generator).tolist()]


def _explained(policy: PolicyModel, group: ScoredGroup) -> ScoredGroup:
    """The group with the right answer as one more rollout, set apart from the others."""
    prompt, response = encode(policy)(group.task.prompt, str(group.task.reference))
    first = group.rollouts[0]
    turn = Turn(text=str(group.task.reference), token_ids=response, logprobs=(0.0,) * len(response))
    rollout = first.model_copy(
        update={"id": f"{first.group_id}-explained", "turns": (turn,), "prompt_ids": prompt, "finish": "stop"}
    )
    others = [reward.model_copy(update={"channels": {**reward.channels, "nll": 0.0}}) for reward in group.rewards]
    apart = Reward(rollout_id=rollout.id, value=0.0, channels={"reward": 0.0, "nll": 1.0})
    return ScoredGroup(task=group.task, rollouts=(*group.rollouts, rollout), rewards=(*others, apart))


def _example(policy: PolicyModel, task: Task, answer: str) -> Example:
    return Example((encode(policy)(task.prompt, answer),))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class _Likelihood:
    """Cross-entropy per response token."""

    def __init__(self) -> None:
        from assay.protocols import Needs

        self.kind: Any = "sft"
        self.layout: Any = "texts"
        self.needs = Needs(logp_old=False)
        self.sidecars = ()

    def read(self, row: Any, encode: Any) -> Example | None:
        return None

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        return examples

    def rescore(self, examples: Sequence[Example], logp: Any, reference: Any) -> Sequence[Example]:
        return examples

    def loss(self, examples: Any, forward: Any, reference: Any, *, totals: Any = None) -> Any:
        from assay.contracts.tensors import LossReport

        return LossReport(-forward.logp.sum() / totals.tokens, {})
