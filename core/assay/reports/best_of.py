"""Best-of-n from a pool of samples per problem: what a scorer's choice is worth beside votes and beside an oracle.

Every figure for n samples is the expectation over all subsets of size n of a problem's pool, so that the order of the
samples does not matter and no sample is wasted (algorithms.md 7: sort, weight C(i-1, n-1) / C(N, n)): exact for the
argmax and for pass@n, exact for the votes where a problem has at most `EXACT_SUBSETS` subsets, and the mean over that
many seeded ones elsewhere. Intervals are bootstrap intervals over problems.

A tie is shared: it counts as the mean over what is tied, which is the expectation of "the first wins" over the order
of the samples. `choose` itself, which must name one, takes the first.

A sample without a score is never chosen; a subset without any scored sample chooses nothing, which is not right, and
the share of such subsets is reported. A sample without a verdict (masked) takes part in nothing and is counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple

from assay.reports.resampling import Resampler
from assay.reports.statistics import Interval, pass_at_k

Aggregate = Literal["value", "min", "product", "last", "mean"]
"""How step scores become one score; `value` is the source's own value."""
AGGREGATES: tuple[Aggregate, ...] = ("value", "min", "product", "last", "mean")
EXACT_SUBSETS = 240
"""Subsets of one problem that a vote is taken over: all of them, or so many drawn by the seed."""


class Sample(NamedTuple):
    """One response to a problem."""

    score: float | None
    """The scorer's number; None where it abstained or failed."""
    correct: bool | None
    """Whether the verdict source calls it right; None where that verdict is masked."""
    answer: str | None
    """Name of the class of equivalent answers; None where no answer can be read: it never votes."""
    length: int = 0
    """Characters of the response."""


class Estimate(NamedTuple):
    """A mean over problems with its interval."""

    interval: Interval | None
    """None where no problem has enough samples."""
    problems: int
    """Problems in the mean."""

    @property
    def value(self) -> float | None:
        """The mean."""
        return None if self.interval is None else self.interval.value

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        low, high = (None, None) if self.interval is None else self.interval[1:]
        return {"value": self.value, "low": low, "high": high, "problems": self.problems}


class Fall(NamedTuple):
    """The argmax is worth less with more samples."""

    fewer: int
    more: int
    drop: Interval
    """Mean loss from `fewer` to `more` samples, paired by problem; certain where its low end is above 0."""


@dataclass(frozen=True)
class BestOf:
    """Everything about one scorer on one pool."""

    sizes: tuple[int, ...]
    rows: Mapping[str, Mapping[int, Estimate]]
    """Strategy (`argmax`, `weighted vote`, `majority`, `any of n`) to n to its estimate."""
    first: Estimate
    """pass@1: the mean of all samples."""
    gain: Mapping[int, Estimate]
    """n to weighted vote minus majority, paired by problem."""
    falls: tuple[Fall, ...]
    length_correlation: float | None
    """Pearson correlation of score and length, both centred by problem; None where one of them never varies."""
    problems: int
    samples: int
    unscored: int
    """Samples with a verdict but without a score."""
    masked: int
    """Samples without a verdict, left out."""
    unread: int
    """Samples whose answer could not be read, which never vote."""
    unchosen: Mapping[int, float] = field(default_factory=dict[int, float])
    """n to the share of subsets in which nothing was scored."""
    squashed: bool = False
    """Whether votes are weighed by the logistic function of the scores, since some are negative."""

    @property
    def over_optimised(self) -> bool:
        """Whether the argmax certainly falls from some n to a larger one."""
        return any(fall.drop.low > 0 for fall in self.falls)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {
            "first": self.first.to_dict(),
            "strategies": {
                name: {str(n): estimate.to_dict() for n, estimate in row.items()} for name, row in self.rows.items()
            },
            "weighted_vote_minus_majority": {str(n): estimate.to_dict() for n, estimate in self.gain.items()},
            "over_optimised": self.over_optimised,
            "falls": [
                {"fewer": f.fewer, "more": f.more, "drop": f.drop.value, "low": f.drop.low, "high": f.drop.high}
                for f in self.falls
            ],
            "length_correlation": self.length_correlation,
            "problems": self.problems,
            "samples": self.samples,
            "unscored": self.unscored,
            "masked": self.masked,
            "unread": self.unread,
            "unchosen": {str(n): share for n, share in self.unchosen.items()},
            "votes_weighed_by": "logistic" if self.squashed else "score",
        }


def aggregate(steps: Sequence[float], how: Aggregate) -> float | None:
    """One score from step scores: check .9, .8, .6 gives min .6, product .432, last .6, mean .766667.

    None for no steps (there is nothing to aggregate) and for `value` (which is not made of steps).
    """
    if not steps or how == "value":
        return None
    if how == "min":
        return min(steps)
    if how == "product":
        return math.prod(steps)
    return steps[-1] if how == "last" else math.fsum(steps) / len(steps)


def choose(samples: Sequence[Sample]) -> int | None:
    """Index of the highest score, the first of equal ones; None where nothing is scored."""
    scored = [index for index, sample in enumerate(samples) if sample.score is not None]
    return max(scored, key=lambda index: (samples[index].score or 0.0, -index), default=None)


def best_of(
    problems: Sequence[Sequence[Sample]], sizes: Sequence[int], *, seed: int = 0, resamples: int = 1000
) -> BestOf:
    """The report of one scorer; `problems` are the pools, one per problem.

    Raises `ValueError` for a size below 1. A problem with fewer usable samples than n is left out of the row for n.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"best-of-n needs sizes of at least 1; found {list(sizes)}")
    sizes = tuple(sorted(set(sizes)))
    pools = [[sample for sample in pool if sample.correct is not None] for pool in problems]
    squashed = any(sample.score is not None and sample.score < 0 for pool in pools for sample in pool)
    resampler = Resampler(seed=seed, resamples=resamples)
    tables = {n: _Table.of(pools, n, squashed=squashed, seed=seed) for n in sizes}
    strategies: dict[str, Callable[[_Table], list[float]]] = {
        "argmax": lambda table: table.argmax,
        "weighted vote": lambda table: table.weighted,
        "majority": lambda table: table.majority,
        "any of n": lambda table: table.oracle,
    }
    everything = [sample for pool in problems for sample in pool]
    kept = [sample for pool in pools for sample in pool]
    return BestOf(
        sizes=sizes,
        rows={
            name: {n: _estimate(take(table), resampler) for n, table in tables.items()}
            for name, take in strategies.items()
        },
        first=_estimate([sum(bool(s.correct) for s in pool) / len(pool) for pool in pools if pool], resampler),
        gain={
            n: _estimate([w - m for w, m in zip(table.weighted, table.majority, strict=True)], resampler)
            for n, table in tables.items()
        },
        falls=tuple(_falls(tables, resampler)),
        length_correlation=_length_correlation(pools),
        problems=sum(bool(pool) for pool in pools),
        samples=len(kept),
        unscored=sum(sample.score is None for sample in kept),
        masked=len(everything) - len(kept),
        unread=sum(sample.answer is None for sample in kept),
        unchosen={n: _mean(table.unchosen) for n, table in tables.items() if table.unchosen},
        squashed=squashed,
    )


@dataclass(frozen=True)
class _Table:
    """Expected success of each strategy, one number per problem with enough samples."""

    places: list[int]
    """Which problems."""
    argmax: list[float] = field(default_factory=list[float])
    weighted: list[float] = field(default_factory=list[float])
    majority: list[float] = field(default_factory=list[float])
    oracle: list[float] = field(default_factory=list[float])
    unchosen: list[float] = field(default_factory=list[float])

    @classmethod
    def of(cls, pools: Sequence[Sequence[Sample]], n: int, *, squashed: bool, seed: int) -> _Table:
        table = cls([place for place, pool in enumerate(pools) if len(pool) >= n])
        for place in table.places:
            pool = pools[place]
            right = sum(bool(sample.correct) for sample in pool)
            chosen, nothing = expected_argmax(pool, n)
            table.argmax.append(chosen)
            table.unchosen.append(nothing)
            table.oracle.append(pass_at_k(len(pool), right, n))
            weighted, majority = _votes(pool, n, squashed=squashed, seed=f"{seed}:{place}:{n}")
            table.weighted.append(weighted)
            table.majority.append(majority)
        return table


def expected_argmax(pool: Sequence[Sample], n: int) -> tuple[float, float]:
    """Over all subsets of size n: the share whose best-scored sample is right, and the share with nothing scored."""
    total = math.comb(len(pool), n)
    ranks: dict[float, list[bool]] = {}
    for sample in pool:
        if sample.score is not None:
            ranks.setdefault(sample.score, []).append(bool(sample.correct))
    expected, left = 0.0, len(pool)
    for score in sorted(ranks, reverse=True):
        members = ranks[score]
        # Subsets whose best is in this rank: those without anything better, minus those without this rank as well.
        share = (math.comb(left, n) - math.comb(left - len(members), n)) / total
        expected += share * sum(members) / len(members)
        left -= len(members)
    return expected, math.comb(left, n) / total


def vote(samples: Sequence[Sample], *, weighted: bool, squashed: bool = False) -> float:
    """Share of right answers among those with the most votes (1 where one right class leads); 0 where nobody votes.

    A sample votes where its answer was read and, in a weighted vote, where it has a score.
    """
    votes: dict[str, float] = {}
    right: dict[str, list[bool]] = {}
    for sample in samples:
        if sample.answer is None or (weighted and sample.score is None):
            continue
        weight = 1.0 if not weighted or sample.score is None else logistic(sample.score) if squashed else sample.score
        votes[sample.answer] = votes.get(sample.answer, 0.0) + weight
        right.setdefault(sample.answer, []).append(bool(sample.correct))
    if not votes:
        return 0.0
    most = max(votes.values())
    leading = [sum(right[a]) / len(right[a]) for a, count in votes.items() if math.isclose(count, most, rel_tol=1e-12)]
    return sum(leading) / len(leading)


def logistic(score: float) -> float:
    """1 / (1 + exp(-score)), without overflow."""
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


def _votes(pool: Sequence[Sample], n: int, *, squashed: bool, seed: str) -> tuple[float, float]:
    weighted: list[float] = []
    majority: list[float] = []
    for subset in _subsets(len(pool), n, seed):
        members = [pool[index] for index in subset]
        weighted.append(vote(members, weighted=True, squashed=squashed))
        majority.append(vote(members, weighted=False))
    return _mean(weighted), _mean(majority)


def _subsets(size: int, n: int, seed: str) -> Iterator[Sequence[int]]:
    if math.comb(size, n) <= EXACT_SUBSETS:
        yield from combinations(range(size), n)
        return
    draw = random.Random(seed)  # noqa: S311 # a sample, not a secret
    for _ in range(EXACT_SUBSETS):
        yield draw.sample(range(size), n)


def _falls(tables: Mapping[int, _Table], resampler: Resampler) -> Iterator[Fall]:
    """Each n whose argmax is below that of the best smaller n, compared on the problems that both have."""
    sizes = sorted(tables)
    for more in sizes[1:]:
        theirs = dict(zip(tables[more].places, tables[more].argmax, strict=True))
        drops: list[tuple[float, int, list[float]]] = []
        for fewer in sizes[: sizes.index(more)]:
            ours = dict(zip(tables[fewer].places, tables[fewer].argmax, strict=True))
            paired = [ours[place] - theirs[place] for place in theirs if place in ours]
            if paired:
                drops.append((_mean(paired), fewer, paired))
        if drops:
            drop, fewer, paired = max(drops, key=lambda found: found[0])
            if drop > 1e-9:
                yield Fall(fewer, more, resampler.interval(paired))


def _length_correlation(pools: Sequence[Sequence[Sample]]) -> float | None:
    scores: list[float] = []
    lengths: list[float] = []
    for pool in pools:
        known = [(sample.score, float(sample.length)) for sample in pool if sample.score is not None]
        if known:
            mean_score, mean_length = _mean([score for score, _ in known]), _mean([length for _, length in known])
            scores += [score - mean_score for score, _ in known]
            lengths += [length - mean_length for _, length in known]
    spread = math.sqrt(math.fsum(s * s for s in scores) * math.fsum(x * x for x in lengths))
    if spread < 1e-12:
        return None
    return math.fsum(s * x for s, x in zip(scores, lengths, strict=True)) / spread


def _estimate(values: Sequence[float], resampler: Resampler) -> Estimate:
    return Estimate(resampler.interval(values) if values else None, len(values))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
