"""Configs: what is accepted, and the one sentence for what is not."""

from pathlib import Path
from typing import Any

import pytest

from assay.config.load import dump_config, load_config, override, parse_config
from assay.config.run import RlvrConfig, ScoreConfig
from assay.errors import ConfigError
from assay.scoring import read_answers

RLVR = """
kind = "rlvr"
steps = 20
policy = { model = "smollm2-135m-instruct" }
tasks = { use = "jsonl", path = "tasks.jsonl", columns = { prompt = "question", reference = "answer" } }
engine = { use = "transformers", group_size = 8, max_new_tokens = 64, max_rows = 16 }
rewards = [{ use = "math", weight = 1.0 }, { gate = { use = "format" }, then = { use = "length", max_tokens = 200 } }]
optimizer = { use = "grpo", learning_rate = 1e-6, trust_region = { use = "clip", low = 0.2, high = 0.28 } }
loop = { groups_per_step = 16, max_staleness = 1 }
"""


@pytest.fixture
def rlvr(tmp_path: Path) -> Path:
    path = tmp_path / "gsm8k.toml"
    path.write_text(RLVR, encoding="utf-8")
    return path


def test_a_config_keeps_the_components_own_options_apart(rlvr: Path):
    config = load_config(rlvr)
    assert isinstance(config, RlvrConfig)
    assert config.name == "gsm8k"
    assert config.engine.options == {"max_rows": 16}
    assert config.optimizer.learning_rate == 1e-6
    assert config.optimizer.options == {"trust_region": {"use": "clip", "low": 0.2, "high": 0.28}}
    assert config.tasks.options["path"] == "tasks.jsonl"


def test_the_resolved_config_is_a_config_and_equals_itself(rlvr: Path, tmp_path: Path):
    config = load_config(rlvr, overrides={"steps": 3, "rewards.0.weight": "0.5"})
    again = tmp_path / "again.toml"
    again.write_text(dump_config(config), encoding="utf-8")
    assert load_config(again) == config
    assert "max_staleness = 1" in again.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("step", 3, "gsm8k.toml: unknown key 'step'; known: "),
        ("step", 3, "Did you mean 'steps'?"),
        ("loop.groups_per_stp", 3, "loop: unknown key 'groups_per_stp'; known: groups_per_step"),
        ("steps", "many", "gsm8k.toml: steps: input should be a valid integer"),
        ("steps", "many", "found 'many'"),
        ("policy", {}, "gsm8k.toml: policy: key 'model' is missing"),
        ("engine.temperature", -1, "engine.temperature: input should be greater than or equal to 0; found -1"),
        ("rewards", [], "gsm8k.toml: rewards: "),
        ("rewards.0.use", 3, "rewards[0].use: input should be a valid string; found 3"),
        ("judging.on_failed", "zero", "judging.on_failed: input should be 'mask' or 'stop'; found 'zero'"),
        ("kind", "rlvrr", "kind: unknown kind 'rlvrr'; known: rlvr, sft, preference, prm, score. Did you mean 'rlvr'?"),
        ("loop.min_scored", 9, "loop.min_scored is 9 with engine.group_size = 8; every group would be dropped"),
        (
            "evaluate",
            {"tasks": {"use": "jsonl"}, "samples": 2, "pass_at": [4]},
            "evaluate: pass_at asks for k = 4 with samples = 2; raise samples or lower k",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_place_finding_and_remedy(rlvr: Path, key: str, value: Any, sentence: str):
    with pytest.raises(ConfigError) as caught:
        load_config(rlvr, overrides={key: value})
    assert sentence in str(caught.value)
    assert str(rlvr) in str(caught.value)


def test_text_that_is_not_toml_is_named_with_line_and_column(tmp_path: Path):
    path = tmp_path / "broken.toml"
    path.write_text('kind = "rlvr"\nsteps = = 3\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken.toml: not valid TOML: .*line 2, column 9"):
        load_config(path)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file"):
        load_config("nowhere.toml")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("a.b", "1.5", {"a": {"b": 1.5}, "rewards": [{"weight": 1.0}]}),
        ("rewards.0.weight", "0.5", {"rewards": [{"weight": 0.5}]}),
        ("name", "plain text", {"name": "plain text", "rewards": [{"weight": 1.0}]}),
        ("name", '"quoted"', {"name": "quoted", "rewards": [{"weight": 1.0}]}),
    ],
)
def test_overrides_reach_into_tables_and_lists(key: str, value: str, expected: dict[str, Any]):
    data: dict[str, Any] = {"rewards": [{"weight": 1.0}]}
    override(data, key, value)
    assert data == expected


@pytest.mark.parametrize("key", ["rewards.1.weight", "rewards.x.weight"])
def test_an_override_of_a_place_that_is_not_there_is_refused(key: str):
    with pytest.raises(ConfigError, match="is no index of a list of 1"):
        override({"rewards": [{"weight": 1.0}]}, key, "1")


def test_a_config_can_be_made_of_tables():
    config = parse_config(
        {"kind": "score", "data": {"path": "a.jsonl"}, "rewards": [{"use": "math"}]}, where="here", name="mine"
    )
    assert config.name == "mine"


def test_the_columns_of_a_file_to_judge_may_be_a_table_as_in_tasks(tmp_path: Path):
    def columns_read(data: dict[str, Any]) -> dict[str, str]:
        tree = {"kind": "score", "data": {"path": str(file), **data}, "rewards": [{"use": "math"}]}
        config = parse_config(tree, where="here", name="mine")
        assert isinstance(config, ScoreConfig)
        return read_answers(config.data).columns

    file = tmp_path / "rows.jsonl"
    file.write_text('{"q": "1 + 1", "a": "2", "gold": "2", "answer": "3"}\n', "utf-8")
    named = {"prompt": "q", "response": "a", "reference": "gold"}
    assert columns_read({"columns": named}) == columns_read(named) == named
    assert columns_read({"columns": {"response": "a"}, "prompt": "q"}) == {**named, "reference": "answer"}
    with pytest.raises(ConfigError, match="the prompt is named by 'prompt' and in 'columns'; name it once"):
        columns_read({"columns": {"prompt": "q"}, "prompt": "q"})
