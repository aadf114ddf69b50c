"""Numbers for people: a mean never stands without its counts, and a share never without its interval."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        """For example `41.2 % [35.0, 47.7]`."""
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(successes: float, trials: float, *, z: float = 1.959964) -> Interval:
    """The share of successes with its Wilson score interval (Wilson 1927); `trials` must be positive."""
    if trials <= 0:
        raise ValueError("an interval needs at least one trial")
    share = successes / trials
    denominator = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def wilson_clustered(clusters: Sequence[tuple[float, int]], *, z: float = 1.959964) -> Interval:
    """The share of successes where trials come in clusters (several answers to one question), with its interval.

    Wilson's interval for as many independent trials as give the cluster-robust variance of the share
    `T / (T - 1) * sum_t (successes_t - share * trials_t)^2 / n^2` over T clusters (Liang and Zeger 1986): n_eff =
    share * (1 - share) / variance, between the number of clusters and n, and n itself where every cluster is one trial.
    A share of 0 or 1 says nothing about that variance and counts clusters. There must be a trial.

    Args:
        clusters: successes and trials of each.
        z: normal quantile of the level.
    """
    clusters = [cluster for cluster in clusters if cluster[1]]
    trials = sum(count for _, count in clusters)
    successes = math.fsum(right for right, _ in clusters)
    if trials <= len(clusters):
        return wilson(successes, trials, z=z)
    share, groups = successes / trials, len(clusters)
    spread = math.fsum((right - share * count) ** 2 for right, count in clusters) / trials**2
    variance = spread * groups / (groups - 1) if groups > 1 else 0.0
    effective = share * (1 - share) / variance if variance > 0 and groups > 1 else float(groups)
    effective = min(float(trials), max(float(groups), effective))
    return wilson(share * effective, effective, z=z)


def mean_interval(values: Sequence[float], *, z: float = 1.959964) -> Interval:
    """The mean with its normal interval from the standard error; no width for one value. `values` must not be empty."""
    mean = math.fsum(values) / len(values)
    half = z * (standard_error(values) or 0.0)
    return Interval(mean, mean - half, mean + half)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased pass@k of `n` samples with `correct` right ones (Chen et al. 2021, arXiv 2107.03374, section 2.1).

    `1 - prod_{i=n-c+1..n} (1 - k/i)`, and 1 if fewer than k are wrong. Raises `ValueError` when k exceeds n.
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= correct <= n and 1 <= k <= n; found n {n}, correct {correct}, k {k}")
    if n - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - correct + 1, n + 1))


class Tally(NamedTuple):
    """Counts of verdicts and the mean of the scored ones."""

    scored: int
    abstained: int
    failed: int
    mean: float | None
    """Mean over the scored alone, or None when nothing was scored."""

    def __str__(self) -> str:
        """For example `0.412 over 1,174 scored (21 abstained, 5 failed)`."""
        mean = "no mean" if self.mean is None else f"{self.mean:.3f}"
        return f"{mean} over {self.scored:,} scored ({self.abstained:,} abstained, {self.failed:,} failed)"


def tally(verdicts: Iterable[tuple[str, float | None]]) -> Tally:
    """The tally of (status, value) pairs."""
    scores: list[float] = []
    abstained = failed = 0
    for status, value in verdicts:
        if status == "scored" and value is not None:
            scores.append(value)
        elif status == "abstained":
            abstained += 1
        else:
            failed += 1
    mean = math.fsum(scores) / len(scores) if scores else None
    return Tally(len(scores), abstained, failed, mean)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean (ddof 1), or None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile by linear interpolation; `values` must not be empty."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
