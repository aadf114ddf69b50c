"""One GPU: decoding against the memory's bandwidth, the update's share of the peak, a step with and without overlap.

    python tests/benchmarks/gpu.py [--device cuda:0] [--steps 4] [--tiny]

A model of the shape of 1.5 billion parameters with random weights is made on the spot; only torch and transformers are
needed, no network. Bandwidth and peak are measured on the same device first (a large copy, a large bfloat16 product),
so that the shares do not rest on a data sheet. `--tiny` tries the script with a model of a million parameters.

Prints JSON lines; takes under 8 minutes on a GPU of the H200 class.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import assay_optim
from assay.config.training import OptimizerSettings
from assay.contracts import Message, Reward, Rollout, RolloutRequest, Sampling, ScoredGroup, Task, WeightsRef
from assay.pipeline import Loop, LoopSettings, StepReport, Tickets
from assay.pipeline.loop import LoopHooks
from assay.protocols import Decision
from assay.training.model import PolicyModel
from assay.training.tiny import tiny_tokenizer
from assay.training.trainer import Trainer
from assay.training.weights import Publisher
from assay_engines.transformers.engine import TransformersEngine

SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}
TINY = SHAPE | {"vocab_size": 512, "hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 2}


def say(**facts: Any) -> None:
    """One JSON line."""
    print(json.dumps({"benchmark": "gpu", **facts, "load": round(os.getloadavg()[0], 2)}), flush=True)


def make_policy(shape: Mapping[str, int], device: str) -> PolicyModel:
    """A Llama of this shape with random weights in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**shape, max_position_embeddings=4096, tie_word_embeddings=True, dtype=torch.bfloat16)  # type: ignore[arg-type]
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    return PolicyModel(model.to(torch.bfloat16).eval(), tiny_tokenizer(), torch.device(device), "random", "")


def wait(device: str) -> None:
    """Until the device has done what it was asked."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(action: Any, device: str, repeats: int = 5) -> float:
    """Median seconds of `action`, after one call that does not count."""
    action()
    seconds: list[float] = []
    for _ in range(repeats):
        wait(device)
        started = time.perf_counter()
        action()
        wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def measure_device(device: str, scale: int) -> tuple[float, float]:
    """Bytes per second of a copy, and operations per second of a bfloat16 product."""
    source = torch.empty(scale * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / timed(lambda: target.copy_(source), device)
    side = 256 * max(1, int(scale**0.5) // 2)
    left = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    peak = 2 * side**3 / timed(lambda: left @ left, device)
    return bandwidth, peak


def tasks(count: int) -> list[Task]:
    """Prompts of about sixty tokens."""
    return [
        Task(id=str(n), messages=(Message(role="user", content=f"{n} plus {n + 1} " + "is a sum " * 6),))
        for n in range(count)
    ]


def decode(policy: PolicyModel, rows: int, tokens: int, bandwidth: float, device: str) -> list[Rollout]:
    """Sample `rows` rollouts at once and print tokens per second beside what reading weights and keys allows."""
    group = 8
    asked = [
        RolloutRequest(
            id=f"{task.id}-{n}", task=task, group_id=task.id, sampling=Sampling(max_new_tokens=tokens, seed=n)
        )
        for task in tasks(rows // group)
        for n in range(group)
    ]

    async def run() -> list[Rollout]:
        engine = TransformersEngine(policy, max_rows=rows, ignore_end=True, template="plain", prefill_tokens=8192)
        found = [rollout async for rollout in engine.generate(asked)]
        await engine.aclose()
        return found

    asyncio.run(run())
    wait(device)
    started = time.perf_counter()
    found = asyncio.run(run())
    wait(device)
    seconds = time.perf_counter() - started
    config = policy.model.config
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    head = config.hidden_size // config.num_attention_heads
    per_place = 2 * config.num_hidden_layers * config.num_key_value_heads * head * 2
    places = statistics.mean(len(rollout.prompt_ids or ()) for rollout in found) + tokens / 2
    floor = tokens * (weights + rows * places * per_place) / bandwidth
    say(
        part="decode",
        rows=rows,
        tokens=rows * tokens,
        seconds=round(seconds, 3),
        tokens_per_s=round(rows * tokens / seconds),
        floor_s=round(floor, 3),
        share_of_floor=round(floor / seconds, 3),
    )
    return found


def update(policy: PolicyModel, rollouts: Sequence[Rollout], peak: float, device: str) -> None:
    """One GRPO update on these rollouts, and its share of the peak: six operations per weight and token."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group_id, []).append(rollout)
    known = {task.id: task for task in tasks(len(groups))}
    scored = [
        ScoredGroup(
            task=known[name],
            rollouts=tuple(members),
            rewards=tuple(Reward(rollout_id=r.id, value=float(n % 2)) for n, r in enumerate(members)),
        )
        for name, members in groups.items()
    ]
    settings = OptimizerSettings(learning_rate=1e-6, micro_batch_tokens=16_384, head_chunk_tokens=2048)
    trainer = Trainer(policy, assay_optim.optimizer("grpo", regularisers=[]), settings)
    seconds = timed(lambda: trainer.step(scored), device, repeats=3)
    read = sum(len(members[0].prompt_ids or ()) for members in groups.values())
    read += sum(len(turn.token_ids or ()) for rollout in rollouts for turn in rollout.turns)
    operations = 6 * sum(p.numel() for p in policy.model.parameters()) * read
    say(part="update", tokens=read, seconds=round(seconds, 3), share_of_peak=round(operations / seconds / peak, 3))


class Judge:
    """A free reward."""

    judges_groups = False

    async def judge(self, task: Task, rollout: Rollout) -> Reward:
        """Whether the text has an even number of characters."""
        value = float(len(rollout.text) % 2 == 0)
        return Reward(rollout_id=rollout.id, value=value, channels={"reward": value})

    async def judge_group(self, task: Task, rollouts: Sequence[Rollout]) -> Sequence[Reward]:
        """One by one."""
        return [await self.judge(task, rollout) for rollout in rollouts]


class Learner:
    """The trainer behind the loop's door."""

    def __init__(self, policy: PolicyModel) -> None:
        """Learn by GRPO."""
        settings = OptimizerSettings(learning_rate=1e-6, micro_batch_tokens=16_384, head_chunk_tokens=2048)
        self.trainer = Trainer(policy, assay_optim.optimizer("grpo", regularisers=[]), settings)
        self.publisher = Publisher(policy)

    def select(self, group: ScoredGroup) -> Decision:
        """Keep it."""
        return Decision("keep", "")

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update."""
        return self.trainer.step(groups).metrics

    def weights(self, version: int) -> WeightsRef:
        """Shared in memory."""
        return self.publisher.publish(version)


class Journal:
    """Keeps nothing."""

    def stored(self, group_id: str) -> Mapping[str, tuple[Rollout, Reward | None]]:
        """Nothing."""
        return {}

    def sampled(self, step: int, task: Task, rollout: Rollout) -> None:
        """Nothing."""

    def rewarded(self, step: int, rollout: Rollout, reward: Reward) -> None:
        """Nothing."""

    def trained(self, report: StepReport) -> None:
        """Nothing."""


def step_seconds(policy: PolicyModel, *, staleness: int, steps: int, groups: int, tokens: int) -> float:
    """Median seconds between optimizer steps."""
    ends: list[float] = []

    async def run() -> None:
        engine = TransformersEngine(policy, max_rows=groups * 8, ignore_end=True, template="plain", prefill_tokens=8192)
        await Loop(
            LoopSettings(
                steps=steps + 2,
                groups_per_step=groups,
                group_size=8,
                sampling=Sampling(max_new_tokens=tokens, seed=1),
                max_staleness=staleness,
            ),
            tickets=Tickets(tasks(400), seed=1),
            engine=engine,
            judge=Judge(),
            learner=Learner(policy),
            journal=Journal(),
            hooks=LoopHooks(after_step=lambda report: ends.append(time.perf_counter())),
        ).run()
        await engine.aclose()

    asyncio.run(run())
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends[1:]))


def main() -> None:
    """Measure everything once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device: str = options.device
    if not device.startswith("cuda") and not options.tiny:
        raise SystemExit("gpu.py: there is no GPU here; try the script with --tiny")
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    bandwidth, peak = measure_device(device, 16 if options.tiny else 4096)
    policy = make_policy(TINY if options.tiny else SHAPE, device)
    parameters = sum(p.numel() for p in policy.model.parameters())
    say(
        part="device",
        name=name,
        date=time.strftime("%Y-%m-%d"),
        parameters=parameters,
        gb_per_s=round(bandwidth / 1e9),
        tflop_per_s=round(peak / 1e12, 2),
    )
    groups, tokens = (2, 8) if options.tiny else (32, 256)
    rollouts = decode(policy, groups * 8, tokens, bandwidth, device)
    update(policy, rollouts, peak, device)
    seconds = {
        staleness: step_seconds(policy, staleness=staleness, steps=options.steps, groups=groups, tokens=tokens)
        for staleness in (0, 1)
    }
    say(
        part="step",
        in_turn_s=round(seconds[0], 3),
        overlapped_s=round(seconds[1], 3),
        ratio=round(seconds[1] / seconds[0], 3),
    )


if __name__ == "__main__":
    main()
