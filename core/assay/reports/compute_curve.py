"""ScaleRL's compute curve: reward against compute as a sigmoid in log compute, fitted by least squares."""

import math
from collections.abc import Sequence
from typing import NamedTuple

MIN_POINTS = 8
"""A curve of three free numbers is not fitted to fewer points."""


class ComputeCurve(NamedTuple):
    """R(C) = start + (ceiling - start) / (1 + (midpoint / C)^steepness) (ScaleRL, arXiv 2510.13786, equation 1)."""

    start: float
    """Reward before training: the mean of the first twentieth of the points, at least one."""
    ceiling: float
    """A: what the reward tends to with more compute; between the start and 1 where rewards are, else unbounded."""
    midpoint: float
    """C_mid: compute at which half of the gain is reached, in the unit of the points (sampled tokens)."""
    steepness: float
    """B: above 0; larger is more efficient."""
    residual: float
    """Root of the mean squared residual."""
    points: int
    reached: float
    """Share of the gain that the curve has at the last point; below about one half the ceiling is a guess."""

    def at(self, compute: float) -> float:
        """The curve's reward at this compute."""
        return self.start + (self.ceiling - self.start) * _share(compute, self.midpoint, self.steepness)


def fit_compute_curve(points: Sequence[tuple[float, float]]) -> ComputeCurve | None:
    """The curve of (compute, reward) points, or None for fewer than `MIN_POINTS` points.

    For a given midpoint and steepness the best ceiling is known in closed form, so the search is over two numbers: a
    grid over log midpoint and log steepness that is narrowed around its best cell six times. The ceiling is kept
    between the lowest reward and 1 where all rewards lie in [0, 1]. Compute must be positive.
    """
    if len(points) < MIN_POINTS:
        return None
    if min(c for c, _ in points) <= 0:
        raise ValueError("a compute curve needs positive compute")
    early = points[: max(1, len(points) // 20)]
    start = math.fsum(r for _, r in early) / len(early)
    cap = 1.0 if all(0.0 <= r <= 1.0 for _, r in points) else math.inf
    low_c, high_c = math.log(points[0][0]), math.log(points[-1][0] * 30)
    low_b, high_b = math.log(0.2), math.log(12.0)
    best = (math.inf, 0.0, 0.0, 0.0)
    for _ in range(7):
        wide_c, wide_b = (high_c - low_c) / 14, (high_b - low_b) / 14
        for i in range(15):
            for j in range(15):
                c, b = low_c + i * wide_c, low_b + j * wide_b
                error, gain = _best_gain(points, start, cap, math.exp(c), math.exp(b))
                best = min(best, (error, c, b, gain))
        low_c, high_c = best[1] - 1.5 * wide_c, best[1] + 1.5 * wide_c
        low_b, high_b = best[2] - 1.5 * wide_b, best[2] + 1.5 * wide_b
    error, c, b, gain = best
    midpoint, steepness = math.exp(c), math.exp(b)
    reached = _share(points[-1][0], midpoint, steepness)
    residual = math.sqrt(error / len(points))
    return ComputeCurve(start, start + gain, midpoint, steepness, residual, len(points), reached)


def _best_gain(
    points: Sequence[tuple[float, float]], start: float, cap: float, midpoint: float, steepness: float
) -> tuple[float, float]:
    """(sum of squared residuals, ceiling - start) of the best ceiling for this midpoint and steepness."""
    shares = [_share(compute, midpoint, steepness) for compute, _ in points]
    square = math.fsum(share * share for share in shares)
    gain = math.fsum(share * (r - start) for share, (_, r) in zip(shares, points, strict=True)) / max(square, 1e-12)
    gain = min(gain, cap - start)
    return math.fsum((start + gain * s - r) ** 2 for s, (_, r) in zip(shares, points, strict=True)), gain


def _share(compute: float, midpoint: float, steepness: float) -> float:
    exponent = steepness * (math.log(midpoint) - math.log(compute))
    return 1.0 / (1.0 + math.exp(min(700.0, exponent)))
