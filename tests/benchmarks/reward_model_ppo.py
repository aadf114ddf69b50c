"""A Bradley-Terry model trained here drives PPO with adaptive KL on a task that has no verifier.

    python tests/benchmarks/reward_model_ppo.py --out runs/preference-ppo [--seeds 1 2 3] [--targets 3 12] [--steps 150]

The task: write about twelve letters. A gold utility that only this script knows is highest for four a's, -|a - 4| / 4.
The policy before training writes about one a, so that its samples, which make all preference pairs (with the noise of a
Bradley-Terry judge), only ever say "more is better": the reward model learns that, and past four it is wrong. PPO
maximises the reward model under a KL coefficient that a controller moves towards each of `--targets` nats per response:
a tight one, and a loose one under which the policy over-optimises.

Printed per seed: the reward model's held-out accuracy, and for each target proxy and gold against the KL from the
start, the KL of the last third of the updates beside its target, and the over-optimisation point: where smoothed gold
is highest, and what was lost behind it. `curves.html` in `--out` draws proxy and gold. Finished runs are kept; the
command goes on where it was ended. It ends with 0 where every last third stays within a factor of 1.5 of its target
and every seed is over-optimised under its loosest one, and with 3 where not.

What holds the target here: lengths that vary, since where every response of the start ends at the same letter one more
costs many nats at once; a first coefficient near the one that holds the target, since the controller lowers it for as
long as the policy has not come that far; a horizon of ten updates; and a score for cut-off responses near the lowest
that others get, beside whose default of -20 whitened advantages see nothing else.
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

from goes_on import finished

from assay.reports.charts import line_chart
from assay.result import Run
from assay.training.tiny import make_tiny_model

LETTERS, SHARE, BEST = "bcdefgh", 0.1, 4
SHORTEST, ENDS, LONGEST = 8, 0.2, 40
"""Letters before the first end, the chance of an end after each further one, and where responses are cut off."""
PROMPTS = [f"{number}:" for number in range(16)]
PAIRS, START_UPDATES, MODEL_UPDATES = 6000, 600, 800
GROUPS, GROUP_SIZE = 16, 4
COEFFICIENT, HORIZON, CUT_OFF = 0.125, 10 * GROUPS * GROUP_SIZE, -3.0
"""The first KL coefficient, the controller's horizon in responses, and the score of a response that was cut off."""
SMOOTH = 7
NEAR = 1.5
"""The factor within which the mean KL of the last third of a run must stay of its target."""


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
    return -abs(text.count("a") - BEST) / BEST


def write_world(folder: Path, seed: int) -> None:
    """What the policy imitates, the prompts, and pairs of its imitations judged with a Bradley-Terry judge's noise."""
    draw = random.Random(f"{seed}:letters")

    def text() -> str:
        length = SHORTEST
        while draw.random() >= ENDS:
            length += 1
        return "".join("a" if draw.random() < SHARE else draw.choice(LETTERS) for _ in range(length))

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


def fitted(folder: Path, name: str, config: Mapping[str, Any], updates: int) -> Run:
    """A finished run of training from examples in this folder."""
    training = {"batch_size": 32, "epochs": 1000, "learning_rate": 2e-3, "schedule": "linear"}
    config = {
        "name": name, "steps": updates, "training": training, "checkpoint": {"every_steps": updates, "keep": 1},
        **config,
    }  # fmt: skip
    return finished(folder / name, config, base_dir=folder)


def prepared(folder: Path, seed: int) -> tuple[Path, Path, float]:
    """The policy of before, the reward model, and its accuracy on held-out pairs."""
    if not (folder / "prompts.jsonl").is_file():  # what is written last
        folder.mkdir(parents=True, exist_ok=True)
        make_tiny_model(folder / "fresh", seed=seed, hidden_size=64, layers=2, max_positions=64)
        write_world(folder, seed)
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
    return start.policy, model.policy, model.evaluations[-1]["held_out"]["accuracy"]


def ppo(folder: Path, start: Path, model: Path, seed: int, target: float, options: argparse.Namespace) -> Run:
    """The run of the loop; no verifier, no gold."""
    config = {
        "kind": "rlvr", "name": "ppo", "seed": seed, "steps": options.steps,
        "policy": {"model": str(start)}, "tasks": {"use": "jsonl", "path": str(folder / "prompts.jsonl")},
        "engine": {
            "use": "transformers", "template": "plain", "group_size": GROUP_SIZE, "max_new_tokens": LONGEST,
        },
        "rewards": [{"use": "reward-model", "path": str(model), "on_candidate_fault": CUT_OFF}],
        "optimizer": {
            "use": "ppo", "learning_rate": options.rate,
            "shaping": [{
                "use": "kl_in_reward", "beta": COEFFICIENT, "adaptive": {"target": target, "horizon": HORIZON},
            }],
        },
        "loop": {"groups_per_step": GROUPS, "max_refill": 0},
        "checkpoint": {"every_steps": options.steps, "keep": 1},
    }  # fmt: skip
    return finished(folder / f"ppo-{options.steps}-{target:g}-{options.rate:g}", config, base_dir=folder)


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


def last_third(curve: Sequence[Point]) -> float:
    """Mean KL of the last third of the updates."""
    return statistics.fmean(point.kl for point in curve[-(len(curve) // 3) :])


def report(results: Sequence[Mapping[str, Any]], out: Path) -> int:
    """Print the curves, the KL beside its target and the point of each run, and draw them; 0 where all gates hold."""
    charts: list[str] = []
    holds = True
    loosest = max(result["target"] for result in results)
    for result in results:
        curve = [Point(*point) for point in result["curve"]]
        best, target, kl = optimum(curve), result["target"], last_third(curve)
        name = f"seed {result['seed']}, target {target:g} nats"
        say(f"{name}: reward model right on {result['accuracy']:.1%} of held-out pairs")
        say("| update | KL, nats | proxy | gold |")
        say("|---|---|---|---|")
        for at in sorted({*range(0, len(curve), max(1, len(curve) // 10)), len(curve) - 1}):
            point = curve[at]
            say(f"| {at + 1} | {point.kl:.2f} | {point.proxy:.2f} | {point.gold:.2f} |")
        near = target / NEAR <= kl <= target * NEAR
        say(f"KL of the last third {kl:.2f}, {kl / target:.2f} times its target: {'holds' if near else 'LOST'}")
        fell = f"gold {best.gold:.2f} -> {best.last_gold:.2f}, proxy {best.proxy:.2f} -> {best.last_proxy:.2f}"
        say(f"{'over-optimised' if best.over_optimised else 'not over-optimised'} beyond {best.kl:.1f} nats: {fell}")
        turns = target < loosest or (best.over_optimised and best.gold > curve[0].gold)
        holds = holds and near and turns
        ordered = sorted(curve)
        for column in ("proxy", "gold"):
            title = f"{name}: {column} against KL in nats per response"
            charts.append(line_chart(title, [p.kl for p in ordered], [getattr(p, column) for p in ordered]))
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
        start, model, accuracy = prepared(folder, seed)
        for target in options.targets:
            started = time.monotonic()
            run = ppo(folder, start, model, seed, target, options)
            say(f"seed {seed}, target {target:g}: {time.monotonic() - started:.0f} s")
            results.append({"seed": seed, "target": target, "accuracy": accuracy, "curve": curve_of(run)})
    return report(results, options.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/preference-ppo"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--targets", type=float, nargs="+", default=[3.0, 12.0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rate", type=float, default=3e-4)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
