"""Writes what the guide begins with: solutions with outcomes, pools to rank, labelled steps, and a small policy.

    python make_data.py [--problems 300] [--updates 600]

The task is chains of operations modulo 10, one step a line (`7+3=0`). The policy imitates a person with misconceptions:
some facts come out wrong most of the time, so that a majority of answers repeats the mistake.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.config.load import parse_config
from assay.config.run import SftConfig
from assay.fit import fit
from assay.result import Run
from assay.testing.chains import Chains, answer_of, sample_seed, wrong_steps
from assay.training.tiny import make_tiny_model

CHAINS = Chains(seed=1)
PER_PROBLEM = 4
POOL = 8
SHOWN = 5000
"""Problems of the solutions that the policy imitates."""


def solutions(first: int, problems: int, samples: int) -> Iterator[dict[str, Any]]:
    """Rows with `prompt`, `response`, `answer` and `label`: the answer of the task, and whether the response has it."""
    for number in range(first, first + problems):
        task = CHAINS.task(number)
        for sample in range(samples):
            text = CHAINS.continued(task.prompt, "", sample_seed(task.id, sample))
            yield {
                "id": f"{number}-{sample}",
                "prompt": task.prompt,
                "response": text,
                "answer": task.reference,
                "pred": answer_of(text),
                "label": answer_of(text) == task.reference,
            }


def labelled(first: int, problems: int) -> Iterator[dict[str, Any]]:
    """Rows in ProcessBench's form: `label` is the index of the first wrong step, -1 for none."""
    for row in solutions(first, problems, 1):
        steps = row["response"].split("\n")
        wrong = wrong_steps(row["prompt"], steps)
        yield {"id": row["id"], "problem": row["prompt"], "steps": steps, "label": wrong[0] if wrong else -1}


def write(path: str, rows: Iterator[dict[str, Any]]) -> None:
    """One JSON object a line."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def teach(updates: int) -> None:
    """A policy of 154 thousand parameters in `policy/`, which imitates one solution of each of many other problems.

    Of few problems it would learn the solutions, not the facts, and its continuations would tell nothing.
    """
    if Path("policy").exists():
        return
    make_tiny_model(Path("start"), hidden_size=64, layers=3, head_size=16, initial_std=0.125, max_positions=128)
    config = parse_config(
        {
            "kind": "sft",
            "name": "policy",
            "policy": {"model": "start"},
            "data": {"path": "shown.jsonl", "holdout": 0.02},
            "training": {
                "batch_size": 64,
                "epochs": 99,
                "learning_rate": 5e-3,
                "schedule": "cosine",
                "warmup_steps": 50,
                "micro_batch_tokens": 8192,
                "head_chunk_tokens": 4096,
            },
            "steps": updates,
            "evaluate": {"every_steps": updates},
            "checkpoint": {"every_steps": updates},
        }
    )
    assert isinstance(config, SftConfig)
    run = fit(config)
    assert run is not None
    shutil.copytree(Run(run).policy, "policy")


def main() -> None:
    """Write everything into the working folder."""
    parser = argparse.ArgumentParser(description="Data and a policy for the guide.")
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--updates", type=int, default=600)
    given = parser.parse_args()
    write("solutions.jsonl", solutions(0, given.problems, PER_PROBLEM))
    write("pools.jsonl", solutions(100_000, max(8, given.problems // 3), POOL))
    write("steps.jsonl", labelled(200_000, max(60, given.problems)))
    write("shown.jsonl", solutions(200_000, SHOWN, 1))
    teach(given.updates)


if __name__ == "__main__":
    main()
