"""Checks that an answer is three lines of five, seven and five syllables."""

import re
from typing import Any

from assay import Component, RewardSource, Rollout, Task, Verdict, hookimpl, verifier


@verifier("haiku", summary="the answer is three lines of 5, 7 and 5 syllables")
def haiku(task: Task, rollout: Rollout) -> Verdict:
    """Score the share of lines with the right number of syllables; abstain when nothing is written."""
    lines = [line for line in rollout.text.splitlines() if line.strip()]
    if not lines:
        return Verdict.abstain("the answer is empty")
    counts = [len(re.findall(r"[aeiouy]+", line.lower().removesuffix("e"))) for line in lines]
    right = sum(a == b for a, b in zip(counts, (5, 7, 5), strict=False)) if len(lines) == 3 else 0
    return Verdict.score(right / 3, evidence=f"syllables per line {counts}; wanted [5, 7, 5]")


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer this package's verifiers."""
    return [haiku]
