"""A stored run judged again: only what changed is judged, and what came out otherwise is told."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from assay.cli import main
from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Candidate, Judgement, RunInfo, Task
from assay.judging import open_panel
from assay.registry import Registry
from assay.rescoring import Again, Counts, judge_again
from assay.runs import run_folders
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task, registry_of

SOURCES = '''
"""Sources that count how often they are asked."""
from assay import Component, Limits, Options, Verdict, hookimpl, verifier

asked = {"long": 0, "moody": 0, "broken": 0, "ranks": 0}

@verifier("long", isolation="inline")
def long(task, rollout):
    """Whether the answer is long."""
    asked["long"] += 1
    return Verdict.score(float(len(rollout.text) > 3))

@verifier("moody", isolation="inline", deterministic=False)
def moody(task, rollout):
    """A value that is never the same."""
    asked["moody"] += 1
    return Verdict.score(1 / asked["moody"])

@verifier("broken", isolation="inline")
def broken(task, rollout):
    """Nothing but an error."""
    asked["broken"] += 1
    raise ValueError("broken")

class Ranks:
    limits = Limits(scope="group")
    fingerprint = "first"

    async def judge(self, batch):
        asked["ranks"] += 1
        order = sorted(len(candidate.rollout.text) for candidate in batch)
        return [Verdict.score(order.index(len(c.rollout.text)) / len(batch)) for c in batch]

    async def aclose(self):
        pass

@hookimpl
def assay_reward_sources():
    """Offer them."""
    return [long, moody, broken, Component("ranks", Options, lambda options, context: Ranks(), isolation="inline")]
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rescoring")
    (folder / "rescoring_sources.py").write_text(SOURCES, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield "rescoring_sources"
    sys.path.remove(str(folder))


def entries(*names: str) -> tuple[RewardEntry, ...]:
    return TypeAdapter(tuple[RewardEntry, ...]).validate_python([{"use": name} for name in names])


def judge_first(folder: Path, registry: Registry, *names: str) -> RunStore:
    """A store of two groups of two, judged."""
    store = RunStore.create(folder, RunInfo(id="run", name="n", kind="rlvr", folder=str(folder), seed=1))

    async def judge() -> None:
        async with open_panel(
            entries(*names),
            registry=registry,
            judging=JudgingConfig(on_unhealthy="mask"),
            observe=lambda _, judgement: store.add_judgement(judgement),
        ) as panel:
            for number in range(2):
                task = make_task(f"t{number}")
                rollouts = [
                    make_rollout(text, f"r{number}{index}", task_id=task.id, group_id=f"g{number}")
                    for index, text in enumerate(("ab", "abcd"))
                ]
                for rollout in rollouts:
                    store.add_rollout(rollout, step=1, task=task)
                for reward in await panel.judge_group(task, rollouts):
                    store.add_reward(reward, step=1, group_id=f"g{number}")

    asyncio.run(judge())
    store.flush()
    return store


def again(
    store: RunStore, registry: Registry, *names: str, changed_only: bool = True, tasks: dict[str, Task] | None = None
) -> tuple[list[Again], Counts]:
    found: list[Again] = []
    counts = asyncio.run(
        judge_again(
            store,
            entries(*names),
            found.append,
            registry=registry,
            context=BuildContext(),
            judging=JudgingConfig(),
            tasks=tasks or {},
            changed_only=changed_only,
        )
    )
    return found, counts


def test_nothing_is_judged_again_where_nothing_changed(module: str, tmp_path: Path) -> None:
    names = ("long", "moody", "broken", "ranks")
    registry = registry_of(module)
    with judge_first(tmp_path / "run", registry, *names) as store:
        before = dict(sys.modules[module].asked)
        found, counts = again(store, registry, *names)
        assert sys.modules[module].asked == before
        assert (counts.rollouts, counts.judged, counts.kept, counts.changed) == (4, 0, 16, 0)
        stored = {entry.rollout.id: entry for entry in store.rollouts()}
        for result in found:
            assert result.reward == stored[result.entry.rollout.id].reward
        _, counts = again(store, registry, *names, changed_only=False)
        assert (counts.judged, counts.kept) == (16, 0)
        assert counts.by_source == {"moody": 4}


def test_a_changed_task_is_judged_again_by_every_source(module: str, tmp_path: Path) -> None:
    registry = registry_of(module)
    with judge_first(tmp_path / "run", registry, "long", "ranks") as store:
        before = dict(sys.modules[module].asked)
        _, counts = again(store, registry, "long", "ranks", tasks={"t1": make_task("t1", reference="new")})
        assert sys.modules[module].asked["long"] == before["long"] + 2
        assert sys.modules[module].asked["ranks"] == before["ranks"] + 1
        assert (counts.judged, counts.kept, counts.changed) == (4, 4, 0)


def test_a_new_version_is_judged_again_and_its_changes_say_so(module: str, tmp_path: Path) -> None:
    with judge_first(tmp_path / "run", registry_of(module), "moody", "long") as store:
        found, counts = again(store, registry_of(module, version="1.1"), "moody", "long")
    assert (counts.judged, counts.kept, counts.by_source) == (8, 0, {"moody": 4})
    assert {change.why for result in found for change in result.changes} == {"version 1.0 -> 1.1"}
    assert all(change.old and change.old.value != change.new.value for result in found for change in result.changes)


def test_a_judgement_keeps_the_digest_of_its_sources_fingerprint(module: str) -> None:
    seen: list[Judgement] = []

    async def judge(version: str) -> None:
        def observe(_: Candidate, judgement: Judgement) -> None:
            seen.append(judgement)

        registry = registry_of(module, version=version)
        async with open_panel(entries("long"), registry=registry, observe=observe) as panel:
            await panel.judge(make_task(), make_rollout("a"))

    for version in ("1", "1", "2"):
        asyncio.run(judge(version))
    first, second, third = (judgement.fingerprint for judgement in seen)
    assert first == second != third
    assert len(first) == 32


def test_the_command_lists_what_an_edited_verifier_and_an_edited_gold_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "question": "?", "answer": gold, "response": "4"} for name, gold in (("a", "4"), ("b", "5"))]
    data, verifier = tmp_path / "data.jsonl", tmp_path / "mine.py"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    code = "from assay import Verdict\ndef f(task, rollout):\n    return Verdict.score({})\n"
    verifier.write_text(code.format("0.5"), encoding="utf-8")
    assert main(["score", "data.jsonl", "-r", "exact", "-r", "mine.py:f"]) == 0
    first = run_folders(tmp_path / "runs")[-1].name
    verifier.write_text(code.format("0.75"), encoding="utf-8")
    data.write_text("\n".join(json.dumps(row | {"answer": "4"}) for row in rows), encoding="utf-8")
    capsys.readouterr()
    assert main(["score", first, "--changed-only", "--json"]) == 0
    *changes, summary = map(json.loads, capsys.readouterr().out.splitlines())
    told = sorted((c["rollout"], c["source"], c["old"]["value"], c["new"]["value"], c["why"]) for c in changes)
    assert told == [
        ("a", "f", 0.5, 0.75, "source changed"),
        ("b", "exact", 0.0, 1.0, "task changed"),
        ("b", "f", 0.5, 0.75, "task changed"),
    ]
    assert (summary["judged"], summary["kept"], summary["changed"]) == (3, 1, 3)
    assert (summary["reward"]["old"], summary["reward"]["new"]) == (1.0, 1.75)
    assert main(["score", summary["run"], "--changed-only"]) == 0
    assert "2 rollouts: 0 verdicts judged again, 4 kept, 0 changed" in capsys.readouterr().out
    for arguments, complaint in (
        (["data.jsonl", "--changed-only"], "--changed-only: data.jsonl is a file; it takes a run"),
        (["nothing", "--changed-only"], "no run 'nothing' in runs"),
        ([first, "--out", "x"], "--out is for files"),
    ):
        assert main(["score", *arguments]) == 2
        assert complaint in capsys.readouterr().err
