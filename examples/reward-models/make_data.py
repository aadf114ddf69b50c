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
    """A policy of 158 thousand parameters in `policy/`, which imitates the solutions."""
    if Path("policy").exists():
        return
    make_tiny_model(Path("start"), hidden_size=64, layers=3, max_positions=128)
    config = parse_config(
        {
            "kind": "sft",
            "name": "policy",
            "policy": {"model": "start"},
            "data": {"path": "solutions.jsonl"},
            "training": {"batch_size": 32, "epochs": 99, "learning_rate": 2e-3, "schedule": "cosine"},
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
    teach(given.updates)


if __name__ == "__main__":
    main()
