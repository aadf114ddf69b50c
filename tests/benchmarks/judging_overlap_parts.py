"""How much of judging hides behind the rest with real parts in one panel, beside scripted parts of the same lengths.

    python tests/benchmarks/judging_overlap_parts.py [--model NAME] [--steps 5] [--groups 8] [--tokens 24]

The transformers engine draws 8 answers to each of `--groups` questions; each answer is judged by `math` in worker
processes, by a reward model that was trained here for the purpose, and by `code` in the best sandbox that works here
(the answer is one line of a program, which is run and tested). One JSON line per staleness: seconds per step, of each
stage and of judging alone, the share of judging that other stages hid (first and last step left out: the one warms up,
beside the other nothing more is sampled), and calls and latencies per source; then the same with scripted parts whose
stages take as long as the real ones did.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import judging_overlap

import assay
from assay.config.load import parse_config
from assay.training.tiny import make_tiny_model

SOLVED = "# max(31, 84, 57)\nlargest = 84\n\n# max(62, 19, 45)\nlargest = 62\n\n# max(23, 48, 76)\nlargest = 76\n\n"
SIZE = 8


def questions(count: int) -> list[dict[str, Any]]:
    """Questions whose answers are an equation for `math` and a program for `code`."""
    draw = random.Random(1)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        given = draw.sample(range(10, 99), 3)
        rows.append(
            {
                "id": f"q{number}",
                "question": f"{SOLVED}# max({given[0]}, {given[1]}, {given[2]})\n",
                "answer": str(max(given)),
                "tests": {"kind": "assert", "code": f"assert largest == {max(given)}"},
            }
        )
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def train_reward_model(folder: Path) -> Path:
    """A reward model that says whether an answer is the largest number; a tiny one, trained in seconds."""
    draw = random.Random(2)
    rows: list[dict[str, Any]] = []
    for _ in range(200):
        given = draw.sample(range(10, 99), 3)
        asked = f"max({given[0]}, {given[1]}, {given[2]}) ="
        rows += [{"prompt": asked, "response": f" {number}", "label": number == max(given)} for number in given]
    write_rows(folder / "labels.jsonl", rows)
    config = {
        "kind": "prm",
        "name": "largest",
        "runs_dir": str(folder / "runs"),
        "model": {"base": str(make_tiny_model(folder / "base", seed=1, hidden_size=64))},
        "data": {"path": str(folder / "labels.jsonl"), "holdout": 0.1},
        "objective": {"use": "outcome"},
        "training": {"batch_size": 32, "learning_rate": 1e-3},
        "steps": 20,
    }
    run: Any = assay.train(parse_config(config))
    return Path(run.policy)


def run_real(folder: Path, given: argparse.Namespace, reward_model: Path, staleness: int) -> dict[str, Any]:
    """The figures of one run of `assay train`."""
    columns = {"prompt": "question", "reference": "answer", "facts": ["tests"]}
    config = {
        "kind": "rlvr",
        "name": f"overlap-{staleness}",
        "steps": given.steps,
        "runs_dir": str(folder / "runs"),
        "policy": {"model": given.model},
        "tasks": {"use": "jsonl", "path": str(folder / "tasks.jsonl"), "columns": columns},
        "engine": {
            "use": "transformers",
            "template": "plain",
            "group_size": SIZE,
            "max_new_tokens": given.tokens,
            "max_rows": given.rows,
            "stop": ["\n\n"],
        },
        "rewards": [
            {"use": "math"},
            {"use": "reward-model", "path": str(reward_model), "weight": 0.1},
            {"use": "code", "weight": 0.1},
        ],
        "optimizer": {"use": "dr_grpo", "learning_rate": 1e-5},
        "loop": {"groups_per_step": given.groups, "max_staleness": staleness},
        "checkpoint": {"every_steps": 10_000},
    }
    run: Any = assay.train(parse_config(config))
    lines: list[dict[str, Any]] = run.metrics[1:-1]

    def mean(name: str) -> float:
        return sum(line.get(name, 0.0) for line in lines) / len(lines)

    sources = ("math", "reward-model", "code")
    last = lines[-1]
    figures = {
        name: round(mean(name), 3) for name in ("sample_s", "judge_s", "train_s", "judge_hidden", "judge_exposed_s")
    }
    per_source = {
        name: {key: round(last[f"judge.{name}/{key}"], 2) for key in ("p50_ms", "p95_ms", "calls", "scored", "cached")}
        for name in sources
    }
    return {**figures, "rollouts": given.groups * SIZE, **per_source}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rows", type=int, default=32)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        judging_overlap.offer_source(text)
        write_rows(folder / "tasks.jsonl", questions(given.groups * (given.steps + 2)))
        reward_model = train_reward_model(folder)
        for staleness in (0, 1):
            load = os.getloadavg()
            real = run_real(folder, given, reward_model, staleness)
            said = {"benchmark": Path(__file__).stem, "load": load, "staleness": staleness}
            print(json.dumps({**said, "parts": "real", **real}), flush=True)
            cost_s = real["judge_s"] * judging_overlap.CONCURRENCY / (judging_overlap.GROUPS * judging_overlap.SIZE)
            scripted = asyncio.run(
                judging_overlap.measure(cost_s, staleness, given.steps, real["sample_s"], real["train_s"])
            )
            print(json.dumps({**said, "parts": "scripted", **scripted}), flush=True)


if __name__ == "__main__":
    main()
