"""A Bradley-Terry model trained here drives PPO with adaptive KL on a task that has no verifier.

    python tests/benchmarks/reward_model_ppo.py --out runs/preference-ppo [--seeds 1 2 3] [--steps 50] [--target 12]

The task: write twelve letters. A gold utility that only this script knows is highest for four a's, -((a - 4) / 4)^2.
The policy before training writes about one a, so that its samples, which make all preference pairs (with the noise of a
Bradley-Terry judge), only ever say "more is better": the reward model learns that, and past four it is wrong. PPO
maximises the reward model under a KL coefficient that a controller moves towards `--target` nats per response.

Printed per seed: the reward model's held-out accuracy, and proxy and gold against the KL from the start; then the
over-optimisation point: where smoothed gold is highest, and what was lost behind it while the proxy rose. `curves.html`
in `--out` draws both curves. Finished seeds are kept; the command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import assay
from assay import runs
from assay.config.load import parse_config
from assay.fit import fit
from assay.reports.charts import line_chart
from assay.result import Run
from assay.training.tiny import make_tiny_model

LETTERS, LENGTH, SHARE, BEST = "bcdefgh", 12, 0.1, 4
PROMPTS = [f"{number}:" for number in range(16)]
PAIRS, START_UPDATES, MODEL_UPDATES = 1500, 600, 250
SMOOTH = 7


class Point(NamedTuple):
    """One update's rollouts."""

    kl: float
    """Nats per response from the start."""
    proxy: float
    """Mean score of the reward model."""
    gold: float
    """Mean gold utility."""


class Optimum(NamedTuple):
    """Where smoothed gold is highest along the run, and what became of it."""

    kl: float
    gold: float
    last_gold: float
    proxy: float
    last_proxy: float

    @property
    def over_optimised(self) -> bool:
        """Whether gold fell behind that point while the proxy went on rising."""
        return self.last_gold < self.gold - 0.05 and self.last_proxy > self.proxy


def gold(text: str) -> float:
    """The utility that nobody but this script knows."""
    return -(((text.count("a") - BEST) / BEST) ** 2)


def write_world(folder: Path, seed: int) -> None:
    """What the policy imitates, the prompts, and pairs of its imitations judged with a Bradley-Terry judge's noise."""
    draw = random.Random(f"{seed}:letters")

    def text() -> str:
        return "".join("a" if draw.random() < SHARE else draw.choice(LETTERS) for _ in range(LENGTH))

    shown = [{"prompt": prompt, "response": text()} for prompt in PROMPTS for _ in range(200)]
    pairs: list[dict[str, str]] = []
    while len(pairs) < PAIRS:
        first, second = text(), text()
        if draw.random() < 1 / (1 + math.exp(6 * (gold(second) - gold(first)))):
            chosen, rejected = first, second
        else:
            chosen, rejected = second, first
        pairs.append({"prompt": draw.choice(PROMPTS), "chosen": chosen, "rejected": rejected})
    for name, rows in (("shown", shown), ("pairs", pairs), ("prompts", [{"prompt": each} for each in PROMPTS])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def fitted(folder: Path, name: str, config: dict[str, Any], updates: int) -> Run:
    """A finished run of training from examples in this folder."""
    where = folder / name
    found = runs.run_folders(where) if where.is_dir() else []
    if not found or not is_done(found[-1]):
        training = {"batch_size": 32, "epochs": 1000, "learning_rate": 2e-3, "schedule": "linear"}
        config = {
            "name": name, "runs_dir": str(where), "steps": updates, "training": training,
            "checkpoint": {"every_steps": updates, "keep": 1}, **config,
        }  # fmt: skip
        parsed: Any = parse_config(config)
        fit(parsed, base_dir=folder, resume=found[-1] if found else None)
    (*_, last) = runs.run_folders(where)
    if not is_done(last):
        sys.exit(f"{last.name} was ended; the same command goes on")
    return Run(last)


def is_done(run: Path) -> bool:
    """Whether a run came to its end."""
    outcome = run / runs.OUTCOME
    return outcome.is_file() and json.loads(outcome.read_text("utf-8"))["status"] == "done"


def one_seed(folder: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train the start, the reward model and the policy; the curve and what it came to."""
    if not (folder / "pairs.jsonl").is_file():
        write_world(folder, seed)
        make_tiny_model(folder / "fresh", seed=seed, hidden_size=64, layers=2, max_positions=64)
    data = {"path": "shown.jsonl", "holdout": 0.0}
    start = fitted(
        folder, "start", {"kind": "sft", "seed": seed, "policy": {"model": "fresh"}, "data": data}, START_UPDATES
    )
    config = {
        "kind": "prm", "seed": seed, "model": {"base": str(start.policy)},
        "objective": {"use": "bradley_terry", "centring": 0.01},
        "data": {"path": "pairs.jsonl", "holdout": 0.1, "split_by": "chosen"},
    }  # fmt: skip
    model = fitted(folder, "reward-model", config, MODEL_UPDATES)
    accuracy = model.evaluations[-1]["held_out"]["accuracy"]
    run = ppo(folder, start.policy, model.policy, seed, options)
    curve = curve_of(run)
    return {"seed": seed, "accuracy": accuracy, "curve": curve, "optimum": optimum(curve)._asdict()}


def ppo(folder: Path, start: Path, model: Path, seed: int, options: argparse.Namespace) -> Run:
    """The run of the loop; no verifier, no gold."""
    adaptive = {"target": options.target, "horizon": 500}
    config = {
        "kind": "rlvr", "name": "ppo", "seed": seed, "steps": options.steps, "runs_dir": str(folder / "loop"),
        "policy": {"model": str(start)}, "tasks": {"use": "jsonl", "path": str(folder / "prompts.jsonl")},
        "engine": {"use": "transformers", "template": "plain", "group_size": 4, "max_new_tokens": 20},
        "rewards": [{"use": "reward-model", "path": str(model)}],
        "optimizer": {
            "use": "ppo", "learning_rate": options.rate,
            "shaping": [{"use": "kl_in_reward", "beta": 0.02, "adaptive": adaptive}],
        },
        "loop": {"groups_per_step": 16, "max_refill": 0}, "checkpoint": {"every_steps": options.steps, "keep": 1},
    }  # fmt: skip
    return assay.train(parse_config(config))  # type: ignore[arg-type]


def curve_of(run: Run) -> list[Point]:
    """KL, proxy and gold of every update's rollouts."""
    kl = {line["step"]: line["kl_ref_sequence"] for line in run.metrics}
    by_step: dict[int, list[tuple[float, float]]] = {}
    for item in run.rollouts():
        if item.reward is not None and item.reward.value is not None:
            by_step.setdefault(item.step, []).append((item.reward.value, gold(item.rollout.text)))
    return [
        Point(kl[step], statistics.fmean(proxy for proxy, _ in pairs), statistics.fmean(true for _, true in pairs))
        for step, pairs in sorted(by_step.items())
        if step in kl
    ]


def optimum(curve: Sequence[Point]) -> Optimum:
    """The over-optimisation point of a curve, every number a mean over a window of updates."""
    half = SMOOTH // 2
    windows = [curve[max(0, at - half) : at + half + 1] for at in range(len(curve))]
    smooth = [Point(*(statistics.fmean(column) for column in zip(*window, strict=True))) for window in windows]
    best = max(smooth, key=lambda point: point.gold)
    return Optimum(best.kl, best.gold, smooth[-1].gold, best.proxy, smooth[-1].proxy)


def report(results: Sequence[Mapping[str, Any]], out: Path) -> int:
    """Print the curves and the point of each seed, and draw them; 0 where every seed shows the point."""
    charts: list[str] = []
    holds = True
    for result in results:
        curve = [Point(*point) for point in result["curve"]]
        best = Optimum(**result["optimum"])
        say(f"seed {result['seed']}: reward model right on {result['accuracy']:.1%} of held-out pairs")
        say("| update | KL, nats | proxy | gold |")
        say("|---|---|---|---|")
        for at in sorted({*range(0, len(curve), max(1, len(curve) // 10)), len(curve) - 1}):
            point = curve[at]
            say(f"| {at + 1} | {point.kl:.2f} | {point.proxy:.2f} | {point.gold:.2f} |")
        fell = f"gold {best.gold:.2f} -> {best.last_gold:.2f}, proxy {best.proxy:.2f} -> {best.last_proxy:.2f}"
        say(f"{'over-optimised' if best.over_optimised else 'NOT over-optimised'} beyond {best.kl:.1f} nats: {fell}")
        holds = holds and best.over_optimised and best.gold > curve[0].gold
        ordered = sorted(curve)
        for name in ("proxy", "gold"):
            title = f"seed {result['seed']}: {name} against KL in nats per response"
            charts.append(line_chart(title, [p.kl for p in ordered], [getattr(p, name) for p in ordered]))
    page = '<!doctype html><meta charset="utf-8"><title>Proxy and gold</title>' + "\n".join(charts)
    (out / "curves.html").write_text(page, encoding="utf-8")
    return 0 if holds else 3


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run what is missing and report."""
    options = arguments()
    results: list[dict[str, Any]] = []
    for seed in options.seeds:
        folder = (options.out / f"seed-{seed}").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        result = folder / f"result-{options.steps}-{options.target:g}-{options.rate:g}.json"
        if not result.is_file():
            started = time.monotonic()
            facts = one_seed(folder, seed, options)
            result.with_suffix(".part").write_text(json.dumps(facts), encoding="utf-8")
            result.with_suffix(".part").replace(result)
            say(f"seed {seed}: {time.monotonic() - started:.0f} s")
        results.append(json.loads(result.read_text(encoding="utf-8")))
    return report(results, options.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/preference-ppo"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--target", type=float, default=12.0)
    parser.add_argument("--rate", type=float, default=5e-4)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
