"""Which phase bounds the steps of a run, and what to change: pure, from the lines of `metrics.jsonl`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PHASES = {"sample_s": "sampling", "judge_exposed_s": "judging", "train_s": "training", "publish_s": "publishing"}
"""Numbers of a step to the phase that they are seconds of; of judging only what nothing else was going on beside."""
WARM_UP = 1
"""Steps at the beginning that are left out: models load and caches fill in them."""
LONG = 0.25
"""Share of a step from which a phase is worth a sentence."""


class Bound(NamedTuple):
    """What a run's steps were made of."""

    steps: int
    """Steps that were looked at."""
    seconds: dict[str, float]
    """Median seconds of a step by phase; phases may lie over each other."""
    phase: str
    """The phase that took longest."""
    advice: tuple[str, ...]
    """What to change, most useful first."""


def find_bound(lines: Sequence[Mapping[str, Any]], *, max_staleness: int) -> Bound | None:
    """What bounds the steps in `lines`; None where no line has times."""
    timed = [line for line in lines if all(name in line for name in PHASES)]
    timed = timed[WARM_UP:] or timed
    if not timed:
        return None
    seconds = {word: statistics.median(float(line[name]) for line in timed) for name, word in PHASES.items()}
    phase = max(seconds, key=lambda word: seconds[word])
    judging = statistics.median(float(line.get("judge_s", 0.0)) for line in timed)
    return Bound(len(timed), seconds, phase, tuple(_advice(seconds, judging, timed, max_staleness)))


def _advice(
    seconds: Mapping[str, float], judging: float, lines: Sequence[Mapping[str, Any]], max_staleness: int
) -> list[str]:
    sampling, training = seconds["sampling"], seconds["training"]
    whole = max(sum(seconds.values()) if max_staleness == 0 else max(seconds.values()), 1e-9)
    found: list[str] = []
    if max_staleness == 0 and min(sampling, training) > LONG * whole:
        saved = min(sampling, training) / whole
        found.append(
            f"sampling and training take turns: loop.max_staleness = 1 lays them over each other and saves up to "
            f"{saved:.0%} of a step, where they do not share a device; with it, importance_correction = 'token'"
        )
    if seconds["judging"] > LONG * whole:
        found.append(
            "judging is waited for: more judging.workers or a larger source concurrency, a cheaper source in front of "
            "a dear one (combine = 'gate' or 'cascade'), or judging.ray for workers on other machines"
        )
    elif judging > sampling:
        found.append(
            f"judging takes {judging:.1f} s of a step and is hidden behind other work only in part: it is the next to "
            "bound the run when sampling gets faster; more judging.workers keep it hidden"
        )
    if sampling > 2 * training and sampling > LONG * whole:
        found.append(
            "sampling bounds the run: engine 'vllm', more rows at a time (engine.max_rows), a lower max_new_tokens "
            "where answers are cut off seldom, or engine.ray for engines on other machines"
        )
    if training > 2 * sampling and training > LONG * whole:
        found.append(
            "training bounds the run: fewer optimizer.epochs, larger micro_batch_tokens, packing = 'auto', or "
            "torchrun for several processes"
        )
    if seconds["publishing"] > LONG * whole:
        found.append("publishing weights takes a good part of a step: runs_dir on a faster disk, or more groups a step")
    waste = statistics.median(
        1.0 - float(line["kept_groups"]) / max(1.0, float(line["groups"])) for line in lines if "kept_groups" in line
    )
    if waste > LONG:
        found.append(
            f"{waste:.0%} of the groups are dropped before the update: easier or harder tasks, larger groups, or a "
            "task sampler that leaves out what is always solved"
        )
    return found or ["no phase stands out: what is left is the machine"]
