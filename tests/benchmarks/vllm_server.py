"""A vLLM server beside the transformers engine: tokens per second, log-probs, and what a push of weights takes.

    python tests/benchmarks/vllm_server.py [--model smollm2-135m-instruct] [--requests 32] [--tokens 48] [--rows 16]

Needs vLLM's environment (`make vllm`). Prints, for the same requests, each engine's tokens per second and the largest
difference of its log-probs from a plain forward (target 4e-5); then pushes weights while requests are under way and
prints the pause (target at most 3 s for 538 MB), and kills the server and prints how long the requests take to be done.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

from assay.component import BuildContext
from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task
from assay.discovery import default_cache_dir
from assay.protocols import RolloutEngine
from assay.training.model import PolicyModel, load_policy
from assay.training.weights import Publisher
from assay_engines.transformers.engine import TransformersEngine
from assay_engines.vllm.build import build_engine
from assay_engines.vllm.engine import VLLMEngine
from assay_engines.vllm.host import OwnHost
from assay_engines.vllm.options import VLLMOptions

WORDS = ["apples", "trains", "rivers", "lamps", "books", "bridges", "clocks", "gardens"]


def requests(count: int, tokens: int, *, name: str) -> list[RolloutRequest]:
    """Groups of four on prompts of about 40 tokens."""
    return [
        RolloutRequest(
            id=f"{name}-{number}",
            task=Task(
                id=f"t{number // 4}",
                messages=(
                    Message(
                        role="user",
                        content=f"There are {number // 4 + 3} boxes with {7 + number // 4} {WORDS[number // 4 % 8]} "
                        "each. How many are there in all? Think step by step.",
                    ),
                ),
            ),
            group_id=f"g{number // 4}",
            sampling=Sampling(max_new_tokens=tokens, seed=number),
        )
        for number in range(count)
    ]


async def drawn(engine: RolloutEngine, asked: Sequence[RolloutRequest]) -> list[Rollout]:
    return [rollout async for rollout in engine.generate(asked)]


def furthest(policy: PolicyModel, rollouts: Sequence[Rollout]) -> float:
    """Largest difference of a log-prob from a plain forward."""
    worst = 0.0
    for rollout in rollouts:
        prompt, answer = rollout.prompt_ids or (), rollout.turns[-1].token_ids or ()
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *answer]])).logits[0].double()
        table = logits[len(prompt) - 1 : -1].log_softmax(-1)
        here = table.gather(1, torch.tensor(answer)[:, None])[:, 0]
        worst = max(worst, float((here - torch.tensor(rollout.turns[-1].logprobs)).abs().max()))
    return worst


async def timed(name: str, engine: RolloutEngine, policy: PolicyModel, given: Any) -> None:
    await drawn(engine, requests(4, 4, name="warm"))
    started = time.perf_counter()
    found = await drawn(engine, requests(given.requests, given.tokens, name=name))
    took = time.perf_counter() - started
    total = sum(len(rollout.turns[-1].token_ids or ()) for rollout in found)
    print(
        f"{name}: {total} tokens in {took:.1f} s, {total / took:.0f} tokens/s; log-probs within "
        f"{furthest(policy, found[:8]):.1e} of a plain forward"
    )


async def pushed(engine: VLLMEngine, policy: PolicyModel, given: Any) -> None:
    """A push while requests are under way."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.0005)
    started = time.perf_counter()
    weights = Publisher(policy, folder=engine.weights_folder).publish(1)
    wrote = time.perf_counter() - started
    size = sum(parameter.numel() * parameter.element_size() for parameter in policy.model.parameters())
    drawing = asyncio.create_task(drawn(engine, requests(given.rows, 2 * given.tokens, name="flight")))
    await asyncio.sleep(given.tokens / 30)
    early = drawing.done()
    await engine.pause("keep")
    await engine.push_weights(weights)
    await engine.resume()
    found = await drawing
    times = engine.last_push
    assert times is not None
    both = sum(len(rollout.weight_versions) == 2 for rollout in found)
    print(
        f"push of {size / 1e6:.0f} MB: written in {wrote:.2f} s, checked in {times.check_s:.2f} s, paused for "
        f"{times.pause_s:.2f} s (target 3), probed in {times.probe_s:.2f} s; {both} of {len(found)} requests carry "
        f"both versions{' (they were done before it)' if early else ''}"
    )


async def killed(engine: VLLMEngine, host: OwnHost, given: Any) -> None:
    asked = requests(given.rows, given.tokens, name="killed")
    drawing = asyncio.create_task(drawn(engine, asked))
    await asyncio.sleep(given.tokens / 60)
    assert host.server is not None
    os.kill(host.server.pid, signal.SIGKILL)
    started = time.perf_counter()
    found = await drawing
    exact = len(found) == len({rollout.id for rollout in found}) == len(asked)
    print(
        f"server killed: all {len(found)} requests done {time.perf_counter() - started:.1f} s later, each once: {exact}"
    )


async def run(given: Any) -> None:
    policy = load_policy(given.model)
    with tempfile.TemporaryDirectory() as folder:
        options = VLLMOptions(
            max_rows=given.rows, max_model_len=1024, ignore_end=True, weights_dir=given.weights or folder
        )
        context = BuildContext(policy=policy, cache_dir=default_cache_dir())
        started = time.perf_counter()
        engine = build_engine(options, context)
        try:
            await drawn(engine, requests(1, 1, name="start"))
            print(f"vllm: server started in {time.perf_counter() - started:.1f} s")
            await timed("vllm", engine, policy, given)
            ours = TransformersEngine(policy, max_rows=given.rows, ignore_end=True)
            await timed("transformers", ours, policy, given)
            await ours.aclose()
            await pushed(engine, policy, given)
            host = engine.host
            assert isinstance(host, OwnHost)
            await killed(engine, host, given)
        finally:
            await engine.aclose()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--model", default="smollm2-135m-instruct")
    arguments.add_argument("--requests", type=int, default=32)
    arguments.add_argument("--tokens", type=int, default=48)
    arguments.add_argument("--rows", type=int, default=16, help="requests decoded at once")
    arguments.add_argument("--weights", help="folder for new weights, for example under /dev/shm")
    given = arguments.parse_args()
    environment = default_cache_dir() / "vllm"
    if not environment.is_dir():
        print(f"vllm: there is no environment in {environment}; make it with `make vllm`")
        return
    asyncio.run(run(given))


if __name__ == "__main__":
    main()
