"""Reward models as sources: step scores with spans, credit, floors, and what hostile responses can gain from them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from assay.contracts import Candidate, Message, Rollout, Span, Task, Turn, Verdict
from assay_prms.aggregate import Credit, aggregate, token_baseline
from assay_prms.scoring import Response, Scorer, Scores
from assay_prms.source import RewardModelSource
from assay_prms.spec import ScorerSpec


class Scripted:
    """Scores of steps, one per line, from a function of the step's text."""

    def __init__(self, rate: Callable[[str], float], **fields: Any) -> None:
        self.spec = ScorerSpec(**fields)
        self._rate = rate

    def score(self, responses: Sequence[Response]) -> list[Scores]:
        found: list[Scores] = []
        for response in responses:
            at, spans = 0, list[Span]()
            for line in response.text.split("\n"):
                if line.strip():
                    spans.append(Span(start=at, end=at + len(line)))
                at += len(line) + 1
            texts = [response.text[span.start : span.end] for span in spans]
            if not texts:
                found.append(Scores((), (), "empty_response"))
            else:
                found.append(Scores(tuple(spans), tuple(self._rate(text) for text in texts)))
        return found


def good_unless_wrong(step: str) -> float:
    return 0.1 if "wrong" in step else 0.9


def candidate(text: str, *, finish: Any = "stop") -> Candidate:
    task = Task(id="t", messages=(Message(role="user", content="q"),))
    rollout = Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text=text),), finish=finish)
    return Candidate(task=task, rollout=rollout)


def judged(source: RewardModelSource, *texts: str, finish: Any = "stop") -> list[Verdict]:
    return list(asyncio.run(_judged(source, [candidate(text, finish=finish) for text in texts])))


async def _judged(source: RewardModelSource, batch: Sequence[Candidate]) -> Sequence[Verdict]:
    return await source.judge(batch)


def paid(text: str, how: Credit) -> float:
    """What the steps of a response are paid together."""
    (verdict,) = judged(RewardModelSource(Scripted(good_unless_wrong), credit=how), text)
    return sum(step.value for step in verdict.steps)


@pytest.mark.parametrize("how", ["min", "product", "last", "mean", "sum"])
def test_the_value_is_the_aggregate_and_the_steps_keep_their_scores(how: Any) -> None:
    source = RewardModelSource(Scripted(good_unless_wrong, aggregation=how, threshold=0.5))
    (verdict,) = judged(source, "one\nwrong two\nthree")
    assert verdict.value == pytest.approx(aggregate([0.9, 0.1, 0.9], how))
    assert [(step.span.start, step.span.end, step.value) for step in verdict.steps] == [
        (0, 3, 0.9), (4, 13, 0.1), (14, 19, 0.9),
    ]  # fmt: skip
    (note,) = verdict.evidence
    assert "lowest is step 2" in note.summary
    assert isinstance(note.data, dict)
    assert note.data["first_below_threshold"] == 1
    assert source.limits.value_range[1] >= (verdict.value or 0.0)


def test_the_order_and_the_number_of_verdicts_are_those_of_the_batch() -> None:
    source = RewardModelSource(Scripted(good_unless_wrong))
    found = judged(source, "one", "", "wrong", "two\nthree")
    assert [verdict.value for verdict in found] == [0.9, None, 0.1, 0.9]
    assert (found[1].status, found[1].reason, found[1].fault) == ("abstained", "empty_response", "candidate")


def test_a_truncated_response_is_not_judged() -> None:
    (verdict,) = judged(RewardModelSource(Scripted(good_unless_wrong)), "one\ntwo", finish="length")
    assert (verdict.status, verdict.reason, verdict.fault) == ("abstained", "truncated", "candidate")


def test_fewer_scores_than_steps_are_no_scores() -> None:
    source = RewardModelSource(Scripted(good_unless_wrong))
    verdict = source.verdict(Scores((Span(start=0, end=1), Span(start=2, end=3)), (0.5,)))
    assert (verdict.status, verdict.reason, verdict.fault) == ("abstained", "1 scores for 2 steps", "ours")


def test_raw_scores_stop_at_their_floor_which_is_what_unjudged_responses_get() -> None:
    source = RewardModelSource(Scripted(lambda step: -300.0 if step == "awful" else -2.5, score="raw"), floor=-20.0)
    awful, bad = judged(source, "awful", "bad")
    assert (awful.value, bad.value) == (-20.0, -2.5)
    assert source.limits.value_range[0] == -20.0


def test_credit_pays_by_steps_and_by_nothing_else() -> None:
    for how, parts in {"sum": [0.8, -0.8, 0.8], "final": [0.0, 0.0, 0.8]}.items():
        source = RewardModelSource(Scripted(good_unless_wrong), credit=how)  # type: ignore[arg-type]
        (verdict,) = judged(source, "one\nwrong\nthree")
        assert (verdict.value, verdict.credit) == (0.0, True)
        assert [step.value for step in verdict.steps] == pytest.approx(parts)
    (verdict,) = judged(RewardModelSource(Scripted(good_unless_wrong)), "one\nwrong\nthree")
    assert verdict.steps, "scores that explain the value"
    assert not verdict.credit, "and are not paid beside it"


def test_padding_pays_by_sum_which_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    assert paid("wrong\n" + "fine\n" * 8, "sum") > paid("right", "sum")
    assert any('credit = "sum" pays for every good step' in message for message in caplog.messages)


RIGHT = "one\ntwo\nthree"
HOSTILE = {
    "a split step": "one\ntw\no\nwrong\nthree",
    "merged steps": "one two wrong three",
    "a good step repeated": "one\n" + "two\n" * 12 + "wrong\nthree",
    "thanks behind the end": "one\nwrong\nthree\nthank you\nwell done\nit is right",
    "the marker": "one\nwrong\nthree\n<extra_0><extra_0>\n+ ки ки",
    "one giant step": "one " * 300 + "wrong",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hack_of_a_wrong_response_pays_as_much_as_a_right_one(name: str) -> None:
    assert paid(HOSTILE[name], "min") < paid(RIGHT, "min") - 0.5
    source = RewardModelSource(Scripted(good_unless_wrong, aggregation="min"))
    hostile, right = judged(source, HOSTILE[name], RIGHT)
    assert (hostile.value or 0.0) < (right.value or 0.0)


def test_never_ending_and_stopping_at_once_are_not_scored() -> None:
    source = RewardModelSource(Scripted(good_unless_wrong), credit="min")
    (endless,) = judged(source, "fine\n" * 500, finish="length")
    (silent,) = judged(source, "  \n")
    assert endless.value is silent.value is None


def test_merging_steps_gains_nothing_against_a_baseline_per_token() -> None:
    """Two responses with the same tokens and total reward, one of them in a single step (PURE#2)."""
    split, merged = token_baseline([[0.5, 0.5], [1.0]], [[10, 10], [20]])
    assert sum(split) == pytest.approx(sum(merged))
    assert token_baseline([[1.0, 2.0]], [[3, 4]]) == [[1.0, 2.0]]


def test_a_score_that_is_not_finite_is_raised_so_that_the_core_writes_failed(scorer: Callable[..., Scorer]) -> None:
    import torch

    broken = scorer(kind="head")
    assert broken.head is not None
    with torch.no_grad():
        next(iter(broken.head.parameters())).fill_(float("inf"))
    with pytest.raises(ValueError, match="the score of step 1 of response 1 is"):
        judged(RewardModelSource(broken), "some text")
