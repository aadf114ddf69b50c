"""One GRPO step, wall time between optimizer steps: assay's pipeline beside TRL's `GRPOTrainer`, taking turns.

    python tests/benchmarks/step.py [--case even|ragged|slow|slow_even ...] [--steps 10] [--model NAME] [--batching]

Both arms train the same model in float32 with the same prompts (4 of about 50 tokens, 8 completions each), lengths,
rewards, learning rate and optimizer (fused AdamW), all 32 rows in one forward, no KL, no old log-probs of their own.
Lengths are forced: `even` 32 tokens each, `ragged` uniform 4 to 32 by a seed that both arms share; `slow` is ragged
with a reward that sleeps 500 ms per completion, all at once in both arms (TRL's is a coroutine), `slow_even` the same
with 32 tokens each. Each arm is a process of its own with all cores; they take turns step by step, so that both see
the same machine, and the first step of each is not counted. TRL runs without bf16 and without gradient checkpointing,
which is its best on a CPU; `--batching` adds its continuous batching as a third arm. `--rate` is the learning rate.

One JSON line per arm and case: seconds per step (median, all), phases, tokens, peak memory of the process; then one
line with the ratios and the targets of this project (0.55 even, 0.45 ragged, 0.42 slow, memory 0.6).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROMPTS, GROUP, LONGEST, SHORTEST = 4, 8, 32, 4
SLEEP_S = 0.5
TARGETS = {"even": 0.55, "ragged": 0.45, "slow": 0.42}
WORDS = ("red", "blue", "green", "small", "large", "round", "cold", "warm", "old", "new", "fast", "slow", "near", "far")


def prompts(count: int) -> list[str]:
    """Prompts of about 50 tokens with the template."""
    draw = random.Random(0)
    return [f"{n} " + " ".join(draw.choice(WORDS) for _ in range(18)) + " What comes next?" for n in range(count)]


def lengths(step: int, *, even: bool) -> list[int]:
    """Forced lengths of one step's 32 completions; the same in both arms."""
    draw = random.Random(step)
    return [LONGEST if even else draw.randint(SHORTEST, LONGEST) for _ in range(PROMPTS * GROUP)]


def reward_of(text: str) -> float:
    """A free reward: whether the text has an even number of characters."""
    return float(len(text) % 2 == 0)


def said(**facts: Any) -> None:
    """One line to the process that measures."""
    sys.stdout.write("step " + json.dumps(facts) + "\n")
    sys.stdout.flush()


def wait_for_turn() -> None:
    """Block until the other process says go."""
    if not sys.stdin.readline():
        sys.exit(0)


def peak_mib() -> int:
    """High-water mark of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024


# -- assay -----------------------------------------------------------------------------------------------------------


def assay_arm(case: str, steps: int, model: str, rate: float) -> None:
    """Run the pipeline, one step per turn."""
    import assay_optim
    from assay.config.training import OptimizerSettings
    from assay.contracts import Message, Reward, Rollout, RolloutRequest, Sampling, ScoredGroup, Task, WeightsRef
    from assay.pipeline import Loop, LoopSettings, StepReport, Tickets
    from assay.pipeline.loop import LoopHooks
    from assay.protocols import Decision
    from assay.training.model import load_policy
    from assay.training.threads import use_threads
    from assay.training.trainer import Trainer
    from assay.training.weights import Publisher
    from assay_engines.transformers.engine import TransformersEngine

    use_threads()
    policy = load_policy(model)
    sleep_s = SLEEP_S if case.startswith("slow") else 0.0
    even = case.endswith("even")

    class Forced(TransformersEngine):
        """Asks for the forced lengths."""

        step = 0

        async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:  # type: ignore[override]
            wanted = lengths(self.step, even=even)
            self.step += 1
            forced = [
                request.model_copy(
                    update={"sampling": request.sampling.model_copy(update={"max_new_tokens": wanted[index]})}
                )
                for index, request in enumerate(requests)
            ]
            async for rollout in super().generate(forced):
                yield rollout

    class Judge:
        """The reward, asleep for a while where the case says so."""

        judges_groups = False

        async def judge(self, task: Task, rollout: Rollout) -> Reward:
            await asyncio.sleep(sleep_s)
            value = reward_of(rollout.text)
            return Reward(rollout_id=rollout.id, value=value, channels={"reward": value})

        async def judge_group(self, task: Task, rollouts: Sequence[Rollout]) -> Sequence[Reward]:
            return [await self.judge(task, rollout) for rollout in rollouts]

    class Learner:
        """The trainer."""

        def __init__(self) -> None:
            preset = assay_optim.optimizer("grpo", regularisers=[])
            settings = OptimizerSettings(learning_rate=rate, micro_batch_tokens=4096)
            self.trainer = Trainer(policy, preset, settings, max_tokens=LONGEST)
            self.publisher = Publisher(policy)

        def select(self, group: ScoredGroup) -> Decision:
            return Decision("keep", "")

        def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
            return self.trainer.step(groups).metrics

        def weights(self, version: int) -> WeightsRef:
            return self.publisher.publish(version)

    class Journal:
        """Keeps nothing."""

        def stored(self, group_id: str) -> Mapping[str, tuple[Rollout, Reward | None]]:
            return {}

        def sampled(self, step: int, task: Task, rollout: Rollout) -> None: ...

        def rewarded(self, step: int, rollout: Rollout, reward: Reward) -> None: ...

        def trained(self, report: StepReport) -> None: ...

    tasks = [Task(id=str(n), messages=(Message(role="user", content=text),)) for n, text in enumerate(prompts(400))]
    last: dict[str, Any] = {}
    started = time.perf_counter()

    def after_step(report: StepReport) -> None:
        last.update({key: report.metrics[key] for key in ("sample_s", "judge_s", "train_s", "tokens", "grad_norm")})

    async def after_publish(step: int) -> None:
        nonlocal started
        said(seconds=time.perf_counter() - started, peak_mib=peak_mib(), **last)
        await asyncio.to_thread(wait_for_turn)
        started = time.perf_counter()

    async def run() -> None:
        engine = Forced(policy, max_rows=PROMPTS * GROUP, ignore_end=True)
        await Loop(
            LoopSettings(
                steps=steps,
                groups_per_step=PROMPTS,
                group_size=GROUP,
                sampling=Sampling(max_new_tokens=LONGEST, seed=1),
            ),
            tickets=Tickets(tasks, seed=1),
            engine=engine,
            judge=Judge(),
            learner=Learner(),
            journal=Journal(),
            hooks=LoopHooks(after_step, after_publish),
        ).run()
        await engine.aclose()

    asyncio.run(run())


# -- TRL -------------------------------------------------------------------------------------------------------------


def trl_arm(case: str, steps: int, model: str, rate: float, *, batching: bool) -> None:
    """Run `GRPOTrainer`, one step per turn."""
    import torch
    from datasets import Dataset
    from transformers import StoppingCriteria, StoppingCriteriaList, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from assay.training.model import load_policy
    from assay.training.threads import use_threads

    use_threads()
    policy = load_policy(model)
    trained: Any = policy.model
    even = case.endswith("even")

    class Forced(StoppingCriteria):
        """Ends each row at its forced length."""

        def __init__(self, prompt: int, wanted: Sequence[int]) -> None:
            self.prompt, self.wanted = prompt, torch.tensor(wanted)

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # type: ignore[override]
            return (input_ids.shape[1] - self.prompt) >= self.wanted

    step = 0
    plain = trained.generate

    def generate(*positional: Any, **named: Any) -> Any:
        nonlocal step
        wanted = lengths(step, even=even)
        step += 1
        named.pop("stopping_criteria", None)
        prompt = named["input_ids"].shape[1]
        return plain(*positional, **named, stopping_criteria=StoppingCriteriaList([Forced(prompt, wanted)]))

    if not batching:
        trained.generate = generate

    async def slow(completions: list[Any], **_: Any) -> list[float]:
        async def one(completion: Any) -> float:
            await asyncio.sleep(SLEEP_S)
            return reward_of(_text(completion))

        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(one(completion)) for completion in completions]
        return [task.result() for task in tasks]

    def free(completions: list[Any], **_: Any) -> list[float]:
        return [reward_of(_text(completion)) for completion in completions]

    rewards: Any = slow if case.startswith("slow") else free
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=LONGEST,
        generation_kwargs={"min_new_tokens": LONGEST},
        use_transformers_continuous_batching=batching,
        learning_rate=rate,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="grpo",
        max_steps=steps,
        save_strategy="no",
        logging_steps=10_000,
        disable_tqdm=True,
        report_to=[],
    )
    rows = [[{"role": "user", "content": text}] for text in prompts(400)]

    class Turns(TrainerCallback):
        """Says what a step took and waits for the next turn."""

        started = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            said(seconds=time.perf_counter() - self.started, peak_mib=peak_mib())
            wait_for_turn()

    GRPOTrainer(
        model=trained,
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=policy.tokenizer,
        callbacks=[Turns()],
    ).train()


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


# -- measuring -------------------------------------------------------------------------------------------------------


class Arm:
    """One arm's process."""

    def __init__(self, name: str, case: str, options: argparse.Namespace) -> None:
        """Start it; the first step runs at once."""
        command = [sys.executable, __file__, "--arm", name, "--case", case, "--steps", str(options.steps + 2)]
        command += ["--model", options.model, "--rate", str(options.rate)]
        self.name, self.log = name, Path(tempfile.mkstemp(suffix=f"-{name}.log")[1])
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def step(self) -> dict[str, Any]:
        """The facts of the step under way."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("step "):
                return json.loads(line[5:])
        raise SystemExit(f"the arm {self.name} ended early:\n{self.log.read_text(encoding='utf-8')[-3000:]}")

    def go(self) -> None:
        """Let it begin its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def compare(case: str, options: argparse.Namespace) -> None:
    """Print what each arm takes for a case, and the ratios."""
    names = ["assay", "trl", *(["trl_batching"] if options.batching else [])]
    arms: list[Arm] = []
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    try:
        for name in names:  # one after the other: loading must not run beside the other arm's first step
            arms.append(Arm(name, case, options))
            arms[-1].step()
        for _ in range(options.steps):
            for arm in arms:
                arm.go()
                found[arm.name].append(arm.step())
    finally:
        for arm in arms:
            arm.close()
    medians: dict[str, float] = {}
    for name, steps in found.items():
        seconds = [step["seconds"] for step in steps]
        medians[name] = statistics.median(seconds)
        phases = {key: round(statistics.median(s[key] for s in steps), 3) for key in steps[0] if key.endswith("_s")}
        print(
            json.dumps(
                {
                    "benchmark": "step",
                    "case": case,
                    "arm": name,
                    "seconds": round(medians[name], 3),
                    "all": [round(value, 2) for value in seconds],
                    "phases": phases,
                    "peak_mib": steps[-1]["peak_mib"],
                    "load": round(os.getloadavg()[0], 2),
                }
            ),
            flush=True,
        )
    best = min((name for name in medians if name != "assay"), key=lambda name: medians[name])
    pairs = [ours["seconds"] / theirs["seconds"] for ours, theirs in zip(found["assay"], found[best], strict=True)]
    ratio = {
        "case": case,
        "against": best,
        "time": round(medians["assay"] / medians[best], 3),
        "time_of_pairs": [round(value, 3) for value in (min(pairs), statistics.median(pairs), max(pairs))],
        "memory": round(found["assay"][-1]["peak_mib"] / found[best][-1]["peak_mib"], 3),
        "target": {"time": TARGETS.get(case), "memory": 0.6},
    }
    print(json.dumps({"ratio": ratio}), flush=True)


def main() -> None:
    """Measure, or be one arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=["even", "ragged", "slow"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rate", type=float, default=1e-6)
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--arm", choices=["assay", "trl", "trl_batching"])
    options = parser.parse_args()
    for case in options.case:
        if options.arm == "assay":
            assay_arm(case, options.steps, options.model, options.rate)
        elif options.arm:
            trl_arm(case, options.steps, options.model, options.rate, batching=options.arm == "trl_batching")
        else:
            compare(case, options)


if __name__ == "__main__":
    main()
