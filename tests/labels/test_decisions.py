"""When a prefix is certain, and which completions are asked for; every number by hand."""

import itertools
import math

import pytest

from assay.labels.decisions import All, AnyOf, AtLeast, Counts, Rule, Wald, wald
from assay.labels.plans import Everything, Halving, Scan, closed, plan_for


def waves(rule: Rule, success: bool = False) -> list[int]:
    """The sizes of the waves where every completion comes out alike."""
    found: list[int] = []
    counts = Counts()
    while rule.state(counts) == "open":
        found.append(rule.wave(counts))
        spent = counts.spent + found[-1]
        counts = Counts(spent if success else 0, spent, spent)
    return found


def test_any_of_draws_in_waves_of_one_one_two_four_eight() -> None:
    assert waves(AnyOf(16)) == [1, 1, 2, 4, 8]
    assert waves(AnyOf(16), success=True) == [1]
    assert AnyOf(16).state(Counts(0, 16, 16)) == "dead"
    assert AnyOf(16).state(Counts(0, 3, 3, given=1)) == "alive"


def test_two_of_sixteen_ends_as_soon_as_it_is_certain() -> None:
    rule = AtLeast(2, 16)
    assert waves(rule, success=True) == [2]
    # One success needs another one, which the sixteenth completion could still be, and nothing after it.
    assert rule.state(Counts(1, 15, 15)) == "open"
    assert rule.state(Counts(0, 15, 15)) == "dead"
    assert sum(waves(rule)) == 16
    assert rule.state(Counts(1, 1, 1, given=1)) == "alive"


def test_completions_that_nobody_could_judge_decide_nothing() -> None:
    for rule in (AnyOf(4), AtLeast(2, 4), All(4), Wald(0.5, 4)):
        assert rule.state(Counts(0, 0, 4)) == "unknown"


def test_the_sequential_test_by_hand() -> None:
    rule = Wald(0.5, 16)
    assert rule.evidence(Counts(1, 1, 1)) == pytest.approx(math.log(0.5 / 0.04))
    assert rule.evidence(Counts(0, 1, 1)) == pytest.approx(math.log(0.5 / 0.96))
    # log 19 = 2.944: two successes give 5.05, one 2.53; five failures -3.26, four -2.61.
    assert rule.state(Counts(1, 1, 1)) == "open"
    assert rule.state(Counts(2, 2, 2)) == "alive"
    assert rule.state(Counts(0, 4, 4)) == "open"
    assert rule.state(Counts(0, 5, 5)) == "dead"
    assert wald(0.01, 16).alive_rate == 0.2
    assert wald(1.0, 16).alive_rate == 0.9


@pytest.mark.parametrize("steps", range(1, 24))
def test_a_search_finds_every_first_error(steps: int) -> None:
    for error, plan in itertools.product(range(steps), (Scan(steps, AnyOf(1)), Halving(steps, AnyOf(1)))):
        states: dict[int, str] = {}
        asked = 0
        while wanted := plan.wanted(states):  # pyright: ignore[reportArgumentType]
            for length in wanted:
                states[length] = "alive" if length <= error else "dead"
                asked += 1
        assert plan.labels(states) == [1.0] * error + [0.0] + [None] * (steps - error - 1)  # pyright: ignore[reportArgumentType]
        if isinstance(plan, Halving):
            assert asked <= math.ceil(math.log2(steps)) if steps > 1 else asked == 0


def test_what_is_unknown_is_never_called_right_or_wrong() -> None:
    # Prefix 2 could not be judged: before a living prefix it is right, before a dead one nobody knows.
    assert closed(4, 4, {1: "alive", 2: "unknown", 3: "alive"}) == [1.0, 1.0, 1.0, 0.0]
    assert closed(4, 3, {1: "alive", 2: "unknown", 3: "dead"}) == [1.0, None, 0.0, None]
    assert Halving(4, AnyOf(1)).labels({2: "unknown"}) == [None] * 4


def test_modes_choose_their_plans() -> None:
    assert isinstance(plan_for("auto", 8, right=False, pass_rate=0.5, samples=16), Scan)
    assert isinstance(plan_for("auto", 9, right=False, pass_rate=0.5, samples=16), Halving)
    assert plan_for("auto", 8, right=False, pass_rate=0.5, samples=1).rule == AtLeast(1, 1)
    assert isinstance(plan_for("hard_exact", 30, right=False, pass_rate=0.5, samples=16), Scan)
    assert isinstance(plan_for("soft", 3, right=True, pass_rate=0.5, samples=16), Everything)
    right = plan_for("auto", 3, right=True, pass_rate=0.5, samples=16)
    assert list(right.wanted({})) == []
    assert right.labels({}) == [1.0, 1.0, 1.0]
