"""First-error statistics: the sweep against brute force, protocol identities, not-defined values, published sets."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reports.first_error import (
    Fitted,
    ScoredSteps,
    calibration_error,
    first_error,
    fit_threshold,
    harmonic,
    in_test_half,
    mean_over_subsets,
    split_halves,
    step_auc,
    step_f1,
)


@st.composite
def scored_rows(draw: st.DrawFn) -> list[ScoredSteps]:
    rows: list[ScoredSteps] = []
    for index in range(draw(st.integers(1, 8))):
        scores = draw(st.lists(st.sampled_from([0.0, 0.2, 0.2001, 0.5, 0.9, 1.0]), min_size=1, max_size=5))
        place = draw(st.none() | st.integers(0, len(scores) - 1))
        rows.append(ScoredSteps(f"p{index}", tuple(scores), place))
    return rows


def f1_at(rows: list[ScoredSteps], threshold: float) -> float | None:
    return first_error(rows, threshold, resamples=1).f1


@given(scored_rows())
def test_the_fitted_threshold_is_the_best_there_is(rows: list[ScoredSteps]):
    kinds = {row.first_error is None for row in rows}
    if len(kinds) < 2:
        with pytest.raises(ValueError, match="with and without an error"):
            fit_threshold(rows)
        return
    fitted = fit_threshold(rows)
    candidates = [-1.0, *(score + shift for row in rows for score in row.scores for shift in (0.0, 1e-6)), 2.0]
    best = max(f1 for t in candidates if (f1 := f1_at(rows, t)) is not None)
    assert fitted.f1 == pytest.approx(best)
    assert f1_at(rows, fitted.threshold) == pytest.approx(fitted.f1)
    assert fitted.rows == len(rows)


def test_the_threshold_lies_inside_its_stretch_even_between_neighbouring_floats():
    low, high = 0.5, math.nextafter(0.5, 1.0)
    rows = [ScoredSteps("a", (high, low), 1), ScoredSteps("b", (high, high), None)]
    fitted = fit_threshold(rows)
    assert fitted.f1 == 1.0
    assert first_error(rows, fitted, resamples=10).f1 == 1.0


ROWS = [
    ScoredSteps("a", (0.9, 0.1, 0.9), 1),
    ScoredSteps("b", (0.2, 0.1), 1),
    ScoredSteps("c", (0.9, 0.8), None),
    ScoredSteps("d", (0.9, 0.3), None),
]


def test_by_hand():
    report = first_error(ROWS, 0.5)
    assert report.error_accuracy is not None
    assert report.correct_accuracy is not None
    assert (report.error_accuracy.value, report.correct_accuracy.value, report.f1) == (0.5, 0.5, 0.5)
    assert (report.with_error, report.without_error) == (2, 2)
    assert report.f1_interval is not None
    assert report.f1_interval.low <= 0.5 <= report.f1_interval.high
    json.dumps(report.to_dict(), allow_nan=False)


def test_scripted_scorers_have_the_results_that_they_must_have():
    rows = [ScoredSteps(str(i), (1.0,) * 4, i % 5 if i % 5 < 4 else None) for i in range(50)]

    def scorer(make: str) -> list[ScoredSteps]:
        found: list[ScoredSteps] = []
        for row in rows:
            scores = [1.0] * 4
            if make == "oracle" and row.first_error is not None:
                scores[row.first_error] = 0.0
            if make == "first":
                scores[0] = 0.0
            found.append(ScoredSteps(row.problem, tuple(scores), row.first_error))
        return found

    assert first_error(scorer("oracle"), 0.5).f1 == 1.0
    never = first_error(scorer("never"), 0.5)
    assert never.f1 == 0.0
    always = first_error(scorer("first"), 0.5)
    assert always.error_accuracy is not None
    assert always.error_accuracy.value == pytest.approx(0.25)  # the share of errors at index 0
    assert always.correct_accuracy is not None
    assert always.correct_accuracy.value == 0.0
    assert always.f1 == 0.0


def test_empty_classes_and_nothing_over_nothing_are_not_defined():
    wrong = [ScoredSteps("a", (0.1, 0.1), 1)]
    report = first_error(wrong, 0.5)
    assert report.correct_accuracy is None
    assert report.f1 is None
    assert report.f1_interval is None
    assert harmonic(0.0, 0.0) is None
    assert first_error([], 0.5).error_accuracy is None
    assert step_auc([ScoredSteps("a", (0.1,), None)]) is None
    assert calibration_error([]) is None
    assert calibration_error([ScoredSteps("a", (-1.0,), None)]) is None
    assert step_f1([], 0.5).prm_score is None


@given(scored_rows())
def test_auc_equals_all_pairs(rows: list[ScoredSteps]):
    steps = [(s, label) for row in rows for s, label in zip(row.scores, row.labels, strict=True) if label is not None]
    pairs = [(good, bad) for good, g in steps if g for bad, b in steps if not b]
    expected = sum((good > bad) + (good == bad) / 2 for good, bad in pairs) / len(pairs) if pairs else None
    assert step_auc(rows) == (None if expected is None else pytest.approx(expected))


def test_calibration_by_hand():
    rows = [ScoredSteps("a", (0.9, 0.9), 1), ScoredSteps("b", (0.05,), 0)]
    assert calibration_error(rows) == pytest.approx((abs(1.8 - 1) + 0.05) / 3)


def test_step_scores_count_every_listed_step():
    rows = [ScoredSteps("a", (0.9, 0.1, 0.9, 0.1), 1, wrong=(1, 2))]
    found = step_f1(rows, 0.5)
    assert (found.f1, found.negative_f1, found.prm_score, found.steps) == (0.5, 0.5, 0.5, 4)
    assert rows[0].labels == (True, False, False, True)
    assert ScoredSteps("a", (0.9, 0.1, 0.9), 1).labels == (True, False, None)


def test_halves_share_no_problem_and_do_not_move():
    rows = [ScoredSteps(f"p{i // 3}", (0.5,), None) for i in range(300)]
    dev, test = split_halves(rows, seed=1)
    assert len(dev) + len(test) == 300
    assert not {row.problem for row in dev} & {row.problem for row in test}
    assert 90 < len(test) < 210
    assert in_test_half("A  b", seed=1) == in_test_half("a b", seed=1)


def test_means_over_subsets_are_named_for_what_they_are():
    mean = mean_over_subsets({"gsm8k": (0.8, 400), "math": (0.4, 1000), "empty": (None, 10)})
    assert mean.plain == pytest.approx(0.6)
    assert mean.size_weighted == pytest.approx((0.8 * 400 + 0.4 * 1000) / 1400)
    assert mean.undefined == ("empty",)


def test_a_row_that_contradicts_itself():
    with pytest.raises(ValueError, match="first_error is 2 with 2 steps"):
        ScoredSteps("a", (0.1, 0.2), 2)
    with pytest.raises(ValueError, match="finite"):
        ScoredSteps("a", (math.nan,), None)
    assert first_error(ROWS, Fitted(0.5, 7, 0.9)).to_dict()["threshold_fitted_on"] == 7
