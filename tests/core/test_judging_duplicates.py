"""Duplicate submissions: one execution per content and source, one final judgement each; spans are never shared."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Judgement, Reward, Rollout, RunInfo
from assay.judging import open_panel
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task, registry_of

ENTRIES = TypeAdapter(tuple[RewardEntry, ...])
SOURCES = '''
"""Sources that write down how often they are really asked."""
import os
from assay import Component, Limits, Options, Span, StepScore, Verdict, hookimpl, verifier
from assay.errors import TransientError

def note(name):
    with open(os.environ["ASKED"], "a", encoding="utf-8") as file:
        file.write(name + "\\n")

@verifier("counted", isolation="process")
def counted(task, rollout):
    """1 for texts of even length."""
    note("counted")
    return Verdict.score(float(len(rollout.text) % 2 == 0))

class Busy:
    """Too busy at every first try of a text, then 1."""
    limits = Limits(retries=2, max_batch=1)
    def __init__(self): self.seen = set()
    async def judge(self, batch):
        note("busy")
        text = batch[0].rollout.text
        if text not in self.seen:
            self.seen.add(text)
            raise TransientError("busy")
        return [Verdict.score(1.0)]
    async def aclose(self): pass

class Stepwise:
    """A score for the only step of each candidate; every call counts on."""
    limits = Limits(max_batch=16, max_wait_s=0.5)
    def __init__(self): self.calls = 0
    async def judge(self, batch):
        note("stepwise")
        found = []
        for candidate in batch:
            self.calls += 1
            span = Span(start=0, end=len(candidate.rollout.text))
            found.append(Verdict.score(0.5, steps=(StepScore(span=span, value=self.calls / 100),), credit=True))
        return found
    async def aclose(self): pass

@hookimpl
def assay_reward_sources():
    """Offer them."""
    return [
        counted,
        Component("busy", Options, lambda options, context: Busy(), isolation="inline"),
        Component("stepwise", Options, lambda options, context: Stepwise(), isolation="inline"),
    ]
'''


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that gets a line for each execution, and the module `duplicate_sources` on the path."""
    (tmp_path / "duplicate_sources.py").write_text(SOURCES, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "duplicate_sources", raising=False)
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return tmp_path / "asked"


def submit(
    folder: Path, name: str, rounds: Sequence[Sequence[str]], *, cache: bool = True
) -> tuple[list[Reward], list[Judgement]]:
    """Judge each round's texts all at once, round after round; the rewards, and what the log holds for each rollout."""
    rewards: list[Reward] = []
    rollouts: list[Rollout] = []
    task = make_task()

    async def run(store: RunStore) -> None:
        judging = JudgingConfig(cache=cache, workers=2)
        async with open_panel(
            ENTRIES.validate_python([{"use": name}]),
            registry=registry_of("duplicate_sources", distribution="assay"),
            judging=judging,
            observe=lambda _, judgement: store.add_judgement(judgement),
        ) as panel:
            for number, texts in enumerate(rounds):
                members = [
                    make_rollout(text, f"r{number}-{index}", task_id=task.id, group_id=f"g{number}-{index % 3}")
                    for index, text in enumerate(texts)
                ]
                rollouts.extend(members)
                for rollout in members:
                    store.add_rollout(rollout, step=number, task=task)
                async with asyncio.TaskGroup() as group:
                    judged = [group.create_task(panel.judge(task, rollout)) for rollout in members]
                rewards.extend(found.result() for found in judged)

    info = RunInfo(id="run", name="n", kind="rlvr", folder=str(folder), seed=1)
    with RunStore.create(folder, info) as store:
        asyncio.run(run(store))
        store.flush()
        assert store.count_judgements() == len(rollouts)
        final = [store.rollout(rollout.id).judgements for rollout in rollouts]
    assert all(len(judgements) == 1 for judgements in final)
    return rewards, [judgements[0] for judgements in final]


def test_ten_equal_submissions_are_one_execution_and_ten_equal_answers(asked: Path, tmp_path: Path) -> None:
    rewards, judgements = submit(tmp_path / "run", "counted", [["ab"] * 10, ["ab"] * 2])
    assert asked.read_text("utf-8").splitlines() == ["counted"]
    assert [reward.value for reward in rewards] == [1.0] * 12
    assert len({judgement.verdict.model_dump_json() for judgement in judgements}) == 1
    assert sum(judgement.cached for judgement in judgements) == 11


def test_without_cache_each_submission_is_an_execution_with_one_final_judgement(asked: Path, tmp_path: Path) -> None:
    rewards, judgements = submit(tmp_path / "run", "counted", [["ab"] * 10], cache=False)
    assert asked.read_text("utf-8").splitlines() == ["counted"] * 10
    assert [reward.value for reward in rewards] == [1.0] * 10
    assert not any(judgement.cached for judgement in judgements)


def test_a_retry_is_shared_by_all_who_wait_for_it(asked: Path, tmp_path: Path) -> None:
    rewards, judgements = submit(tmp_path / "run", "busy", [["ab"] * 10, ["ab"]])
    assert asked.read_text("utf-8").splitlines() == ["busy"] * 2  # the try that was too busy, and the one that counted
    assert [reward.value for reward in rewards] == [1.0] * 11
    assert [judgement.attempt for judgement in judgements if not judgement.cached] == [2]


def test_decisions_are_shared_and_spans_never(asked: Path, tmp_path: Path) -> None:
    rewards, judgements = submit(tmp_path / "run", "stepwise", [["ab"] * 6, ["ab", "abc"]])
    assert not any(judgement.cached for judgement in judgements)
    assert sorted(round(100 * reward.steps[0].value) for reward in rewards) == list(range(1, 9))
    assert [reward.value for reward in rewards] == [0.5] * 8
    assert len(asked.read_text("utf-8").splitlines()) <= 3  # one alone, the other five in a batch, then the two
