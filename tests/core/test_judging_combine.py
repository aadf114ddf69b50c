"""What each combination makes of scored, abstained and failed, for every pair; see the table in `combine`."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts import Fault, RewardPart, Span, Status, StepScore, Verdict
from assay.judging import combine
from assay.judging.combine import Outcome, Range

SCORED = Outcome("scored", 0.75)
UNSCORED: list[tuple[Status, Fault]] = [
    ("abstained", "candidate"),
    ("abstained", "ours"),
    ("failed", "candidate"),
    ("failed", "ours"),
]
KINDS = [SCORED, *(Outcome(status, fault=fault, reason=f"{status} {fault}") for status, fault in UNSCORED)]
PAIRS = list(itertools.product(KINDS, KINDS))


def name(outcome: Outcome) -> str:
    return outcome.status if outcome.scored else f"{outcome.status}-{outcome.fault}"


def fault_of(*outcomes: Outcome) -> Fault | None:
    faults = {outcome.fault for outcome in outcomes if not outcome.scored}
    return "ours" if "ours" in faults else "candidate" if faults else None


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "+".join(map(name, pair)))
def test_minimum_and_product_need_both(pair: tuple[Outcome, Outcome]) -> None:
    for join, value in ((combine.minimum, 0.75), (combine.product, 0.5625)):
        joined = join(pair)
        expected = fault_of(*pair)
        assert (joined.value, joined.fault) == ((value, None) if expected is None else (None, expected))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "+".join(map(name, pair)))
def test_a_cascade_asks_the_next_only_after_an_abstention(pair: tuple[Outcome, Outcome]) -> None:
    first, second = pair
    asked = [first, second] if combine.falls_through(first) else [first]
    assert (len(asked) == 2) == (first.status == "abstained")
    joined = combine.cascade(asked)
    if asked[-1].scored:
        assert joined.value == 0.75
    else:
        assert (joined.value, joined.fault) == (None, fault_of(*asked))


@pytest.mark.parametrize("gate", [Outcome("scored", 0.0), *KINDS], ids=name)
def test_a_gate_opens_only_for_a_score(gate: Outcome) -> None:
    opens = combine.gate_opens(gate, 0.5)
    assert opens == (gate.value == 0.75)
    if not opens:
        shut = combine.shut_gate(gate, -1.0)
        assert (shut.value, shut.fault) == ((-1.0, None) if gate.scored else (None, gate.fault))


@pytest.mark.parametrize("outcome", KINDS, ids=name)
@pytest.mark.parametrize("declared", [None, -2.0, "mask"])
def test_only_what_the_candidate_caused_gets_the_declared_score(outcome: Outcome, declared: float | str | None) -> None:
    made = combine.part(
        outcome,
        source="s",
        weight=2.0,
        channel="reward",
        on_candidate_fault=declared,  # pyright: ignore[reportArgumentType] # the literal 'mask' is a str here
        worst=0.25,
    )
    if outcome.scored:
        assert (made.value, made.declared) == (0.75, False)
    elif outcome.fault == "ours" or declared == "mask":
        assert (made.value, made.declared) == (None, False)
    else:
        assert (made.value, made.declared) == (0.25 if declared is None else -2.0, True)
    assert made.status == outcome.status


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "+".join(map(name, pair)))
def test_a_sum_is_none_where_a_part_is_masked(pair: tuple[Outcome, Outcome]) -> None:
    parts = [
        combine.part(o, source="s", weight=w, channel="reward", on_candidate_fault=None, worst=-1.0)
        for o, w in zip(pair, (1.0, 0.5), strict=True)
    ]
    reward = combine.total("r", parts)
    if fault_of(*pair) == "ours":
        assert reward.value is None
        assert reward.reason is not None
        assert reward.reason.startswith("s: ")
    else:
        values = [0.75 if outcome.scored else -1.0 for outcome in pair]
        assert reward.value == values[0] + 0.5 * values[1]
        assert reward.reason is None


@pytest.mark.parametrize(
    ("weight", "channel", "expected"),
    [
        (1.0, "reward", -1.0),
        (0.1, "metric", -1.0),
        (-0.5, "reward", 3.0),
        (1.0, "cost", 3.0),
        (-1.0, "cost", -1.0),
        (0.0, "reward", -1.0),
    ],
)
def test_the_worst_score_is_the_highest_where_more_is_worse(weight: float, channel: str, expected: float) -> None:
    assert combine.worst_of(Range(-1.0, 3.0), weight=weight, channel=channel) == expected


def test_channels_are_summed_apart() -> None:
    parts = [
        RewardPart(source="a", weight=2.0, status="scored", value=0.5),
        RewardPart(source="b", weight=1.0, channel="cost", status="failed", fault="ours", reason="down"),
        RewardPart(source="c", weight=1.0, channel="metric", status="scored", value=3.0),
    ]
    reward = combine.total("r", parts)
    assert reward.value == 1.0
    assert reward.channels == {"reward": 1.0, "cost": None, "metric": 3.0}


def test_a_task_without_any_entry_has_no_reward() -> None:
    reward = combine.total("r", [])
    assert (reward.value, reward.reason) == (None, "no entry of rewards applies to this task")


def test_steps_are_weighted_and_kept_in_order() -> None:
    late, early = StepScore(span=Span(start=5, end=9), value=1.0), StepScore(span=Span(start=0, end=5), value=0.5)
    parts = [
        RewardPart(source="a", weight=2.0, status="scored", value=0.5, steps=(late,), credit=True),
        RewardPart(source="b", weight=1.0, status="scored", value=0.5, steps=(early,), credit=True),
        RewardPart(source="c", weight=1.0, channel="cost", status="scored", value=0.5, steps=(early,), credit=True),
    ]
    reward = combine.total("r", parts)
    assert [(step.span.start, step.value) for step in reward.steps] == [(0, 0.5), (5, 2.0)]
    masked = combine.total("r", [*parts, RewardPart(source="d", weight=1, status="failed", fault="ours", reason="x")])
    assert masked.steps == ()


def test_steps_that_only_explain_a_value_are_not_paid_beside_it() -> None:
    step = StepScore(span=Span(start=0, end=5), value=0.5)
    verdicts = [Verdict.score(0.5, steps=(step,)), Verdict.score(0.0, steps=(step,), credit=True)]
    for put_together in (combine.minimum, combine.product, combine.cascade):
        outcomes = [put_together([combine.of_verdict(verdict)]) for verdict in verdicts]
        parts = [
            combine.part(outcome, source="prm", weight=1.0, channel="reward", on_candidate_fault=None, worst=0.0)
            for outcome in outcomes
        ]
        assert [part.steps for part in parts] == [(step,), (step,)]
        assert [combine.total("r", [part]).steps for part in parts] == [(), (step,)]


bounds = st.tuples(st.floats(-10, 10), st.floats(-10, 10)).map(lambda pair: Range(min(pair), max(pair)))


@given(st.lists(st.tuples(bounds, st.floats(0, 1)), min_size=1, max_size=4))
def test_combined_values_stay_in_the_combined_range(members: list[tuple[Range, float]]) -> None:
    ranges = [member for member, _ in members]
    outcomes = [Outcome("scored", low + share * (high - low)) for (low, high), share in members]
    checked = [
        (combine.minimum(outcomes), combine.minimum_range(ranges)),
        (combine.product(outcomes), combine.product_range(ranges)),
        (combine.cascade(outcomes[:1]), combine.cascade_range(ranges)),
    ]
    for outcome, (low, high) in checked:
        assert outcome.value is not None
        assert low - 1e-6 <= outcome.value <= high + 1e-6
