"""Time and memory of forward + backward beside TRL's GRPO, a fresh process per arm.

    python tests/benchmarks/update_cost.py [--model NAME] [--rows 32 8] [--repeats 3] [--checkpointing] [--pairs 1]

Both arms compute one GRPO loss and its gradient on the same 4 prompts x 8 completions, `rows` rows per forward, with
float32 weights: TRL by its trainer's own loss (chunked output head), assay by its forward, batch and optimizer. No
optimizer step is made. Memory is the kernel's high-water mark of the process (imports and weights included). One JSON
line per arm, then one with the ratios. Targets: 0.60 of the memory and 0.65 of the time with 32 rows, 0.70 and 0.75
with 8.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPTS, GROUP, PROMPT_TOKENS, RESPONSE_TOKENS = 4, 8, 50, 64
TARGETS = {32: {"memory": 0.60, "time": 0.65}, 8: {"memory": 0.70, "time": 0.75}}


def tokens() -> list[tuple[list[int], list[int], float]]:
    """Prompt, response and reward of every row; the same in both arms."""
    draw = random.Random(0)
    rows: list[tuple[list[int], list[int], float]] = []
    for _ in range(PROMPTS):
        prompt = [draw.randrange(3, 40_000) for _ in range(PROMPT_TOKENS)]
        for _ in range(GROUP):
            rows.append(
                (prompt, [draw.randrange(3, 40_000) for _ in range(RESPONSE_TOKENS)], float(draw.random() < 0.5))
            )
    return rows


def assay_arm(model: str, rows: int, checkpointing: bool) -> Callable[[], float]:
    from dataclasses import replace

    import torch

    import assay_optim
    from assay.component import BuildContext
    from assay.contracts import Message, Reward, Rollout, Sampling, ScoredGroup, Task, Turn
    from assay.training.batch import make_batch, plan_micro_batches, take_rows
    from assay.training.forward import response_forward, supports_shared_prompt
    from assay.training.model import load_policy

    policy = load_policy(model)
    preset = next(part for part in assay_optim.assay_policy_optimizers() if part.name == "grpo")
    optimizer = preset.build(preset.config(regularisers=[]), BuildContext())
    groups: list[ScoredGroup] = []
    lines = tokens()
    for first in range(0, len(lines), GROUP):
        task = Task(id=str(first), messages=(Message(role="user", content="x"),))
        rollouts = tuple(
            Rollout(
                id=f"{first}-{index}",
                task_id=task.id,
                group_id=task.id,
                prompt_ids=tuple(prompt),
                turns=(Turn(text="x", token_ids=tuple(response)),),
                sampling=Sampling(max_new_tokens=RESPONSE_TOKENS),
            )
            for index, (prompt, response, _) in enumerate(lines[first : first + GROUP])
        )
        rewards = tuple(
            Reward(rollout_id=rollout.id, value=line[2])
            for rollout, line in zip(rollouts, lines[first : first + GROUP], strict=True)
        )
        groups.append(ScoredGroup(task=task, rollouts=rollouts, rewards=rewards))
    if checkpointing:
        policy.model.activation_checkpointing_enable({"use_reentrant": False})
        policy.model.train()
    packed = supports_shared_prompt(policy.model)
    budget = rows // GROUP * (PROMPT_TOKENS + GROUP * RESPONSE_TOKENS)

    def update() -> float:
        made = make_batch(groups)
        batch = optimizer.prepare(made.batch)
        total = 0.0
        for members in plan_micro_batches(made.rows, budget, shared_prompt=packed):
            assert len(members) == rows
            piece = take_rows(batch, torch.tensor(members), width=RESPONSE_TOKENS)
            forward = response_forward(policy.model, [made.rows[index] for index in members])
            report = optimizer.loss(replace(piece, logp_old=forward.logp.detach()), forward)
            report.loss.backward()
            total += float(report.loss.detach())
        policy.model.zero_grad(set_to_none=True)
        return total

    return update


def trl_arm(model: str, rows: int, checkpointing: bool) -> Callable[[], float]:
    import torch
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from assay.training.model import load_policy

    policy = load_policy(model)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        num_generations=GROUP,
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=checkpointing,
        report_to=[],
    )
    trained: Any = policy.model
    trainer = GRPOTrainer(
        model=trained,
        reward_funcs=_no_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 8}),
        processing_class=policy.tokenizer,
    )
    if checkpointing:
        trained.gradient_checkpointing_enable({"use_reentrant": False})
    trained.train()
    trainer.current_gradient_accumulation_steps = 1
    lines = tokens()
    rewards = torch.tensor([line[2] for line in lines]).view(-1, GROUP)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten()
    prompts, responses = (torch.tensor([line[kind] for line in lines]) for kind in (0, 1))

    def update() -> float:
        total = 0.0
        for first in range(0, len(lines), rows):
            part = slice(first, first + rows)
            loss = trainer._compute_loss(
                trained,
                {
                    "prompt_ids": prompts[part],
                    "prompt_mask": torch.ones_like(prompts[part]),
                    "completion_ids": responses[part],
                    "completion_mask": torch.ones_like(responses[part]),
                    "advantages": advantages[part],
                    "num_items_in_batch": torch.tensor(rows * RESPONSE_TOKENS),
                },
            )
            loss.backward()
            total += float(loss.detach()) * rows / len(lines)
        trained.zero_grad(set_to_none=True)
        return total

    return update


def _no_reward(completions: list[Any], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)


def measure(arm: str, model: str, rows: int, repeats: int, checkpointing: bool) -> dict[str, Any]:
    """Run one arm in this process."""
    from assay.training.threads import use_threads

    threads = use_threads()
    update = {"assay": assay_arm, "trl": trl_arm}[arm](model, rows, checkpointing)
    if repeats > 1:
        update()  # the first one pays for allocations and is not counted
    wall: list[float] = []
    cpu: list[float] = []
    loss = 0.0
    for _ in range(repeats):
        started, cpu_started = time.perf_counter(), time.process_time()
        loss = update()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "arm": arm,
        "rows": rows,
        "checkpointing": checkpointing,
        "seconds": round(min(wall), 3),
        "seconds_median": round(statistics.median(wall), 3),
        "cpu_seconds": round(min(cpu), 3),
        "peak_mib": round(peak / 1024),
        "loss": loss,
        "threads": threads,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Run both arms, each in a process of its own, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1, help="fresh processes per arm; the fastest counts")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--arm", choices=["assay", "trl"], help="run only this arm, in this process")
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(measure(options.arm, options.model, options.rows[0], options.repeats, options.checkpointing)))
        return
    for rows in options.rows:
        best: dict[str, dict[str, Any]] = {}
        for arm in ["trl", "assay"] * options.pairs:
            command = [sys.executable, __file__, "--arm", arm, "--rows", str(rows), "--model", options.model]
            command += ["--repeats", str(options.repeats), *(["--checkpointing"] if options.checkpointing else [])]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            print(output, flush=True)
            found = json.loads(output)
            if arm not in best or found["seconds"] < best[arm]["seconds"]:
                best[arm] = found
        ratio = {
            "rows": rows,
            "checkpointing": options.checkpointing,
            "time": round(best["assay"]["seconds"] / best["trl"]["seconds"], 3),
            "cpu_time": round(best["assay"]["cpu_seconds"] / best["trl"]["cpu_seconds"], 3),
            "memory": round(best["assay"]["peak_mib"] / best["trl"]["peak_mib"], 3),
            "target": TARGETS.get(rows),
        }
        print(json.dumps({"ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
