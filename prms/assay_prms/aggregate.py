"""Scores of steps become one score of a response, or credit for each step; pure Python, no torch.

Aggregation serves ranking and reading; credit serves reinforcement learning. Empty lists have no aggregate: the caller
abstains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Aggregation = Literal["min", "product", "last", "mean", "sum"]
"""PRM800K: product; Math-Shepherd: min; VersaPRM: min, last or mean; implicit models' shares of q: min or sum."""
Credit = Literal["none", "final", "sum", "min"]
"""`none`: step scores as they are; `final`: the whole at the last step; `sum`: each step pays its own value, so that
padding with good steps pays (the known hack); `min`: capped by the weakest step (PURE, arXiv 2504.15275)."""


def aggregate(values: Sequence[float], how: Aggregation) -> float:
    """One number of a response's step scores; check: .9, .8, .6 give product .432, min .6, last .6, mean .766667.

    Raises:
        ValueError: there is no step.
    """
    if not values:
        raise ValueError("no step has a score; abstain instead")
    if how == "min":
        return min(values)
    if how == "product":
        return math.prod(values)
    if how == "last":
        return values[-1]
    return math.fsum(values) / (len(values) if how == "mean" else 1)


def credit(values: Sequence[float], how: Credit, *, temperature: float = 0.1) -> list[float]:
    """One part per step of a response's values.

    For `min` the values should lie in [-1, 1] (p(good) - p(bad)): part_k = v_k x softmax(-v / temperature)_k, a softly
    weighted minimum, so that no number of good steps outweighs a bad one. check: .8, -.2, .5 give .00004, -.19981,
    .00046, together -.19932.
    """
    if not values:
        return []
    if how == "final":
        return [0.0] * (len(values) - 1) + [values[-1]]
    if how == "min":
        low = min(values)
        weights = [math.exp((low - value) / temperature) for value in values]
        whole = math.fsum(weights)
        return [value * weight / whole for value, weight in zip(values, weights, strict=True)]
    return list(values)


def token_baseline(rewards: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> list[list[float]]:
    """Step rewards of a group minus (mean reward per *token* of the other responses) x tokens of the step.

    A mean per step would let the policy win by merging steps (PURE#2). One list per response in both arguments; a group
    of one, or one whose others have no tokens, keeps its rewards.
    """
    totals = [math.fsum(response) for response in rewards]
    counts = [sum(response) for response in tokens]
    found: list[list[float]] = []
    for index, (steps, sizes) in enumerate(zip(rewards, tokens, strict=True)):
        others = sum(counts) - counts[index]
        per_token = (math.fsum(totals) - totals[index]) / others if others else 0.0
        found.append([reward - per_token * size for reward, size in zip(steps, sizes, strict=True)])
    return found
