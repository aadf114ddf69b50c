"""A stored run as data sets of other trainers: what they hold, what is left out, and that their readers take them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from assay.contracts import Judgement, Message, Reward, RunInfo, Span, StepScore, Task, Verdict
from assay.errors import ConfigError, StoreError
from assay.store import RunStore
from assay.store.datasets import SUFFIXES, Choice, export_dataset
from assay.testing.fakes import make_rollout

TASKS = [
    Task(
        id="a",
        messages=(Message(role="system", content="Be brief."), Message(role="user", content="2 + 2?")),
        reference="4",
        facts={"level": 1, "units": ["m"]},
        tags=("sums",),
    ),
    Task(id="b", messages=(Message(role="user", content="3 + 3?"),), reference=[6, 6.0]),
    Task(id="c", messages=(Message(role="user", content="4 + 4?"),)),
]
REWARDS = {"a": [0.25, 1.0, None, 0.0], "b": [0.5, 0.5], "c": [None, 1.0]}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "sums-1a2b"
    info = RunInfo(id=folder.name, name="sums", kind="rlvr", folder=str(folder), seed=7)
    with RunStore.create(folder, info) as made:
        (folder / "config.toml").write_text('kind = "rlvr"\n', encoding="utf-8")
        for task in TASKS:
            for index, value in enumerate(REWARDS[task.id]):
                rollout = make_rollout(
                    f"one {index}\n\ntwo", f"{task.id}{index}", task_id=task.id, group_id=f"g{task.id}"
                )
                made.add_rollout(rollout, step=1, task=task)
                reason = None if value is not None else "timed out"
                made.add_reward(
                    Reward(rollout_id=rollout.id, value=value, reason=reason), step=1, group_id=rollout.group_id
                )
                steps = (
                    StepScore(span=Span(start=0, end=5), value=0.5),
                    StepScore(span=Span(start=7, end=10), value=0.1),
                )
                for source, verdict in (
                    ("math", Verdict.abstain("no answer")),
                    ("stepwise", Verdict.score(0.3, steps=steps) if index == 0 else Verdict.score(0.3)),
                ):
                    judgement = Judgement(
                        rollout_id=rollout.id,
                        task_id=task.id,
                        source=source,
                        version="1.0",
                        options_hash="o",
                        input_hash="i",
                        verdict=verdict,
                        started_at=datetime(2026, 1, 2, tzinfo=UTC),
                        latency_s=0.25,
                    )
                    made.add_judgement(judgement)
        made.flush()
        yield made


def rows(store: RunStore, form: Any, choice: Choice | None = None) -> tuple[list[Any], dict[str, int]]:
    target = store.folder.parent / f"{form}.jsonl"
    written = export_dataset(store, target, form, choice)
    found = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert written.rows == len(found)
    return found, written.left_out


def test_preferences_are_best_and_worst_and_what_is_masked_is_neither(store: RunStore):
    (only,), left_out = rows(store, "trl-preference")
    assert (only["chosen"][0]["content"], only["rejected"][0]["content"]) == ("one 1\n\ntwo", "one 3\n\ntwo")
    assert (only["chosen_reward"], only["rejected_reward"]) == (1.0, 0.0)
    assert [message["role"] for message in only["prompt"]] == ["system", "user"]
    assert left_out == {
        "groups whose rewards are all equal": 1,
        "groups with fewer than two scored rollouts": 1,
    }


def test_unpaired_labels_go_by_the_threshold_and_leave_out_what_has_no_score(store: RunStore):
    found, left_out = rows(store, "trl-unpaired")
    assert [row["label"] for row in found] == [False, True, False, True, True, True]
    assert left_out == {"rollouts without a score": 2}
    assert sum(row["label"] for row in rows(store, "trl-unpaired", Choice(threshold=0.6))[0]) == 2


def test_steps_are_texts_with_labels(store: RunStore):
    found, left_out = rows(store, "trl-prm", Choice(source="stepwise"))
    assert found[0] == {"prompt": "2 + 2?", "completions": ["one 0", "two"], "labels": [True, False]}
    assert (len(found), left_out) == (3, {"rollouts without step scores": 5})
    with pytest.raises(ConfigError, match="nothing to write as trl-prm: 8 rollouts without step scores"):
        rows(store, "trl-prm", Choice(source="math"))


def test_prompts_come_once_with_the_gold_and_the_facts(store: RunStore):
    trl, _ = rows(store, "trl")
    assert [row["reference"] for row in trl] == ["4", [6, 6.0], None]
    assert trl[0]["units"] == ["m"]
    verl, _ = rows(store, "verl")
    assert verl[0]["reward_model"] == {"style": "rule", "ground_truth": "4"}
    assert verl[0]["extra_info"] == {"level": 1, "units": '["m"]', "index": 0, "prompt": "2 + 2?"}
    assert [row["data_source"] for row in verl] == ["sums", "assay", "assay"]
    openrlhf, _ = rows(store, "openrlhf")
    assert [row["label"] for row in openrlhf] == ["4", "[6, 6.0]", None]


def test_the_command_writes_each_form_and_the_library_reads_it(store: RunStore, capsys: pytest.CaptureFixture[str]):
    datasets = pytest.importorskip("datasets", reason="reading as other trainers do needs the library datasets")
    for form, suffix in SUFFIXES.items():
        assert main(["export", "sums-1a2b", "--to", form]) == 0
        assert f"wrote sums-1a2b.{suffix}: " in capsys.readouterr().out
        kind = "parquet" if suffix.endswith(".parquet") else "json"
        read = datasets.load_dataset(kind, data_files=f"sums-1a2b.{suffix}", split="train", cache_dir="cache")
        assert len(read) >= 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "trl-prm", "--source", "math"], "nothing to write as trl-prm: 8 rollouts without step scores"),
        (["--to", "verl", "--source", "math"], "--source math: it is for --to trl-prm; found --to verl"),
        (["--to", "trl-prn"], 'Did you mean "trl-prm"?'),
        (["--to", "trl", "--out", "no/x.jsonl"], "--out no/x.jsonl: the folder no does not exist"),
    ],
)
def test_a_mistake_is_one_sentence(
    store: RunStore, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["export", "sums-1a2b", *arguments]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert told in sentence


def test_a_table_cannot_hold_values_of_several_kinds_and_says_so(store: RunStore):
    rollout = make_rollout("x", "d0", task_id="d", group_id="gd")
    message = Message(role="user", content="?")
    store.add_rollout(rollout, step=2, task=Task(id="d", messages=(message,), facts={"level": "high"}))
    store.flush()
    with pytest.raises(StoreError, match=r"values of a column differ in kind .*; name a \.jsonl file with --out"):
        export_dataset(store, store.folder / "x.parquet", "verl")
