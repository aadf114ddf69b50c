"""Best-of-n statistics: closed forms against enumeration, ties, missing scores, known data."""

import json
import math
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reports.best_of import Sample, aggregate, best_of, choose, expected_argmax, logistic, vote

SAMPLES = st.builds(
    Sample,
    score=st.none() | st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    correct=st.booleans(),
    answer=st.sampled_from(["a", "b", None]),
    length=st.integers(0, 50),
)
POOLS = st.lists(SAMPLES, min_size=1, max_size=6)


def by_hand(pool: list[Sample], n: int) -> float:
    """Expected success of the argmax: all subsets, ties shared."""
    total = 0.0
    subsets = list(combinations(pool, n))
    for subset in subsets:
        scored = [sample for sample in subset if sample.score is not None]
        best = [sample for sample in scored if sample.score == max(s.score or 0 for s in scored)]
        total += sum(bool(sample.correct) for sample in best) / len(best) if best else 0.0
    return total / len(subsets)


@given(POOLS, st.data())
def test_argmax_equals_the_enumeration_of_all_subsets(pool: list[Sample], data: st.DataObject):
    n = data.draw(st.integers(1, len(pool)))
    expected, nothing = expected_argmax(pool, n)
    assert expected == pytest.approx(by_hand(pool, n))
    unscored = sum(sample.score is None for sample in pool)
    assert nothing == pytest.approx(math.comb(unscored, n) / math.comb(len(pool), n))


@given(st.lists(POOLS, min_size=1, max_size=5))
def test_bounds_that_always_hold(pools: list[list[Sample]]):
    report = best_of(pools, [1, 2, 3], resamples=50)
    for n in report.sizes:
        oracle = report.rows["any of n"][n].value
        for name in ("argmax", "weighted vote", "majority"):
            value = report.rows[name][n].value
            assert (value is None) == (oracle is None)
            if value is not None and oracle is not None:
                assert 0 <= value <= oracle + 1e-9
        interval = report.rows["argmax"][n].interval
        if interval is not None:
            assert interval.low - 1e-9 <= interval.value <= interval.high + 1e-9
    json.dumps(report.to_dict(), allow_nan=False)


@given(POOLS)
def test_one_sample_is_the_mean_for_votes_and_argmax_where_everything_is_scored_and_read(pool: list[Sample]):
    whole = [sample._replace(score=sample.score or 0.1, answer=sample.answer or "c") for sample in pool]
    report = best_of([whole], [1], resamples=20)
    for row in report.rows.values():
        assert row[1].value == pytest.approx(report.first.value)


def test_a_perfect_scorer_is_the_oracle_and_the_order_of_the_samples_does_not_matter():
    pool = [Sample(float(index % 3 == 0), index % 3 == 0, str(index)) for index in range(8)]
    report = best_of([pool], [1, 2, 4, 8])
    for n in report.sizes:
        assert report.rows["argmax"][n].value == pytest.approx(report.rows["any of n"][n].value)
    assert best_of([pool[::-1]], [2]).rows["argmax"][2].value == best_of([pool], [2]).rows["argmax"][2].value
    assert not report.over_optimised


def test_a_constant_scorer_chooses_by_chance():
    pool = [Sample(0.5, right, "x") for right in (True, True, False, False, False)]
    assert expected_argmax(pool, 5) == (pytest.approx(0.4), 0.0)
    assert choose(pool) == 0
    assert choose([Sample(None, True, "x")]) is None


def test_aggregates_of_the_reference():
    steps = [0.9, 0.8, 0.6]
    found = [aggregate(steps, how) for how in ("product", "min", "last", "mean")]
    assert found == pytest.approx([0.432, 0.6, 0.6, 0.766667], abs=1e-6)
    assert aggregate([], "min") is None
    assert aggregate(steps, "value") is None


def test_votes_of_the_reference():
    samples = [Sample(score, answer == "b", answer) for answer, score in zip("abac", (0.2, 0.9, 0.3, 0.1), strict=True)]
    assert vote(samples, weighted=False) == 0.0  # a has two of four
    assert vote(samples, weighted=True) == 1.0  # b weighs .9 against .5
    assert vote([Sample(0.9, True, None)], weighted=False) == 0.0
    assert vote([Sample(0.5, True, "a"), Sample(0.5, False, "b")], weighted=True) == 0.5


def test_negative_scores_vote_through_the_logistic_function_and_the_report_says_so():
    pool = [Sample(-5.0, True, "a"), Sample(-4.0, True, "a"), Sample(2.0, False, "b")]
    report = best_of([pool], [3])
    assert report.squashed
    assert report.to_dict()["votes_weighed_by"] == "logistic"
    assert report.rows["weighted vote"][3].value == 0.0
    assert logistic(-800.0) == 0.0
    assert logistic(800.0) == 1.0


def test_a_fall_with_n_is_flagged_only_where_it_is_certain():
    bad = [[Sample(1.0, False, "w")] + [Sample(0.5, True, "r")] * 7 for _ in range(60)]
    report = best_of(bad, [1, 4, 8])
    assert report.over_optimised
    assert [(fall.fewer, fall.more) for fall in report.falls] == [(1, 4), (1, 8)]
    assert report.rows["argmax"][8].value == 0.0
    lucky = [*bad[:1], *[[Sample(0.5, True, "r")] * 8 for _ in range(60)]]
    noise = best_of(lucky, [1, 8])
    assert noise.falls
    assert not noise.over_optimised


def test_masked_and_unscored_samples_are_counted_and_never_become_numbers():
    pool = [Sample(None, True, "r"), Sample(0.2, False, "w"), Sample(0.9, None, "x"), Sample(None, True, "r")]
    report = best_of([pool], [1, 3])
    assert (report.masked, report.unscored, report.samples) == (1, 2, 3)
    assert report.unchosen == {1: pytest.approx(2 / 3), 3: 0.0}
    assert report.rows["argmax"][3].value == 0.0
    assert best_of([pool], [4]).rows["argmax"][4] == (None, 0)


def test_correlation_with_length():
    longer = [[Sample(index / 10, True, "a", 10 * index) for index in range(5)]]
    assert best_of(longer, [1]).length_correlation == pytest.approx(1.0)
    assert best_of([[Sample(0.5, True, "a", 3)] * 4], [1]).length_correlation is None


def test_bad_sizes():
    with pytest.raises(ValueError, match="at least 1"):
        best_of([[Sample(1.0, True, "a")]], [0])


def test_the_published_scores_of_bon_math100(shared: Path):
    text = (shared / "data/bon_math100/math_cot_100.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    pools = [
        [
            Sample(score, right, answer, len(response))
            for score, right, answer, response in zip(
                row["orm_scores"], row["correct"], row["preds"], row["responses"], strict=True
            )
        ]
        for row in rows
    ]
    report = best_of(pools, [1, 8])
    assert report.first.value == pytest.approx(0.910)
    assert report.rows["majority"][8].value == pytest.approx(0.93, abs=0.006)
    assert report.rows["argmax"][8].value == pytest.approx(0.94)
    assert report.rows["any of n"][8].value == pytest.approx(0.96)
