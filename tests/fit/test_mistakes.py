"""Every mistake in a config or in its data is one sentence with its place, before a run folder exists."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from assay.config.fit import AnyFit
from assay.config.load import parse_config
from assay.errors import ConfigError
from assay.fit import fit

BASE: dict[str, Any] = {"kind": "sft", "policy": {"model": "model"}, "data": {"path": "texts.jsonl"}}
PREFERENCE: dict[str, Any] = {**BASE, "kind": "preference", "data": {"path": "pairs.jsonl"}}


def config(table: dict[str, Any]) -> AnyFit:
    """The checked config of a table."""
    found = parse_config(json.loads(json.dumps(table)), where="c.toml")
    assert isinstance(found, AnyFit)
    return found


def refused(folder: Path, table: dict[str, Any]) -> str:
    """The sentence; nothing was begun."""
    with pytest.raises(ConfigError) as caught:
        fit(config(table), base_dir=folder)
    assert not (folder / "runs").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (BASE | {"policy": {"model": "nowhere"}}, "model 'nowhere': there is no such folder"),
    (BASE | {"data": {"path": "nowhere.jsonl"}}, "nowhere.jsonl: no such file"),
    (BASE | {"data": {}}, "c.toml: data: key 'path' is missing"),
    (BASE | {"trainig": {}}, "Did you mean 'training'?"),
    (
        {
            "kind": "prm",
            "model": {"base": "model"},
            "objective": {"use": "step"},
            "data": {"path": "labels.jsonl"},
            "evaluate": {"best_of": [4, 0]},
        },
        "c.toml: evaluate.best_of[1]: input should be greater than or equal to 1; found 0",
    ),
    (BASE | {"training": {"batch_size": 0}}, "c.toml: training.batch_size"),
    (BASE | {"training": {"learning_rates": 1}}, "Did you mean 'learning_rate'?"),
    (BASE | {"objective": {"use": "sfd"}}, "Did you mean 'sft'?"),
    (
        BASE | {"objective": {"use": "dpo"}},
        "'dpo' is an objective of kind 'preference' and the config's kind is 'sft'; of that kind are sft",
    ),
    (BASE | {"data": {"path": "texts.jsonl", "keep": 2}}, 'keep is for use = "run"; found use = "jsonl"'),
    (
        BASE | {"data": {"path": "latest", "use": "run", "columns": {"prompt": "q"}}},
        'columns is for use = "jsonl"; found use = "run"',
    ),
    (BASE | {"data": {"path": "texts.jsonl", "columns": {"prompt": "q"}}}, "texts.jsonl:1: column 'q'"),
    (
        BASE | {"data": {"path": "texts.jsonl", "split_by": "topic"}},
        "column 'topic' is missing, by which",
    ),
    (BASE | {"data": {"use": "run", "path": "nothing"}}, "nothing"),
    (
        BASE | {"stream": {"path": "plain.jsonl"}},
        "plain.jsonl:1: column 'response': missing; found 'text'",
    ),
    (
        PREFERENCE | {"objective": {"use": "dpo"}, "data": {"path": "texts.jsonl"}},
        "texts.jsonl:1: column 'chosen': missing; found 'prompt', 'response'",
    ),
    (
        PREFERENCE | {"objective": {"use": "simpo"}, "reference": "model"},
        "a reference is given, and the objective 'simpo' compares with none",
    ),
    (PREFERENCE | {"objective": {"use": "dpo", "link": {"beta": -1}}}, "objective.link.beta"),
    (PREFERENCE | {"objective": {"use": "psipo", "link": "logistics"}}, "Did you mean 'logistic'?"),
    (
        PREFERENCE | {"objective": {"use": "dpo"}, "data": {"use": "run", "path": "x", "chosen": "explanation"}},
        'needs explanations, which kind = "rlvr" draws',
    ),
    (PREFERENCE, "c.toml: key 'objective' is missing"),
    (PREFERENCE | {"objective": {"use": "kto"}}, "pairs.jsonl:1: column 'response': missing"),
    (
        {"kind": "prm", "model": {"base": "model"}, "data": {"path": "pairs.jsonl"}, "objective": {"use": "dpo"}},
        "'dpo' is an objective of kind 'preference' and the config's kind is 'prm'",
    ),
]


@pytest.mark.parametrize(("table", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence(folder: Path, table: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(folder, table)


ROWS: list[tuple[str, str]] = [
    ('{"prompt": "1+1=", "response": "2"', "data.jsonl:2:"),
    ('["a"]', "data.jsonl:2:"),
    ('{"prompt": "1+1=", "response": 2}', "data.jsonl:2: column 'response': a text or a list of messages"),
    ('{"prompt": "", "response": "2"}', "data.jsonl:2: the prompt is empty; give it a text"),
]


@pytest.mark.parametrize(("row", "sentence"), ROWS)
def test_a_bad_row_is_named_with_its_line(folder: Path, row: str, sentence: str) -> None:
    good = '{"prompt": "0+0=", "response": "0"}\n'
    (folder / "data.jsonl").write_text(good + row + "\n" + good, encoding="utf-8")
    assert sentence in refused(folder, BASE | {"data": {"path": "data.jsonl"}})


def test_rows_that_cannot_be_read_may_be_left_out_and_are_counted(folder: Path) -> None:
    rows = [f'{{"prompt": "{n}+0=", "response": "{n}"}}' for n in range(4)]
    rows += ["{", '{"prompt": "1+1=", "response": 2}', '{"prompt": "1+1=", "response": ""}']
    rows += [json.dumps({"prompt": "1" * 40, "response": "2"})]
    (folder / "data.jsonl").write_text("\n".join(rows), encoding="utf-8")
    table = BASE | {"data": {"path": "data.jsonl", "on_bad_row": "skip", "max_tokens": 20}}
    told: list[dict[str, Any]] = []
    fit(config(table), base_dir=folder, dry_run=True, emit=lambda event: told.append(dict(event)))
    (facts,) = [event for event in told if event["event"] == "data"]
    assert facts["left_out"] == {"unreadable": 2, "nothing to learn from": 1, "too long": 1}
    assert facts["examples"] == 4


def test_data_that_teaches_nothing_says_what_was_left_out(folder: Path) -> None:
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "2"}
    (folder / "data.jsonl").write_text(json.dumps(row), encoding="utf-8")
    told = refused(folder, PREFERENCE | {"objective": {"use": "dpo"}, "data": {"path": "data.jsonl"}})
    assert "nothing to learn from in 'data.jsonl'; 1 rows, left out: 1 nothing to learn from" in told


def test_one_problem_cannot_be_held_out(folder: Path) -> None:
    rows = [{"prompt": "1+1=", "response": text} for text in ("2", "3")]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert "one problem cannot be split; 2 examples share it" in refused(
        folder, BASE | {"data": {"path": "data.jsonl"}}
    )


def test_equal_questions_are_never_in_both_halves(folder: Path) -> None:
    rows = [{"prompt": f"{n % 5} +  0=", "response": str(n)} for n in range(50)]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    told: list[dict[str, Any]] = []
    table = BASE | {"data": {"path": "data.jsonl", "holdout": 0.3}}
    fit(config(table), base_dir=folder, dry_run=True, emit=lambda event: told.append(dict(event)))
    facts = next(event for event in told if event["event"] == "data")
    assert (facts["trained_problems"], facts["held_out_problems"], facts["trained"], facts["held_out"]) == (
        3,
        2,
        30,
        20,
    )


def test_a_reference_that_cuts_texts_otherwise_is_refused(folder: Path) -> None:
    other = folder / "other"
    shutil.copytree(folder / "model", other)
    template = "{% for message in messages %}Q: {{ message['content'] }}{% endfor %}"
    for file in other.glob("*chat_template*"):
        file.write_text(template, encoding="utf-8")
    settings = json.loads((other / "tokenizer_config.json").read_text(encoding="utf-8"))
    (other / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}), encoding="utf-8")
    told = refused(folder, PREFERENCE | {"objective": {"use": "dpo"}, "reference": "other"})
    assert "the reference 'other' has another tokenizer than 'model'" in told


def test_a_run_without_rewards_teaches_nothing(folder: Path) -> None:
    run = fit(config(BASE | {"steps": 0, "runs_dir": str(folder / "earlier")}), base_dir=folder)
    told = refused(folder, BASE | {"data": {"use": "run", "path": str(run)}})
    assert "has no judged rollouts; name a run of kind 'rlvr'" in told


def test_the_command_line_answers_with_code_two(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.toml").write_text(
        'kind = "sft"\npolicy = { model = "model" }\ndata = { path = "pairs.jsonl" }\n', encoding="utf-8"
    )
    assert main(["train", "bad.toml"]) == 2
    told = capsys.readouterr().err
    assert "pairs.jsonl:1: column 'response': missing; found 'prompt', 'chosen', 'rejected'" in told
    assert "Traceback" not in told
