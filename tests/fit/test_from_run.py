"""A run's own rewards as data: rejection sampling, pairs, labels and lists of what was really sampled."""

from pathlib import Path
from typing import Any

import pytest

from assay import train
from assay.config.fit import ExampleData, GroupExamples
from assay.config.load import parse_config
from assay.contracts import Message, Reward, Rollout, RunInfo, ScoredGroup, Task, Turn
from assay.errors import ConfigError
from assay.store import RunStore
from assay.training.encoder import TextEncoder
from assay.training.examples import ExampleSet, read_examples
from assay.training.group_rows import rows_of_group
from assay.training.model import load_policy
from assay_optim import objective

REWARDS = {
    "1+1=": [("2", 1.0), ("3", 0.0), ("2", 1.0), ("4", 0.25)],
    "1+2=": [("5", 0.0), ("6", 0.0), ("7", 0.0), ("8", 0.0)],
    "2+2=": [("4", 1.0), ("9", None), ("44", 0.5), ("", 0.0)],
}


@pytest.fixture
def earlier(folder: Path) -> Path:
    """A stored run of three groups; responses were cut off, so that no end token was sampled."""
    tokenizer = load_policy("model", base_dir=folder).tokenizer

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    run = folder / "runs" / "earlier-0001"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('kind = "rlvr"\n', encoding="utf-8")
    info = RunInfo(id=run.name, name="earlier", kind="rlvr", folder=str(run), seed=0)
    with RunStore.create(run, info) as store:
        for prompt, answers in REWARDS.items():
            task = Task(id=prompt, messages=(Message(role="user", content=prompt),), reference=answers[0][0])
            for number, (text, value) in enumerate(answers):
                rollout = Rollout(
                    id=f"{prompt}{number}", task_id=prompt, group_id=prompt, prompt_ids=ids(prompt), finish="length",
                    turns=(Turn(text=text, token_ids=ids(text)),),
                )  # fmt: skip
                reason = "masked" if value is None else None
                store.add_rollout(rollout, step=1, task=task)
                store.add_reward(Reward(rollout_id=rollout.id, value=value, reason=reason), step=1, group_id=prompt)
    return run


def read(folder: Path, name: str, **choice: Any) -> tuple[ExampleSet, TextEncoder]:
    """What an objective learns from the stored run."""
    encoder = TextEncoder(load_policy("model", base_dir=folder).tokenizer)
    data = ExampleData(use="run", path="earlier-0001", holdout=0, **choice)
    return (
        read_examples(data, objective(name), encoder, seed=0, base_dir=folder, runs_dir=folder / "runs"),
        encoder,
    )


def texts(found: tuple[ExampleSet, TextEncoder]) -> list[list[str]]:
    """The responses of each example."""
    examples, encoder = found
    letters = {encoder.ids(letter)[0]: letter for letter in "0123456789"}
    return [
        ["".join(letters[token] for token in response) for _, response in each.sequences] for each in examples.trained
    ]


def test_the_best_rollouts_of_a_run_are_imitated(folder: Path, earlier: Path) -> None:
    assert texts(read(folder, "sft")) == [["2"], ["4"]]
    assert texts(read(folder, "sft", keep=3)) == [["2"], ["4"], ["44"]], "equal texts once, masked and empty ones never"
    assert texts(read(folder, "sft", keep=3, good_from=0.9)) == [["2"], ["4"]]
    assert texts(read(folder, "sft", keep=1, good_from=0.0)) == [["2"], ["5"], ["4"]], "the best, even if it is bad"


def test_pairs_labels_and_lists_are_made_by_reward(folder: Path, earlier: Path) -> None:
    assert texts(read(folder, "dpo")) == [["2", "3"], ["4", "44"]]
    assert texts(read(folder, "dpo", least_gap=0.6)) == [["2", "3"]]
    assert texts(read(folder, "spin", chosen="reference")) == [
        ["2", "4"], ["2", "3"], ["5", "6"], ["5", "7"], ["5", "8"], ["4", "44"],
    ]  # fmt: skip
    assert texts(read(folder, "larpo")) == [["2", "4", "3"], ["4", "44"]]
    labelled, _ = read(folder, "kto")
    assert [example.facts["label"] for example in labelled.trained] == [
        True, False, False, False, False, False, False, True, True,
    ]  # fmt: skip


def test_the_surest_pairs_of_a_run_are_chosen_by_their_gap(folder: Path, earlier: Path) -> None:
    encoder = TextEncoder(load_policy("model", base_dir=folder).tokenizer)
    ours = objective("dpo", select={"sources": [{"column": "gap", "low": 0.0}], "keep": 0.5})
    data = ExampleData(use="run", path="0001", holdout=0)
    found = read_examples(data, ours, encoder, seed=0, base_dir=folder, runs_dir=folder / "runs")
    assert texts((found, encoder)) == [["2", "3"]]
    assert found.left_out == {"not chosen": 1}


def test_the_sampled_tokens_are_learned_and_no_others(folder: Path, earlier: Path) -> None:
    examples, encoder = read(folder, "sft")
    prompt, response = examples.trained[0].sequences[0]
    assert (prompt, response) == (encoder("1+1=", "2")[0], encoder.ids("2")), (
        "an end that was not sampled is not learned"
    )
    assert encoder("1+1=", "2")[1] == (*encoder.ids("2"), *response[1:], encoder("", "")[1][-1])


def test_a_run_distils_into_another_model(folder: Path, earlier: Path) -> None:
    table = {
        "kind": "sft",
        "policy": {"model": "model"},
        "data": {"use": "run", "path": "0001", "holdout": 0, "keep": 3},
        "training": {"learning_rate": 3e-3, "batch_size": 3, "epochs": 15},
    }
    run = train(parse_config(table), base_dir=folder)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] - 2


def test_steps_cannot_be_learned_from_rewards_of_whole_responses(folder: Path, earlier: Path) -> None:
    table = {
        "kind": "prm",
        "model": {"base": "model"},
        "data": {"use": "run", "path": "0001"},
        "objective": {"use": "step"},
    }
    with pytest.raises(ConfigError, match="label the steps first: assay label"):
        train(parse_config(table), base_dir=folder)


def test_a_reference_that_is_no_text_cannot_be_preferred() -> None:
    task = Task(id="t", messages=(Message(role="user", content="?"),), reference=3)
    rollout = Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text="2", token_ids=(1,)),))
    group = ScoredGroup(task=task, rollouts=(rollout,), rewards=(Reward(rollout_id="r", value=0.0),))
    with pytest.raises(
        ConfigError, match="task 't': chosen = \"reference\" needs a text to prefer; the reference is 3"
    ):
        rows_of_group(group, "pairs", GroupExamples(chosen="reference"))
