"""Generative verifiers: p(yes) over sampled critiques in memory, and votes of critiques through an engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import pytest

from assay.component import BuildContext
from assay.contracts import Candidate, Message, Rollout, RolloutRequest, Task, Turn
from assay.errors import ConfigError
from assay_prms.critique import CritiqueScorer
from assay_prms.loading import VerifierOptions, build_verifier
from assay_prms.scoring import Response, Scorer
from assay_prms.source import RewardModelSource

WORDS: dict[str, Any] = {"yes": "Y", "no": "N", "question": "Right?", "instruction": "Check:"}


class Critic:
    """An engine whose critiques are scripted by what the response says."""

    policy_version = 0

    def __init__(self, critiques: Callable[[str, int], str]) -> None:
        self.critiques = critiques
        self.asked: list[RolloutRequest] = []
        self.closed = False

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        self.asked.extend(requests)
        for number, request in enumerate(reversed(requests)):  # in any order
            text = self.critiques(request.task.prompt, len(requests) - 1 - number)
            yield Rollout(id=request.id, task_id=request.task.id, group_id="g", turns=(Turn(text=text),))

    async def abort(self, ids: Collection[str]) -> None:
        raise AssertionError("nothing is aborted")

    async def aclose(self) -> None:
        self.closed = True


def candidate(text: str, *, finish: Any = "stop") -> Candidate:
    task = Task(id="t", messages=(Message(role="user", content="1+1="),))
    return Candidate(
        task=task, rollout=Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text=text),), finish=finish)
    )


def verdicts(engine: Critic, batch: Sequence[Candidate], **options: Any) -> Any:
    context = BuildContext()
    context.open_engine = lambda use, given: engine  # type: ignore[assignment, return-value]
    source = build_verifier(VerifierOptions(engine={"use": "scripted"}, **options), context)

    async def judge() -> Any:
        try:
            return await source.judge(batch)
        finally:
            await source.aclose()

    found = asyncio.run(judge())
    assert engine.closed
    return found


def test_the_share_of_readable_critiques_that_say_yes_is_the_score() -> None:
    said = ["Right? Yes", "Right? No", "I forgot what to say", "Right? Yes."]
    engine = Critic(lambda prompt, number: said[number % 4])
    (found,) = verdicts(engine, [candidate("2")], critiques=4, question="Right?")
    assert found.value == pytest.approx(2 / 3)
    assert found.evidence[0].summary == "2 of 3 readable critiques (of 4) say yes"
    assert len({request.sampling.seed for request in engine.asked}) == 4
    assert all("1+1=" in request.task.prompt and "\n2\n" in request.task.prompt for request in engine.asked)


def test_each_response_gets_the_critiques_of_its_own() -> None:
    engine = Critic(lambda prompt, number: "Right? Yes" if "\nfour\n" in prompt else "Right? No")
    found = verdicts(engine, [candidate("four"), candidate("five"), candidate("four")], critiques=2, question="Right?")
    assert [verdict.value for verdict in found] == [1.0, 0.0, 1.0]


def test_unreadable_truncated_and_empty_are_no_scores() -> None:
    engine = Critic(lambda prompt, number: "hm")
    batch = [candidate("2"), candidate("2 and", finish="length"), candidate(" ")]
    found = verdicts(engine, batch, critiques=3, question="Right?")
    assert [(verdict.reason, verdict.fault) for verdict in found] == [
        ("judge_unreadable", "ours"), ("truncated", "candidate"), ("empty_response", "candidate"),
    ]  # fmt: skip
    assert len(engine.asked) == 3


def test_an_engine_must_be_named() -> None:
    with pytest.raises(ConfigError, match="engine: which engine is missing"):
        build_verifier(VerifierOptions(engine={}), BuildContext())
    with pytest.raises(ConfigError, match="engines cannot be opened here; run the source inside assay"):
        build_verifier(VerifierOptions(engine={"use": "openai"}), BuildContext())


def test_in_memory_the_score_is_the_mean_chance_of_yes_behind_each_readable_critique(
    scorer: Callable[..., Scorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = scorer(kind="critique", at="end", critiques=3, critique_tokens=64, **WORDS)
    assert isinstance(ours, CritiqueScorer)
    written = ["It adds up. Right?Y", "nothing", "Right?N wait Right?"]
    monkeypatch.setattr(ours, "_critiques", lambda prompt, text: written)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    (found,) = ours.score([Response("1+1=", "2")])
    prompt = ours.encode.prompt("1+1=\n\n2\n\nCheck:")
    behind = [(*prompt, *ours.encode.ids(text)) for text in ("It adds up. Right?", "Right?N wait Right?")]
    assert found.values == pytest.approx((sum(ours.word_chances(behind)) / 2,))
    monkeypatch.setattr(ours, "_critiques", lambda prompt, text: ["nothing"] * 3)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    (none,) = ours.score([Response("1+1=", "2")])
    assert none.reason == "judge_unreadable: none of 3 critiques came to a verdict"
    (verdict,) = asyncio.run(RewardModelSource(ours).judge([candidate("2")]))
    assert (verdict.status, verdict.fault) == ("abstained", "ours"), (
        "what the verifier wrote is not the candidate's doing"
    )


def test_sampled_critiques_are_the_same_for_the_same_response(scorer: Callable[..., Scorer]) -> None:
    import torch

    ours = scorer(kind="critique", at="end", critiques=20, critique_tokens=6, **WORDS)
    before = torch.random.get_rng_state()
    responses = [Response("1+1=", "2"), Response("1+1=", "3")]
    first, again = ours.score(responses), ours.score(responses[::-1])[::-1]
    assert [one.values for one in first] == [one.values for one in again]
    assert torch.equal(before, torch.random.get_rng_state())
