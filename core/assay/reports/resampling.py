"""Bootstrap intervals of means over problems (Efron and Tibshirani 1993, percentile form), seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from assay.reports.statistics import Interval, quantile


class Resampler:
    """Draws the same resamples for every statistic over equally many problems, so that differences stay paired."""

    def __init__(self, *, seed: int = 0, resamples: int = 1000) -> None:
        """`resamples` draws by `seed`."""
        self._seed = seed
        self._resamples = resamples
        self._drawn: dict[int, list[list[int]]] = {}

    def interval(self, values: Sequence[float]) -> Interval:
        """The mean of `values` (at least one) with the 95 % percentile interval over resampled problems."""
        found = self.statistic(len(values), lambda places: math.fsum(values[place] for place in places) / len(places))
        assert found is not None  # a mean of at least one value is always defined
        return found

    def statistic(self, count: int, compute: Callable[[Sequence[int]], float | None]) -> Interval | None:
        """`compute` of all of 0..count-1 with its interval; None where it is None for the whole or for every resample.

        Resamples for which it is None are left out.
        """
        whole = compute(range(count))
        found = [value for places in self._draws(count) if (value := compute(places)) is not None]
        if whole is None or not found:
            return None
        return Interval(whole, quantile(found, 0.025), quantile(found, 0.975))

    def _draws(self, count: int) -> list[list[int]]:
        if count not in self._drawn:
            source = random.Random(f"{self._seed}:{count}")  # noqa: S311 # a sample, not a secret
            self._drawn[count] = [source.choices(range(count), k=count) for _ in range(self._resamples)]
        return self._drawn[count]
