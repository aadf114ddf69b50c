"""Where is the first error: the ProcessBench protocol, and what else step scores are worth.

A row is a solution with its steps' scores and the index of its first wrong step (None where every step is right). At a
threshold, the prediction is the first step whose score lies below it. *Error accuracy* is the share of wrong solutions
whose first error is found exactly, *correct accuracy* the share of right solutions in which none is seen, and F1 their
harmonic mean (Zheng et al. 2024, arXiv 2412.06559, section 3). Whatever would be 0/0 is None, "not defined".

The threshold is fitted on the development half alone (`split_halves`: no problem is in both) and stored beside the
result. All functions are pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.reports.resampling import Resampler
from assay.reports.statistics import Interval, wilson


@dataclass(frozen=True)
class ScoredSteps:
    """One solution whose steps were all scored."""

    problem: str
    """What solutions to the same problem share; halves are split by it."""
    scores: tuple[float, ...]
    """One per step, at least one, in order; higher is better."""
    first_error: int | None
    """Index of the first wrong step from 0; None where every step is right."""
    wrong: tuple[int, ...] | None = None
    """Indices of all wrong steps where they are known; None where only the first is."""
    domain: str = ""
    """Subset or category that the row belongs to."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a row that contradicts itself."""
        if not self.scores or not all(math.isfinite(score) for score in self.scores):
            raise ValueError(f"a row needs finite scores, at least one; found {self.scores}")
        if self.first_error is not None and not 0 <= self.first_error < len(self.scores):
            raise ValueError(f"first_error is {self.first_error} with {len(self.scores)} steps")

    @property
    def labels(self) -> tuple[bool | None, ...]:
        """Whether each step is right; None after the first error where nothing more is known."""
        if self.wrong is not None:
            bad = frozenset(self.wrong)
            return tuple(index not in bad for index in range(len(self.scores)))
        if self.first_error is None:
            return (True,) * len(self.scores)
        after = len(self.scores) - self.first_error - 1
        return (True,) * self.first_error + (False,) + (None,) * after

    def prediction(self, threshold: float) -> int | None:
        """Index of the first step that scores below `threshold`, or None."""
        return next((index for index, score in enumerate(self.scores) if score < threshold), None)


class Fitted(NamedTuple):
    """A threshold and where it comes from; stored beside a reward model."""

    threshold: float
    rows: int
    """Rows of the development half; 0 where it was given instead of fitted."""
    f1: float | None
    """F1 on that half."""


@dataclass(frozen=True)
class FirstError:
    """First-error figures of one set of rows at one threshold; None is "not defined"."""

    threshold: Fitted
    error_accuracy: Interval | None
    """Wilson interval over the rows with an error."""
    correct_accuracy: Interval | None
    """Wilson interval over the rows without one."""
    f1: float | None
    f1_interval: Interval | None
    """Bootstrap interval over rows."""
    step_auc: float | None
    """Chance that a right step scores above a wrong one, ties one half."""
    calibration_error: float | None
    """Expected calibration error of step scores as probabilities, 10 equal bins; None where they are none."""
    with_error: int
    without_error: int
    unscored: int = 0
    """Rows that the source did not score, left out of every figure."""

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {
            "threshold": self.threshold.threshold,
            "threshold_fitted_on": self.threshold.rows,
            "threshold_f1": self.threshold.f1,
            "error_accuracy": _listed(self.error_accuracy),
            "correct_accuracy": _listed(self.correct_accuracy),
            "f1": self.f1,
            "f1_interval": _listed(self.f1_interval),
            "step_auc": self.step_auc,
            "calibration_error": self.calibration_error,
            "with_error": self.with_error,
            "without_error": self.without_error,
            "unscored": self.unscored,
        }


def first_error(
    rows: Sequence[ScoredSteps], threshold: Fitted | float, *, unscored: int = 0, seed: int = 0, resamples: int = 1000
) -> FirstError:
    """The figures of `rows` at a threshold that was fitted elsewhere (a plain number: given, not fitted)."""
    fitted = threshold if isinstance(threshold, Fitted) else Fitted(threshold, 0, None)
    hits = [row.prediction(fitted.threshold) == row.first_error for row in rows]
    wrong = [row.first_error is not None for row in rows]

    def f1_of(places: Sequence[int]) -> float | None:
        with_error = [hits[place] for place in places if wrong[place]]
        without = [hits[place] for place in places if not wrong[place]]
        return harmonic(_share(with_error), _share(without))

    value = f1_of(range(len(rows)))
    found = [hit for hit, is_wrong in zip(hits, wrong, strict=True) if is_wrong]
    clean = [hit for hit, is_wrong in zip(hits, wrong, strict=True) if not is_wrong]
    return FirstError(
        threshold=fitted,
        error_accuracy=wilson(sum(found), len(found)) if found else None,
        correct_accuracy=wilson(sum(clean), len(clean)) if clean else None,
        f1=value,
        f1_interval=Resampler(seed=seed, resamples=resamples).statistic(len(rows), f1_of) if rows else None,
        step_auc=step_auc(rows),
        calibration_error=calibration_error(rows),
        with_error=len(found),
        without_error=len(clean),
        unscored=unscored,
    )


def harmonic(left: float | None, right: float | None) -> float | None:
    """2ab / (a + b); None where a part is not defined or both are 0."""
    if left is None or right is None or left + right == 0:
        return None
    return 2 * left * right / (left + right)


def fit_threshold(rows: Sequence[ScoredSteps]) -> Fitted:
    """The threshold with the highest F1 on `rows`, in the middle of the widest such stretch.

    A wrong row is found for thresholds in (score of its first error, lowest score before it], a right one for all up
    to its lowest score: one sweep over these ends sees every threshold that there is. Raises `ValueError` where a class
    is empty, since F1 is then defined for none of them.
    """
    errors = [row for row in rows if row.first_error is not None]
    changes: dict[float, tuple[int, int]] = {}
    for row in rows:
        place = row.first_error
        if place is None:
            _count(changes, min(row.scores), 0, -1)
            continue
        before = min(row.scores[:place], default=math.inf)
        if row.scores[place] < before:
            _count(changes, row.scores[place], 1, 0)
            if before < math.inf:
                _count(changes, before, -1, 0)
    found, clean = 0, len(rows) - len(errors)
    ends = sorted(changes)
    best: tuple[float, float, float] | None = None  # F1, width, threshold
    if errors and clean:  # below every score nothing is found, and every right row is right
        best = (0.0, 1.0, ends[0] - 0.5)
    for index, end in enumerate(ends):
        found, clean = found + changes[end][0], clean + changes[end][1]
        above = ends[index + 1] if index + 1 < len(ends) else end + 1.0
        f1 = harmonic(_ratio(found, len(errors)), _ratio(clean, len(rows) - len(errors)))
        threshold = end + (above - end) / 2
        # Two neighbouring floats have no middle; the upper end is inside the stretch, the lower one is not.
        candidate = None if f1 is None else (f1, above - end, threshold if threshold > end else above)
        if candidate is not None and (best is None or candidate[:2] > best[:2]):
            best = candidate
    if best is None:
        raise ValueError(
            f"a threshold needs rows with and without an error; found {len(errors)} with and "
            f"{len(rows) - len(errors)} without"
        )
    return Fitted(best[2], len(rows), best[0])


def split_halves(rows: Sequence[ScoredSteps], *, seed: int = 0) -> tuple[list[ScoredSteps], list[ScoredSteps]]:
    """Development and test rows: each problem is in one half, decided by its text and the seed alone."""
    halves: tuple[list[ScoredSteps], list[ScoredSteps]] = ([], [])
    for row in rows:
        halves[in_test_half(row.problem, seed=seed)].append(row)
    return halves


def in_test_half(problem: str, *, seed: int = 0) -> bool:
    """Whether a problem belongs to the test half."""
    text = " ".join(problem.split()).casefold()
    return bool(hashlib.sha256(f"{seed}:{text}".encode()).digest()[0] & 1)


def step_auc(rows: Sequence[ScoredSteps]) -> float | None:
    """Area under the ROC curve over all labelled steps (Mann-Whitney, ties one half); None where a class is empty."""
    steps = _labelled(rows)
    good = sum(label for _, label in steps)
    bad = len(steps) - good
    if not good or not bad:
        return None
    steps.sort(key=lambda step: step[0])
    below, area, index = 0, 0.0, 0
    while index < len(steps):
        end = index
        while end < len(steps) and steps[end][0] == steps[index][0]:
            end += 1
        rights = sum(label for _, label in steps[index:end])
        wrongs = end - index - rights
        area += rights * (below + wrongs / 2)
        below, index = below + wrongs, end
    return area / (good * bad)


def calibration_error(rows: Sequence[ScoredSteps], *, bins: int = 10) -> float | None:
    """Mean gap between score and share of right steps, weighed by the bins' sizes; None outside [0, 1] or for no step.

    Guo et al. 2017, arXiv 1706.04599, equation 3.
    """
    steps = _labelled(rows)
    if not steps or any(not 0 <= score <= 1 for score, _ in steps):
        return None
    gathered: dict[int, list[tuple[float, bool]]] = {}
    for score, label in steps:
        gathered.setdefault(min(int(score * bins), bins - 1), []).append((score, label))
    gaps = [abs(math.fsum(score for score, _ in b) - sum(label for _, label in b)) for b in gathered.values()]
    return math.fsum(gaps) / len(steps)


class StepF1(NamedTuple):
    """Step-wise scores as in PRMBench; None is "not defined"."""

    f1: float | None
    """With right steps as the positive class."""
    negative_f1: float | None
    """With wrong steps as the positive class."""
    steps: int

    @property
    def prm_score(self) -> float | None:
        """The mean of both (Song et al. 2025, arXiv 2501.03124, equation 2 with both weights one half)."""
        return None if self.f1 is None or self.negative_f1 is None else (self.f1 + self.negative_f1) / 2


def step_f1(rows: Sequence[ScoredSteps], threshold: float) -> StepF1:
    """Both F1 values over all labelled steps of `rows`; a step below `threshold` is taken for wrong."""
    counts = {(label, seen): 0 for label in (True, False) for seen in (True, False)}
    for score, label in _labelled(rows):
        counts[label, score >= threshold] += 1
    missed = counts[True, False] + counts[False, True]
    return StepF1(
        f1=_ratio(2 * counts[True, True], 2 * counts[True, True] + missed),
        negative_f1=_ratio(2 * counts[False, False], 2 * counts[False, False] + missed),
        steps=sum(counts.values()),
    )


@dataclass(frozen=True)
class Mean:
    """One number over several subsets."""

    plain: float | None
    """The mean of the subsets' values, each counted once: the official one."""
    size_weighted: float | None
    """Weighed by the subsets' rows."""
    undefined: tuple[str, ...] = field(default=())
    """Subsets whose value is not defined, which both leave out."""


def mean_over_subsets(values: Mapping[str, tuple[float | None, int]]) -> Mean:
    """Both means of subset name to (value, rows)."""
    known = [(value, rows) for value, rows in values.values() if value is not None]
    rows = sum(count for _, count in known)
    return Mean(
        plain=math.fsum(value for value, _ in known) / len(known) if known else None,
        size_weighted=math.fsum(value * count for value, count in known) / rows if rows else None,
        undefined=tuple(name for name, (value, _) in values.items() if value is None),
    )


def _labelled(rows: Sequence[ScoredSteps]) -> list[tuple[float, bool]]:
    return [
        (score, label) for row in rows for score, label in zip(row.scores, row.labels, strict=True) if label is not None
    ]


def _count(changes: dict[float, tuple[int, int]], end: float, found: int, clean: int) -> None:
    before = changes.get(end, (0, 0))
    changes[end] = (before[0] + found, before[1] + clean)


def _share(hits: Sequence[bool]) -> float | None:
    return _ratio(sum(hits), len(hits))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _listed(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)
