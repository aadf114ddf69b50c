"""Decoding of many requests of different lengths: assay's engine beside `generate` of transformers in batches.

    python tests/benchmarks/decode.py [--requests 256] [--rows 32] [--model smollm2-135m-instruct] [--threads 2]

Lengths are log-uniform between 4 and 128 (seed 0) and forced; every request has a prompt of its own of about 50 tokens.
The engine runs between the two halves of the other arm, so that both see the same load. One JSON line: wall and CPU
seconds, tokens per second, their ratios (above 1: the engine is faster), the bound that refilling alone could give, the
largest difference of a log-prob from a plain forward, and the machine's load. CPU seconds are the figure to read on a
machine that is not idle.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task
from assay.training.model import PolicyModel, load_policy
from assay_engines.transformers.engine import TransformersEngine

WORDS = ("red", "blue", "green", "small", "large", "round", "cold", "warm", "old", "new", "fast", "slow", "near", "far")


@dataclass
class Spent:
    """What one arm took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, started: tuple[float, float]) -> None:
        """Count since `started`."""
        self.wall_s += time.perf_counter() - started[0]
        self.cpu_s += time.process_time() - started[1]


def clocks() -> tuple[float, float]:
    """Wall and CPU time now."""
    return time.perf_counter(), time.process_time()


def make_requests(count: int) -> list[RolloutRequest]:
    """Requests with log-uniform lengths of 4 to 128 tokens and prompts that begin differently."""
    source = random.Random(0)
    found: list[RolloutRequest] = []
    for place in range(count):
        length = round(4 * (128 / 4) ** source.random())
        text = f"{place} " + " ".join(source.choice(WORDS) for _ in range(18)) + " What comes next?"
        task = Task(id=str(place), messages=(Message(role="system", content="."), Message(role="user", content=text)))
        sampling = Sampling(max_new_tokens=length, seed=place)
        found.append(RolloutRequest(id=str(place), task=task, group_id=str(place), sampling=sampling))
    return found


def run_engine(policy: PolicyModel, requests: Sequence[RolloutRequest], rows: int, spent: Spent) -> list[Rollout]:
    """All requests through the engine."""

    async def run() -> list[Rollout]:
        engine = TransformersEngine(policy, max_rows=rows, ignore_end=True)
        started = clocks()
        found = [rollout async for rollout in engine.generate(requests)]
        spent.add(started)
        await engine.aclose()
        return found

    return asyncio.run(run())


def run_generate(policy: PolicyModel, requests: Sequence[RolloutRequest], rows: int, spent: Spent) -> None:
    """The same requests through `generate`, each batch as long as its longest request."""
    tokenizer = policy.tokenizer
    tokenizer.padding_side = "left"
    started = clocks()
    for begin in range(0, len(requests), rows):
        batch = requests[begin : begin + rows]
        texts = [
            tokenizer.apply_chat_template(
                [message.model_dump() for message in request.task.messages], tokenize=False, add_generation_prompt=True
            )
            for request in batch
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        longest = max(request.sampling.max_new_tokens for request in batch)
        policy.model.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            min_new_tokens=longest,
            max_new_tokens=longest,
            output_logits=False,
        )
    spent.add(started)


def worst_difference(policy: PolicyModel, rollouts: Sequence[Rollout]) -> float:
    """Largest difference of a streamed log-prob from a plain forward."""
    worst = 0.0
    for rollout in rollouts:
        prompt, answer = rollout.prompt_ids or (), rollout.turns[0].token_ids or ()
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *answer]])).logits[0].float()
        expected = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]
        worst = max(worst, float((expected - torch.tensor(rollout.turns[0].logprobs)).abs().max()))
    return worst


def main() -> None:
    """Run both arms and print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    policy = load_policy(arguments.model)
    requests = make_requests(arguments.requests)
    half = arguments.requests // 2 // arguments.rows * arguments.rows or arguments.requests
    ours, theirs = Spent(), Spent()
    run_generate(policy, requests[:half], arguments.rows, theirs)
    rollouts = run_engine(policy, requests, arguments.rows, ours)
    run_generate(policy, requests[half:], arguments.rows, theirs)
    tokens = sum(len(rollout.turns[0].token_ids or ()) for rollout in rollouts)
    lengths = [request.sampling.max_new_tokens for request in requests]
    batches = [lengths[begin : begin + arguments.rows] for begin in range(0, len(lengths), arguments.rows)]
    padded = sum(max(batch) * len(batch) for batch in batches)
    print(
        json.dumps(
            {
                "benchmark": "decode",
                "model": arguments.model,
                "requests": len(requests),
                "rows": arguments.rows,
                "threads": arguments.threads,
                "tokens": tokens,
                "prompt_tokens": sum(len(rollout.prompt_ids or ()) for rollout in rollouts),
                "engine": {"wall_s": round(ours.wall_s, 1), "cpu_s": round(ours.cpu_s, 1)},
                "generate": {"wall_s": round(theirs.wall_s, 1), "cpu_s": round(theirs.cpu_s, 1)},
                "engine_tokens_per_s": round(tokens / ours.wall_s, 1),
                "wall_ratio": round(theirs.wall_s / ours.wall_s, 2),
                "cpu_ratio": round(theirs.cpu_s / ours.cpu_s, 2),
                "refill_bound": round(padded / tokens, 2),
                "logprob_difference": worst_difference(policy, rollouts[::16]),
                "load": [round(load, 2) for load in os.getloadavg()],
            }
        )
    )


if __name__ == "__main__":
    main()
