"""A panel as a whole: routing, combination, batching, caching, retries, health, and faults in every mixture."""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Judgement, Reward, Task
from assay.errors import ConfigError, JudgingError
from assay.judging import Panel, open_panel
from assay.testing import faulty
from assay.testing.fakes import make_group, make_rollout, make_task, registry_of

ENTRIES = TypeAdapter(tuple[RewardEntry, ...])
LENIENT = JudgingConfig(on_unhealthy="mask", stop_if_failed_above=1.0)
SOURCES = '''
"""Sources for the tests of the panel."""
import asyncio
from collections.abc import Sequence
from assay import Candidate, Component, Evidence, Limits, Options, Span, StepScore, Verdict, hookimpl, verifier
from assay.errors import TransientError

CALLS = []

@verifier("one", isolation="inline")
def one(task, rollout):
    """Always 1."""
    CALLS.append(("one", rollout.text))
    return Verdict.score(1.0, steps=(StepScore(span=Span(start=0, end=1), value=0.5),), credit=True)

@verifier("half", isolation="inline", value_range=(0.25, 0.75))
def half(task, rollout):
    """Always 0.5, and abstains where the text is empty."""
    CALLS.append(("half", rollout.text))
    print("half was here")
    return Verdict.score(0.5) if rollout.text else Verdict.abstain("empty")

@verifier("even", isolation="inline")
def even(task, rollout):
    """1 for texts of even length."""
    CALLS.append(("even", rollout.text))
    return Verdict.score(float(len(rollout.text) % 2 == 0))

@verifier("spoils", isolation="inline")
def spoils(task, rollout):
    """Writes into the facts that it is shown."""
    task.facts["spoiled"] = True
    return Verdict.score(1.0)

@verifier("honest", isolation="inline")
def honest(task, rollout):
    """0 where the facts were spoiled."""
    return Verdict.score(0.0 if "spoiled" in task.facts else 1.0)

class Flaky:
    limits = Limits(retries=2, deterministic=False)
    def __init__(self): self.tries = 0
    async def judge(self, batch):
        self.tries += 1
        if self.tries % 3:
            raise TransientError("busy")
        return [Verdict.score(1.0) for _ in batch]
    async def aclose(self): pass

class Ranking:
    """Sees the whole group: the longest text gets 1, the others 0."""
    limits = Limits(scope="group")
    async def judge(self, batch):
        CALLS.append(("ranking", len(batch)))
        longest = max(len(c.rollout.text) for c in batch)
        assert all(len(c.group) == len(batch) for c in batch)
        return [Verdict.score(float(len(c.rollout.text) == longest)) for c in batch]
    async def aclose(self): pass

class Model:
    """A model-like source: batches and one shared device."""
    def __init__(self, name, weight):
        self.name = name
        self.limits = Limits(max_batch=8, max_wait_s=0.5, device="gpu", weight=weight)
    async def judge(self, batch):
        CALLS.append((self.name, len(batch)))
        await asyncio.sleep(0.002)
        return [Verdict.score(1.0) for _ in batch]
    async def aclose(self): pass

class Unshowable(Exception):
    def __str__(self): raise ValueError("no text")

def answer(text):
    """What the text asks for; anything else is scored."""
    errors = {
        "base": BaseException("base"), "cancelled": asyncio.CancelledError(), "generator": GeneratorExit(),
        "interrupt": KeyboardInterrupt(), "group": BaseExceptionGroup("two", [BaseException("one of them")]),
        "unshowable": Unshowable(), "half a pair": ValueError("\\ud800"),
    }
    if text in errors:
        raise errors[text]
    if text == "huge":
        return Verdict.model_construct(status="scored", value=10**5000, steps=(), evidence=())
    return Verdict.score(1.0, evidence=Evidence(summary="read \\ud800", data={"\\udfff": ["\\ud800"]}))

class Answers:
    limits = Limits(max_batch=8, max_wait_s=0.01)
    async def judge(self, batch): return [answer(c.rollout.text) for c in batch]
    async def aclose(self): pass

answers = verifier("answers")(lambda task, rollout: answer(rollout.text))
answers_inline = verifier("answers-inline", isolation="inline")(lambda task, rollout: answer(rollout.text))

@hookimpl
def assay_reward_sources():
    """Offer them."""
    return [
        one, half, even, spoils, honest, answers, answers_inline,
        Component("answers-batch", Options, lambda options, context: Answers(), isolation="inline"),
        Component("flaky", Options, lambda options, context: Flaky(), isolation="inline"),
        Component("ranking", Options, lambda options, context: Ranking(), isolation="inline"),
        Component("ranking-process", Options, lambda options, context: Ranking(), isolation="process"),
        Component("model-a", Options, lambda options, context: Model("a", 1.0), isolation="inline"),
        Component("model-b", Options, lambda options, context: Model("b", 3.0), isolation="inline"),
    ]
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module with the sources above."""
    name = f"panel_sources_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCES, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def calls_of(module: str) -> list[tuple[str, Any]]:
    import importlib

    return importlib.import_module(module).CALLS


def panel(
    module: str,
    entries: Sequence[dict[str, Any]],
    *,
    judging: JudgingConfig = LENIENT,
    seen: list[Judgement] | None = None,
    distribution: str = "test-plugins",
) -> Panel:
    return open_panel(
        ENTRIES.validate_python(entries),
        registry=registry_of(module, "assay.testing.faulty", distribution=distribution),
        judging=judging,
        context=BuildContext(base_dir=Path.cwd()),
        observe=None if seen is None else lambda _, judgement: seen.append(judgement),
    )


def judge(
    module: str, entries: Sequence[dict[str, Any]], texts: Sequence[str], *, task: Task | None = None, **options: Any
) -> tuple[Reward, ...]:
    async def run() -> tuple[Reward, ...]:
        async with panel(module, entries, **options) as opened:
            return await opened.judge_group(task or make_task(), make_group(texts))

    return asyncio.run(run())


def values(rewards: Sequence[Reward]) -> list[float | None]:
    return [reward.value for reward in rewards]


def test_the_list_is_a_weighted_sum_with_channels_apart(module: str) -> None:
    entries = [
        {"use": "one", "weight": 2.0},
        {"use": "half", "weight": -1.0},
        {"use": "even", "channel": "cost"},
    ]
    rewards = judge(module, entries, ["ab", "abc"])
    assert values(rewards) == [1.5, 1.5]
    assert [reward.channels["cost"] for reward in rewards] == [1.0, 0.0]
    assert [part.source for part in rewards[0].parts] == ["one", "half", "even"]
    assert rewards[0].steps[0].value == 1.0


def test_a_closed_gate_leaves_the_rest_unasked(module: str) -> None:
    rewards = judge(module, [{"gate": {"use": "even"}, "then": {"use": "half"}}], ["ab", "abc"])
    assert values(rewards) == [0.5, 0.25]  # closed: the lowest score of `half`
    assert [text for name, text in calls_of(module) if name == "half"] == ["ab"]
    assert values(judge(module, [{"gate": {"use": "even"}, "then": {"use": "half"}, "closed": -1}], ["abc"])) == [-1.0]


def test_a_cascade_asks_on_only_where_the_first_abstains(module: str) -> None:
    rewards = judge(module, [{"cascade": [{"use": "half"}, {"use": "one"}]}], ["ab", ""])
    assert values(rewards) == [0.5, 1.0]
    assert [text for name, text in calls_of(module) if name == "one"] == [""]


def test_minimum_and_product(module: str) -> None:
    assert values(judge(module, [{"min": [{"use": "one"}, {"use": "half"}]}], ["ab"])) == [0.5]
    assert values(judge(module, [{"product": [{"use": "half"}, {"use": "half"}]}], ["ab"])) == [0.25]


def test_entries_apply_by_tag(module: str) -> None:
    entries = [{"use": "one", "when": {"tag": "math"}}, {"use": "half", "when": {"tag": ["code", "text"]}}]
    assert values(judge(module, entries, ["ab"], task=make_task(tags=("math",)))) == [1.0]
    assert values(judge(module, entries, ["ab"], task=make_task(tags=("text", "math")))) == [1.5]
    (reward,) = judge(module, entries, ["ab"], task=make_task())
    assert (reward.value, reward.reason) == (None, "no entry of rewards applies to this task")


def test_the_candidates_fault_gets_the_declared_score(module: str) -> None:
    assert values(judge(module, [{"use": "half"}], ["", "x"])) == [0.25, 0.5]
    assert values(judge(module, [{"use": "half", "on_candidate_fault": -3}], ["", "x"])) == [-3.0, 0.5]
    assert values(judge(module, [{"use": "half", "on_candidate_fault": "mask"}], ["", "x"])) == [None, 0.5]


def test_a_duplicate_in_a_group_is_judged_once(module: str) -> None:
    seen: list[Judgement] = []
    rewards = judge(module, [{"use": "even"}], ["ab"] * 6 + ["abc"], seen=seen)
    assert values(rewards) == [1.0] * 6 + [0.0]
    assert len(calls_of(module)) == 2
    assert sum(judgement.cached for judgement in seen) == 5
    assert {judgement.rollout_id for judgement in seen} == {f"r{index}" for index in range(7)}


def test_without_cache_every_duplicate_is_judged(module: str) -> None:
    seen: list[Judgement] = []
    judge(module, [{"use": "even"}], ["ab"] * 10, judging=JudgingConfig(cache=False), seen=seen)
    assert len(calls_of(module)) == 10
    assert not any(judgement.cached for judgement in seen)


def test_the_same_source_in_two_entries_is_asked_once(module: str) -> None:
    judge(module, [{"use": "even"}, {"gate": {"use": "even"}, "then": {"use": "one"}}], ["ab"])
    assert [name for name, _ in calls_of(module)] == ["even", "one"]


@pytest.mark.parametrize("use", ["even", "ranking"])
def test_an_answer_that_the_engine_gave_up_is_failed_and_never_a_number(use: str, module: str) -> None:
    drawn, given_up = make_group(["ab", ""])
    given_up = given_up.model_copy(update={"finish": "error"})

    async def run() -> tuple[Reward, ...]:
        async with panel(module, [{"use": use, "on_candidate_fault": 0.0}]) as opened:
            return await opened.judge_group(make_task(), [drawn, given_up])

    first, second = asyncio.run(run())
    assert first.value is not None
    assert (second.value, second.parts[0].status) == (None, "failed")
    assert second.parts[0].reason == "the engine could not draw this answer"


def test_transient_errors_are_tried_again(module: str) -> None:
    seen: list[Judgement] = []
    rewards = judge(module, [{"use": "flaky"}], ["ab"], seen=seen)
    assert values(rewards) == [1.0]
    assert seen[0].attempt == 3


def test_other_errors_and_used_up_retries_are_not(module: str) -> None:
    seen: list[Judgement] = []
    entries = [{"use": "faulty", "retries": 1, "timeout_s": 60.0}]
    rewards = judge(module, entries, ["fault:transient", "fault:raise"], seen=seen)
    assert values(rewards) == [None, None]
    attempts = {judgement.reason: judgement.attempt for judgement in seen}
    assert attempts == {"TransientError: the judge is busy": 2, "ValueError: a verifier's bug": 1}


def test_one_bad_candidate_in_a_batch_costs_one_verdict(module: str) -> None:
    texts = ["a", "bb", "fault:hang", "ccc", "fault:short", "fault:raise", "dddd", "fault:nan"]
    seen: list[Judgement] = []
    rewards = judge(module, [{"use": "faulty-batch", "timeout_s": 0.3}], texts, seen=seen)
    assert values(rewards) == [1.0, 0.0, None, 1.0, None, None, 0.0, None]
    reasons = {judgement.rollout_id: judgement.reason for judgement in seen}
    assert reasons["r2"] == "timed out after 0.3 s"
    assert reasons["r4"] == "returned 0 verdicts for 1 candidates"


def test_batches_are_as_few_as_they_can_be(module: str) -> None:
    judge(module, [{"use": "model-a"}], [f"text {index}" for index in range(50)], distribution="assay")
    sizes = [size for name, size in calls_of(module) if name == "a"]
    assert sum(sizes) == 50
    assert len(sizes) <= 7 + 2


def test_sources_on_one_device_take_turns_by_weight(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The device is charged by time: by this clock every call takes one second, however busy the machine is.
    monkeypatch.setattr("assay.judging.source.time", SimpleNamespace(monotonic=lambda: float(len(calls_of(module)))))
    texts = [f"text {index}" for index in range(160)]
    judge(module, [{"use": "model-a"}, {"use": "model-b"}], texts, distribution="assay")
    names = [name for name, _ in calls_of(module)]
    assert names.count("a") <= 22
    assert names.count("b") <= 22
    first_half = names[: len(names) // 2]
    assert first_half.count("b") > 1.5 * first_half.count("a")


def test_a_group_source_sees_the_whole_group_once(module: str) -> None:
    for name in ("ranking", "ranking-process"):
        assert values(judge(module, [{"use": name}, {"use": "half"}], ["a", "abc", "ab"])) == [0.5, 1.5, 0.5]
    assert [call for call in calls_of(module) if call[0] == "ranking"] == [("ranking", 3)]

    async def alone() -> None:
        async with panel(module, [{"use": "ranking"}]) as opened:
            assert opened.judges_groups
            await opened.judge(make_task(), make_rollout("x"))

    with pytest.raises(JudgingError, match="judges whole groups"):
        asyncio.run(alone())


def test_prints_of_inline_sources_are_captured(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Judgement] = []
    judge(module, [{"use": "half"}, {"use": "one"}], ["ab"], seen=seen)
    outputs = {judgement.source: judgement.output for judgement in seen}
    assert outputs == {"half": "half was here\n", "one": ""}
    assert capsys.readouterr().out == ""


def test_a_source_cannot_spoil_what_others_see(module: str) -> None:
    task = make_task(facts={"gold": 4})
    assert values(judge(module, [{"use": "spoils"}, {"use": "honest"}], ["x", "y"], task=task)) == [2.0, 2.0]
    assert task.facts == {"gold": 4}


def test_a_sick_source_stops_the_run_at_the_26th_failure(module: str) -> None:
    seen: list[Judgement] = []

    async def run() -> None:
        async with panel(module, [{"use": "faulty-inline"}], judging=JudgingConfig(), seen=seen) as opened:
            for index in range(50):
                text = f"fine {index}" if index < 10 else f"fault:raise {index}"
                await opened.judge(make_task(), make_rollout(text, f"r{index}"))

    with pytest.raises(
        JudgingError, match=r"'faulty-inline': 26 of the last 36 verdicts failed \(raised ValueError 26\)"
    ):
        asyncio.run(run())
    assert len(seen) == 36


def test_a_sick_source_is_masked_where_asked_and_recovers(module: str) -> None:
    seen: list[Judgement] = []

    async def run() -> list[float | None]:
        judging = JudgingConfig(on_unhealthy="mask", cache=False)
        async with panel(module, [{"use": "faulty-inline"}], judging=judging, seen=seen) as opened:
            for index in range(30):
                await opened.judge(make_task(), make_rollout(f"fault:raise {index}"))
            return [(await opened.judge(make_task(), make_rollout("fine"))).value for _ in range(600)]

    found = asyncio.run(run())
    assert found[:5] == [None] * 5
    assert found[-1] == 0.0
    masked = [judgement for judgement in seen if "the source is masked" in (judgement.reason or "")]
    assert 0 < len(masked) < 600


def test_the_first_failure_stops_the_run_where_asked(module: str) -> None:
    with pytest.raises(JudgingError, match=r"failed on task 'task': ValueError: a verifier's bug\. The run stops"):
        judge(module, [{"use": "faulty-inline"}], ["fault:raise"], judging=JudgingConfig(on_failed="stop"))


def test_candidates_cannot_make_a_source_sick(module: str) -> None:
    entries = [{"use": "faulty", "timeout_s": 0.05, "limit_fault": "candidate", "deterministic": False}]
    rewards = judge(module, entries, ["fault:sleep"] * 30, judging=JudgingConfig())
    assert values(rewards) == [0.0] * 30


def test_unreadable_golds_are_found_beforehand(module: str) -> None:
    async def run() -> list[list[str]]:
        entries = [{"use": "faulty"}, {"use": "faulty-inline", "when": {"tag": "math"}}]
        async with panel(module, entries) as opened:
            tasks = [
                make_task(reference="4"),
                make_task(reference="unreadable"),
                make_task(reference="unreadable", tags=("math",)),
            ]
            return [await opened.check_task(task) for task in tasks]

    complaint = "the gold cannot be read"
    expected = [[], [f"faulty: {complaint}"], [f"faulty: {complaint}", f"faulty-inline: {complaint}"]]
    assert asyncio.run(run()) == expected


def test_wrong_entries_are_refused_before_anything_starts(module: str) -> None:
    with pytest.raises(ConfigError, match=r"rewards\[1\]\.use: no reward source named 'evn'; installed: .*'even'\?"):
        panel(module, [{"use": "one"}, {"use": "evn"}])
    with pytest.raises(ConfigError, match=r"rewards\[0\]\.min\[1\]: unknown key 'timeot_s'"):
        panel(module, [{"min": [{"use": "one"}, {"use": "faulty", "timeot_s": 1}]}])


@pytest.mark.parametrize("use", ["faulty", "faulty-inline", "faulty-batch"])
def test_injected_faults_never_become_numbers(module: str, use: str) -> None:
    generator = random.Random(7)
    kinds = ["raise", "nan", "short", "string", "abstain", "ours", "outside", "swap"]
    texts = [
        f"fault:{generator.choice(kinds)} {index}" if generator.random() < 0.5 else f"text {'x' * index}"
        for index in range(120)
    ]
    rewards = judge(module, [{"use": use, "on_candidate_fault": "mask", "timeout_s": 60.0}], texts)
    for text, reward in zip(texts, rewards, strict=True):
        masked = text.startswith("fault:") and "swap" not in text
        assert reward.value == (None if masked else faulty.healthy(text).value)
    assert [reward.rollout_id for reward in rewards] == [f"r{index}" for index in range(120)]


@pytest.mark.parametrize("distribution", ["test-plugins", "assay"])
@pytest.mark.parametrize("use", ["answers", "answers-inline", "answers-batch"])
def test_whatever_a_source_raises_is_one_failed_verdict_with_its_cause(
    module: str, use: str, distribution: str
) -> None:
    texts = ["base", "a", "cancelled", "generator", "b", "interrupt", "group", "unshowable", "half a pair", "huge", "c"]
    seen: list[Judgement] = []
    rewards = judge(module, [{"use": use}], texts, seen=seen, distribution=distribution)
    good = [text in "abc" for text in texts]
    assert values(rewards) == [1.0 if scored else None for scored in good]
    reasons = {judgement.rollout_id: judgement.reason or "" for judgement in seen}
    named = ["BaseException: base", "CancelledError", "GeneratorExit", "KeyboardInterrupt", "BaseExceptionGroup: two"]
    named += ["Unshowable", "\\ud800", "of more than 308 digits"]
    for (index, _), name in zip([item for item in enumerate(good) if not item[1]], named, strict=True):
        assert name in reasons[f"r{index}"]


@pytest.mark.parametrize("use", ["answers", "answers-inline", "answers-batch"])
def test_half_a_surrogate_pair_in_the_evidence_costs_no_score(module: str, use: str) -> None:
    seen: list[Judgement] = []
    judge(module, [{"use": use}], ["a"], seen=seen)
    (evidence,) = seen[0].verdict.evidence
    assert (evidence.summary, evidence.data) == ("read \ufffd", {"\ufffd": ["\ufffd"]})


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_answers_in_another_order_never_become_numbers(
    module: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    generator = random.Random(3)
    texts = [
        f"{'fault:swap ' if generator.random() < share else ''}{'x' * generator.randrange(40)}" for _ in range(200)
    ]
    rewards = judge(module, [{"use": "faulty-batch"}], texts, judging=JudgingConfig(cache=False))
    assert values(rewards) == [faulty.healthy(text).value for text in texts]
    assert sum("in another order" in record.message for record in caplog.records) >= 1


def test_a_policy_gains_nothing_by_answers_that_nobody_can_judge(module: str) -> None:
    entries = [{"use": "faulty", "timeout_s": 3.0, "limit_fault": "candidate"}]
    honest = judge(module, entries, ["wrong.", "right", "wrong!", "rightt!"])
    towers = judge(module, entries, ["fault:sleep", "right", "fault:abstain", "rightt!"])
    assert values(honest) == values(towers) == [0.0, 1.0, 0.0, 1.0]


def test_a_policy_escapes_no_penalty_by_answers_that_nobody_can_judge(module: str) -> None:
    for entry, worst in (({"weight": -2.0}, -1.5), ({"channel": "cost"}, 0.75), ({"channel": "metric"}, 0.25)):
        (escaped, judged) = judge(module, [{"use": "half", **entry}], ["", "x"])
        channel = str(entry.get("channel", "reward"))
        assert escaped.channels[channel] == worst
        assert judged.channels[channel] == 0.5 * float(entry.get("weight", 1.0))
        assert escaped.parts[0].declared


def test_cancelling_frees_the_slot(module: str) -> None:
    async def run() -> float:
        judging = JudgingConfig(workers=1)
        async with panel(module, [{"use": "faulty", "timeout_s": 600.0}], judging=judging) as opened:
            stuck = asyncio.create_task(opened.judge(make_task(), make_rollout("fault:sleep")))
            await asyncio.sleep(0.5)
            stuck.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stuck
            loop = asyncio.get_running_loop()
            started = loop.time()
            await opened.judge(make_task(), make_rollout("fine"))
            return loop.time() - started

    assert asyncio.run(run()) < 120


def test_a_follower_takes_over_when_its_leader_is_cancelled(module: str) -> None:
    async def run() -> float | None:
        async with panel(module, [{"use": "model-a"}]) as opened:
            leader = asyncio.create_task(opened.judge(make_task(), make_rollout("same", "r0")))
            await asyncio.sleep(0.001)
            follower = asyncio.create_task(opened.judge(make_task(), make_rollout("same", "r1")))
            await asyncio.sleep(0.001)
            leader.cancel()
            return (await follower).value

    assert asyncio.run(run()) == 1.0


def test_metrics_count_everything(module: str) -> None:
    async def run() -> dict[str, float]:
        async with panel(module, [{"use": "faulty", "timeout_s": 3.0}]) as opened:
            await opened.judge_group(make_task(), make_group(["a", "a", "fault:sleep", "fault:abstain"]))
            return opened.metrics()

    metrics = asyncio.run(run())
    assert {name: metrics[f"faulty/{name}"] for name in ("scored", "abstained", "failed", "cached", "kills")} == {
        "scored": 2,
        "abstained": 1,
        "failed": 1,
        "cached": 1,
        "kills": 1,
    }
    assert metrics["faulty/max_ms"] >= 3000
    assert metrics["workers/timed_out"] == 1
