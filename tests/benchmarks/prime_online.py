"""PRIME inside the loop beside outcome rewards alone, and a run on process rewards alone that hacks them.

    python tests/benchmarks/prime_online.py --out runs/prime [--seeds 1 2 3] [--rates 1e-4 3e-4 1e-3] [--steps 25]

The task is a chain of three small operations (`assay.testing.chains`), a line each; the policy is a tiny model that has
imitated a scripted one with misconceptions and is right about half of the time. Both arms are the optimizer `prime`
with the same tasks, seeds and rollouts; the arm `outcome` has no process reward, and so the plain leave-one-out
baseline. Every arm is trained at each rate of the same printed grid. A run's figure is the area under its curve: the
mean outcome of all its training rollouts.

The run `hacked` is paid by a step classifier alone, summed over steps: padding with good steps pays. Its policy has
imitated solutions of which one in twenty says its last step again, since what is never tried is never found. Its
report's suspects are printed, with the held-out accuracy before and after.

Units that are finished are kept in `--out`; the command goes on where it was ended. The last lines are the table and
the gate: the mean area of PRIME at its best rate is at least that of outcome rewards minus one standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from goes_on import finished

from assay.reports.suspects import Judged, drift, find_suspects
from assay.result import Run
from assay.testing.chains import Chains, wrong_steps
from assay.training.tiny import make_tiny_model

SHAPE: dict[str, Any] = {"hidden_size": 64, "layers": 3, "head_size": 16, "initial_std": 0.125, "max_positions": 128}
TRAINED, HELD_OUT, IMITATED = 800, 100, 6000
"""Problems of the loop, of its evaluation (less those that are also trained on), and of the solutions that are
imitated: one each, so that facts are learned and not solutions."""
LOOSE = 0.05
"""Share of solutions that say their last step again, once to three times: for the run on process rewards alone."""
GROUPS, GROUP_SIZE, LONGEST = 16, 4, 24
START_UPDATES, PRM_UPDATES = 500, 600
REWARD = Path(__file__).with_name("chain_reward.py")
OUTCOME: dict[str, Any] = {"use": "python", "path": f"{REWARD.absolute()}:right_answer"}
ARMS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "outcome": ([OUTCOME], {"use": "prime", "shaping": [], "baseline": "group_loo"}),
    "prime": (
        [OUTCOME, {"use": "prime", "beta": 0.5, "learning_rate": 3e-4}],
        {"use": "prime", "shaping": [{"use": "process_reward", "coefficient": 1.0}]},
    ),
}


def world(seed: int) -> Chains:
    """Chains of three digits' operations and a policy that has a fixed wrong value for a quarter of the facts."""
    return Chains(seed=seed, lengths=(3, 3), misconceived=0.25)


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The rows as JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_world(folder: Path, seed: int) -> None:
    """Tasks of training and of evaluation, and the scripted policy's solutions with the oracle's labels."""
    chains = world(seed)
    tasks = [chains.task(number) for number in range(TRAINED + HELD_OUT + IMITATED)]
    trained_on = {task.prompt for task in tasks[:TRAINED]}
    held = [task for task in tasks[TRAINED : TRAINED + HELD_OUT] if task.prompt not in trained_on]
    for name, part in (("train", tasks[:TRAINED]), ("held", held)):
        rows = [{"prompt": task.prompt, "reference": task.reference} for task in part]
        write_rows(folder / f"{name}.jsonl", rows)
    draw = random.Random(seed)
    texts: list[dict[str, Any]] = []
    loose: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for number, task in enumerate(tasks[TRAINED + HELD_OUT :]):
        text = chains.continued(task.prompt, "", seed=number)
        lines = text.split("\n")
        wrong = set(wrong_steps(task.prompt, lines))
        texts.append({"prompt": task.prompt, "response": text})
        again = [lines[-1]] * draw.randint(1, 3) if draw.random() < LOOSE else []
        loose.append({"prompt": task.prompt, "response": "\n".join([*lines, *again])})
        labels = [index not in wrong for index in range(len(lines))]
        steps.append({"problem": task.prompt, "steps": lines, "labels": labels})
    write_rows(folder / "texts.jsonl", texts)
    write_rows(folder / "loose.jsonl", loose)
    write_rows(folder / "steps.jsonl", steps)


def start_of(folder: Path, seed: int, texts: str = "texts") -> Path:
    """The policy before reinforcement: a tiny model that imitates the scripted one, by one of the files of texts."""
    if not (folder / "train.jsonl").is_file():
        write_world(folder, seed)
        make_tiny_model(folder / "fresh", seed=seed, **SHAPE)
    training = {
        "learning_rate": 5e-3, "batch_size": 64, "epochs": 100, "schedule": "linear", "warmup_steps": 50,
        "micro_batch_tokens": 8192, "head_chunk_tokens": 4096,
    }  # fmt: skip
    config = {
        "kind": "sft", "name": "start", "seed": seed, "policy": {"model": "fresh"}, "steps": START_UPDATES,
        "data": {"path": f"{texts}.jsonl", "holdout": 0.02}, "training": training,
        "checkpoint": {"every_steps": START_UPDATES, "keep": 1},
    }  # fmt: skip
    return finished(folder / f"start-{texts}", config, base_dir=folder).policy


def reward_model_of(folder: Path, start: Path, seed: int) -> Path:
    """A step classifier with the oracle's labels."""
    training = {"learning_rate": 1e-3, "batch_size": 32, "epochs": 100}
    config = {
        "kind": "prm", "name": "reward-model", "seed": seed, "model": {"base": str(start)}, "steps": PRM_UPDATES,
        "objective": {"use": "step"}, "splitter": {"by": "line"},
        "data": {"path": "steps.jsonl", "holdout": 0.02}, "training": training,
        "checkpoint": {"every_steps": PRM_UPDATES, "keep": 1},
    }  # fmt: skip
    return finished(folder / "reward-model", config, base_dir=folder).policy


def trained(folder: Path, start: Path, *, name: str, seed: int, rate: float, steps: int, arm: Any, **more: Any) -> Run:
    """One run of the loop."""
    rewards, optimizer = arm
    config = {
        "kind": "rlvr", "name": name, "seed": seed, "steps": steps,
        "policy": {"model": str(start)}, "tasks": {"use": "jsonl", "path": str(folder / "train.jsonl")},
        "engine": {"use": "transformers", "template": "plain", "group_size": GROUP_SIZE, "max_new_tokens": LONGEST},
        "rewards": rewards, "optimizer": {**optimizer, "learning_rate": rate},
        "loop": {"groups_per_step": GROUPS, "max_refill": 0}, "checkpoint": {"every_steps": steps, "keep": 1},
        **more,
    }  # fmt: skip
    return finished(folder / "loop" / f"{name}-{steps}", config, base_dir=folder)


def area(run: Run) -> float:
    """Mean outcome of all rollouts of a run, which is the area under its curve for equal batches."""
    values = [
        judgement.value or 0.0
        for item in run.rollouts()
        for judgement in item.judgements
        if judgement.source == "right_answer"
    ]
    return sum(values) / len(values)


def unit(result: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a unit found; one that is finished is read."""
    if not result.is_file():
        started = time.monotonic()
        facts = {**work(), "seconds": round(time.monotonic() - started, 1)}
        result.parent.mkdir(parents=True, exist_ok=True)
        result.with_suffix(".part").write_text(json.dumps(facts), encoding="utf-8")
        result.with_suffix(".part").replace(result)
        say(f"{result.stem}: {json.dumps(facts)}")
    return json.loads(result.read_text(encoding="utf-8"))


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def hacked(folder: Path, start: Path, seed: int, steps: int, rate: float) -> dict[str, Any]:
    """The run on process rewards alone: its suspects, what drifted, and held-out accuracy by the outcome."""
    model = reward_model_of(folder, start, seed)
    start = start_of(folder, seed, "loose")
    paid = {"use": "reward-model", "path": str(model), "aggregation": "sum", "on_candidate_fault": 0.0}
    evaluate = {"tasks": {"use": "jsonl", "path": str(folder / "held.jsonl")}, "by": OUTCOME}
    run = trained(
        folder, start, name="hacked", seed=seed, rate=rate, steps=steps, arm=([paid], {"use": "grpo"}),
        evaluate=evaluate, engine={
            "use": "transformers", "template": "plain", "group_size": 8, "max_new_tokens": 100,
        },
    )  # fmt: skip
    entries = [Judged(item.step, item.task, item.rollout, item.reward) for item in run.rollouts()]
    last = [entry for entry in entries if entry.step > steps - 5]
    rules = sorted({suspect.rule for suspect in find_suspects(last)})
    best = max(last, key=lambda entry: (entry.reward.value if entry.reward else None) or 0.0)
    means = [sum(v) / max(1, len(v)) for v in (values(entries, 1), values(last, None))]
    return {
        "rules": rules, "best paid": [best.task.prompt, best.rollout.text],
        "drift": drift(entries, run.evaluations), "process_reward": [round(mean, 3) for mean in means],
        "held_out": [line["pass@1"] for line in run.evaluations],
    }  # fmt: skip


def values(entries: Sequence[Judged], step: int | None) -> list[float]:
    """Rewards of one step, or of all."""
    chosen = (e.reward for e in entries if step is None or e.step == step)
    return [reward.value for reward in chosen if reward is not None and reward.value is not None]


def main() -> int:
    """0 where the gate holds and the hack is listed, 3 where not."""
    options = arguments()
    found: dict[tuple[str, float], list[float]] = {}
    hacks: list[dict[str, Any]] = []
    for seed in options.seeds:
        folder = (options.out / f"seed-{seed}").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        start = start_of(folder, seed)
        for name, arm in ARMS.items():
            for rate in options.rates:
                result = options.out / "units" / f"{name}-{rate:g}-{seed}-{options.steps}.json"
                more: dict[str, Any] = {"name": f"{name}-{rate:g}", "seed": seed, "rate": rate, "arm": arm}
                run = lambda: trained(folder, start, steps=options.steps, **more)  # noqa: B023, E731  # called at once
                facts = unit(result, lambda: {"area": area(run())})  # noqa: B023
                found.setdefault((name, rate), []).append(facts["area"])
        work = lambda: hacked(folder, start, seed, options.steps, options.hack_rate)  # noqa: B023, E731
        hacks.append(unit(options.out / "units" / f"hacked-{seed}-{options.steps}.json", work))
    return report(found, hacks, options.rates)


def report(
    found: Mapping[tuple[str, float], Sequence[float]], hacks: Sequence[Mapping[str, Any]], rates: Sequence[float]
) -> int:
    """Print the grid and the gate."""
    say("| arm | learning rate | area under the curve, each seed | mean | standard error |")
    say("|---|---|---|---|---|")
    best: dict[str, tuple[float, float]] = {}
    for (name, rate), areas in found.items():
        mean, error = spread(areas)
        best[name] = max(best.get(name, (-1.0, 0.0)), (mean, error))
        say(f"| {name} | {rate:g} | {', '.join(f'{value:.3f}' for value in areas)} | {mean:.3f} | {error:.3f} |")
    (ours, _), (theirs, error) = best["prime"], best["outcome"]
    holds = ours >= theirs - error
    say(
        f"best of the grid: prime {ours:.3f}, outcome alone {theirs:.3f} +- {error:.3f}: {'holds' if holds else 'LOST'}"
    )
    listed = all(any("while held-out" in line for line in hack["drift"]) for hack in hacks)
    for hack in hacks:
        say(f"process reward alone: {json.dumps(hack)}")
    say(f"the hack is {'listed' if listed else 'NOT LISTED'} by the suspects' page")
    return 0 if holds and listed else 3


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/prime"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--hack-rate", type=float, default=3e-4)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
