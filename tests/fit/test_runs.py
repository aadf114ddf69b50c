"""A run of each kind that learns from examples: what it learns, what it leaves behind, what it prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay import Run, load_config, train
from assay.cli import main
from assay.config.load import parse_config
from assay.training.model import load_policy

TRAINING = {"learning_rate": 3e-3, "batch_size": 8, "epochs": 4}


def run_of(folder: Path, kind: str, data: str, **more: Any) -> Run:
    """The finished run of a small config."""
    table = {
        "kind": kind,
        "seed": 1,
        "policy": {"model": "model"},
        "data": {"path": data, "holdout": 0.2},
        "training": TRAINING,
        **more,
    }
    return train(parse_config(table), base_dir=folder)


def held_out(run: Run, name: str) -> list[float]:
    """A held-out number, before and after all."""
    lines = run.evaluations
    return [lines[0]["held_out"][name], lines[-1]["held_out"][name]]


def test_imitation_lowers_the_held_out_loss_and_leaves_a_run_folder(folder: Path) -> None:
    run = run_of(folder, "sft", "texts.jsonl")
    before, after = held_out(run, "loss")
    assert after < before - 0.5
    assert [line["step"] for line in run.metrics] == list(range(1, 13)), "20 examples in batches of 8, four times"
    assert [line["examples"] for line in run.metrics[:3]] == [8, 8, 4]
    facts = json.loads((run.folder / "data.json").read_text(encoding="utf-8"))
    assert (facts["trained"], facts["held_out"], facts["problems"]) == (20, 5, 25)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "25 examples, 25 problems; 20 problems train, 5 held out" in page
    assert load_policy(str(run.policy)).model.config.num_hidden_layers == 1
    assert f"held out after step 12: loss {after:.4g}" in run.summary()
    resolved = load_config(run.folder / "config.toml")
    assert resolved.kind == "sft"


OBJECTIVES = [
    ("dpo", "pairs.jsonl", "chosen_above"),
    ("dpo_norm", "pairs.jsonl", "chosen_above"),
    ("ipo", "pairs.jsonl", "chosen_above"),
    ("simpo", "pairs.jsonl", "chosen_above"),
    ("orpo", "pairs.jsonl", "chosen_above"),
    ("hinge", "pairs.jsonl", "chosen_above"),
    ("kto", "labels.jsonl", "loss"),
    ("bnf", "pairs.jsonl", "loss"),
    ("larpo", "lists.jsonl", "loss"),
    ("larpo_listmle", "lists.jsonl", "loss"),
]


@pytest.mark.parametrize(("name", "data", "measure"), OBJECTIVES)
def test_preferences_of_a_file_are_learned(folder: Path, name: str, data: str, measure: str) -> None:
    training = {**TRAINING, "epochs": 2}
    run = run_of(folder, "preference", data, objective={"use": name}, training=training, steps=6)
    first, last = run.metrics[0], run.metrics[-1]
    better = last[measure] > first[measure] if measure == "chosen_above" else last[measure] < first[measure]
    assert better, f"{name}: {measure} {first[measure]} -> {last[measure]}"
    assert len(run.metrics) == 6


def test_a_named_reference_is_what_log_ratios_are_taken_to(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    from assay.training.tiny import make_tiny_model

    other = make_tiny_model(tmp_path_factory.mktemp("other") / "model", seed=5, hidden_size=32, layers=1)
    own = run_of(folder, "preference", "pairs.jsonl", objective={"use": "dpo"}, steps=0)
    named = run_of(folder, "preference", "pairs.jsonl", objective={"use": "dpo"}, steps=0, reference=str(other))
    assert held_out(own, "margin") == [0.0, 0.0], "a policy is its own reference at the start"
    assert abs(held_out(named, "margin")[0]) > 1e-3


def test_a_second_stream_keeps_what_the_first_would_forget(folder: Path) -> None:
    stream = {"path": "plain.jsonl", "weight": 2.0, "objective": {"use": "sft", "text_column": "text"}}
    run = run_of(folder, "sft", "texts.jsonl", stream=stream)
    losses = [line["stream_loss"] for line in run.metrics]
    assert losses[-1] < losses[0] - 0.5
    assert held_out(run, "loss")[1] < held_out(run, "loss")[0]
    facts = json.loads((run.folder / "data.json").read_text(encoding="utf-8"))
    assert facts["stream"]["trained"] == 25
    assert "second stream 25 examples" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_an_adapter_leaves_a_whole_model(folder: Path) -> None:
    pytest.importorskip("peft", reason="an adapter needs peft")
    training = {**TRAINING, "epochs": 1, "lora": {"rank": 4}}
    run = run_of(folder, "preference", "pairs.jsonl", objective={"use": "dpo"}, training=training)
    assert run.policy == run.folder / "model"
    assert load_policy(str(run.policy)).model.config.hidden_size == 64
    assert list((run.folder / "checkpoints").glob("*/adapter.safetensors"))


def test_a_reward_model_is_a_source_afterwards(folder: Path) -> None:
    from assay.contracts import Candidate, Message, Rollout, Task, Turn

    table = {
        "kind": "prm",
        "seed": 1,
        "model": {"base": "model"},
        "data": {"path": "labels.jsonl", "holdout": 0.2},
        "objective": {"use": "outcome"},
        "training": {**TRAINING, "epochs": 2},
    }
    run = train(parse_config(table), base_dir=folder)
    source = run.reward_source()
    task = Task(id="t", messages=(Message(role="user", content="1+2="),))
    rollouts = [Rollout(id=text, task_id="t", group_id="g", turns=(Turn(text=text),)) for text in ("3", "6")]

    import asyncio

    async def judge() -> list[Any]:
        try:
            return list(await source.judge([Candidate(task=task, rollout=rollout) for rollout in rollouts]))
        finally:
            await source.aclose()

    verdicts = asyncio.run(judge())
    assert [verdict.status for verdict in verdicts] == ["scored", "scored"]
    assert verdicts[0].value != verdicts[1].value
    assert all(verdict.value is not None and 0 < verdict.value < 1 for verdict in verdicts)


def test_only_a_reward_model_is_a_source(folder: Path) -> None:
    from assay.errors import TrainingError

    run = run_of(folder, "sft", "texts.jsonl", steps=1)
    with pytest.raises(TrainingError, match=r"no reward model; reward_model\.json is missing"):
        run.reward_source()


def test_the_command_line_checks_trains_and_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dpo.toml").write_text(
        'kind = "preference"\npolicy = { model = "model" }\nobjective = { use = "dpo" }\n'
        'data = { path = "pairs.jsonl", holdout = 0.2 }\ntraining = { learning_rate = 1e-3, batch_size = 8 }\n',
        encoding="utf-8",
    )
    assert main(["train", "dpo.toml", "--dry-run"]) == 0
    assert "everything that can be checked before work is in order" in capsys.readouterr().out
    assert not Path("runs").exists()
    assert main(["train", "dpo.toml", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert next(event["event"] for event in events if event["event"] != "note") == "data"
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3]
    assert events[-1]["status"] == "done"
    assert main(["show", "latest"]) == 0
    assert "held out" in capsys.readouterr().out
