"""The demo's own tasks: enough distinct questions, right golds, halves that share nothing."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from assay.component import BuildContext
from assay.config.load import load_config
from assay.config.run import RlvrConfig
from assay.contracts import Task
from assay_tasks.files import JsonlOptions, build_jsonl
from assay_tasks.split import normalized

DEMO = Path(str(files("assay"))) / "demo"


def config(name: str) -> RlvrConfig:
    loaded = load_config(DEMO / name)
    assert isinstance(loaded, RlvrConfig)
    return loaded


def tasks(options: dict[str, Any], **changes: Any) -> list[Task]:
    return build_jsonl(JsonlOptions.model_validate(options | changes), BuildContext(base_dir=DEMO)).tasks()


def test_the_demo_has_2000_distinct_questions_and_200_held_out() -> None:
    demo = config("full.toml")
    assert demo.evaluate is not None
    train, held_out = tasks(demo.tasks.options), tasks(demo.evaluate.tasks.options)
    asked = [{normalized(task.prompt) for task in part} for part in (train, held_out)]
    assert len(asked[0] | asked[1]) >= 2000
    assert len(asked[1]) >= 200
    assert not asked[0] & asked[1]
    assert (demo.evaluate.temperature, demo.evaluate.samples) == (0.0, 1)


def test_the_demo_s_golds_are_right_and_no_solved_example_is_asked() -> None:
    options = config("full.toml").tasks.options
    template = str(options["template"])
    questions = tasks(options, template="{prompt}", part="all")
    for task in questions:
        numbers = task.prompt.removeprefix("max(").removesuffix(") =").split(", ")
        assert str(task.reference) == max(numbers, key=int)
    shown = [line.partition(" = ")[0] + " =" for line in template.splitlines() if ") = " in line]
    assert len(shown) == 3
    assert not set(shown) & {task.prompt for task in questions}


@pytest.mark.parametrize("name", ["full.toml", "quick.toml"])
def test_no_answer_without_understanding_comes_near(name: str) -> None:
    questions = tasks(config(name).tasks.options)
    golds = [str(task.reference) for task in questions]
    assert max(golds.count(gold) for gold in set(golds)) / len(golds) < 0.15
