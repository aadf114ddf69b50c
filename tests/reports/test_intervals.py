"""Intervals of shares: several answers to one question are no independent trials."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts import Reward, RewardPart
from assay.pipeline.evaluate import Answer
from assay.reports.metrics import evaluation_line
from assay.reports.statistics import wilson, wilson_clustered
from assay.testing.fakes import make_rollout, make_task


def test_one_answer_a_question_is_wilsons_interval() -> None:
    assert wilson_clustered([(1, 1)] * 30 + [(0, 1)] * 70) == wilson(30, 100)


def test_equal_answers_count_as_one() -> None:
    assert wilson_clustered([(8, 8)] * 30 + [(0, 8)] * 70) == pytest.approx(wilson(30, 100), abs=0.004)
    assert wilson_clustered([(8, 8)] * 20) == wilson(20, 20)
    assert wilson_clustered([(3, 8)]) == pytest.approx(wilson(0.375, 1))


def test_by_hand() -> None:
    # share 3/8; squares (2 - 1.5)^2 + (1 - 1.5)^2 = 0.5; variance 2/1 * 0.5 / 64 = 1/64; 15/64 / (1/64) = 15, at most 8
    assert wilson_clustered([(2, 4), (1, 4)]) == wilson(3, 8)
    # share 1/2; squares 1.5^2 * 2 = 4.5 (4 - 2.5, 1 - 2.5); variance 2 * 4.5 / 100 = 0.09; 0.25 / 0.09 = 2.78 trials
    assert wilson_clustered([(4, 5), (1, 5)]) == pytest.approx(wilson(0.5 * 25 / 9, 25 / 9))


@given(st.lists(st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1))
def test_it_is_never_narrower_than_wilsons_nor_wider_than_one_trial_a_cluster(clusters: list[tuple[int, int]]) -> None:
    right, trials = sum(right for right, _ in clusters), sum(trials for _, trials in clusters)
    found, narrow = wilson_clustered(clusters), wilson(right, trials)
    wide = wilson(right / trials * len(clusters), len(clusters))
    assert found.value == pytest.approx(narrow.value)
    assert narrow.high - narrow.low <= found.high - found.low + 1e-12 <= wide.high - wide.low + 2e-12


def test_it_covers_the_truth_where_wilsons_does_not() -> None:
    draw = random.Random(3)
    covered = plain = 0
    rounds = 400
    for _ in range(rounds):
        clusters: list[tuple[float, int]] = []
        for _ in range(50):
            chance = draw.betavariate(0.5, 0.5)  # mean one half: most questions are nearly always right or wrong
            clusters.append((sum(draw.random() < chance for _ in range(8)), 8))
        interval, narrow = wilson_clustered(clusters), wilson(sum(right for right, _ in clusters), 400)
        covered += interval.low <= 0.5 <= interval.high
        plain += narrow.low <= 0.5 <= narrow.high
    assert covered / rounds > 0.93
    assert plain / rounds < 0.75


def test_an_evaluation_with_several_answers_a_question_has_the_wider_interval() -> None:
    answers: list[Answer] = []
    for number in range(20):
        task = make_task(f"t{number}")
        for sample in range(4):
            rollout = make_rollout("x", f"r{number}-{sample}", task_id=task.id)
            value = float(number % 2)
            part = RewardPart(source="s", status="scored", value=value, weight=1.0, channel="reward")
            answers.append(
                Answer(task, rollout, {"accuracy": Reward(rollout_id=rollout.id, value=value, parts=(part,))})
            )
    line = evaluation_line(1, answers, pass_at=[])
    assert (line["accuracy"]["correct"], line["accuracy"]["of"]) == (40, 80)
    assert line["accuracy"]["interval"] == pytest.approx(list(wilson(10, 20)), abs=0.02)
    assert line["accuracy"]["extracted"] == list(wilson(20, 20))
