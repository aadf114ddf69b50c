"""The guide from outcome labels to reranking: its config is its file, its data is true, and its path is walked."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from assay.cli import COMMANDS
from assay.config.load import load_config
from assay.config.run import PrmConfig
from assay.contracts import Message, Rollout, Task, Turn
from assay.testing.chains import wrong_steps

FOLDER = Path(__file__).parents[2] / "examples" / "reward-models"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_shows_its_files_and_commands_that_exist() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^```toml (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert shown == {"step.toml": (FOLDER / "step.toml").read_text(encoding="utf-8")}
    for name in ("step", "implicit"):
        assert isinstance(load_config(FOLDER / f"{name}.toml"), PrmConfig)
    commands = module("walk").commands()
    assert [line.split()[1] for line in commands if line.startswith("assay")] == [
        "label", "train", "train", "train", "rerank", "rerank",
    ]  # fmt: skip
    assert {"label", "train", "rerank"} <= set(COMMANDS)


def test_the_data_and_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    make, right = module("make_data"), module("verdict").right
    make.write("solutions.jsonl", make.solutions(0, 5, 2))
    rows = [json.loads(line) for line in Path("solutions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) == 10
    for row in rows:
        task = Task(id="t", messages=(Message(role="user", content=row["prompt"]),), reference=row["answer"])
        rollout = Rollout(id="r", task_id="t", group_id="t", turns=(Turn(text=row["response"]),))
        assert right(task, rollout).value == float(row["label"])
    task = Task(id="t", messages=(Message(role="user", content="1+1="),), reference="2")
    blank = Rollout(id="r", task_id="t", group_id="t", turns=(Turn(text="no step"),))
    assert right(task, blank).status == "abstained"
    for row in make.labelled(0, 5):
        wrong = wrong_steps(row["problem"], row["steps"])
        assert row["label"] == (wrong[0] if wrong else -1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_path_is_walked(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "walk.py"), "--folder", str(tmp_path), "--problems", "40"]
    done = subprocess.run([*command, "--updates", "60"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "x fewer than naive" in done.stdout
    assert "majority" in done.stdout
    assert "fitted on" in done.stdout
    (described,) = tmp_path.glob("runs/step-*/checkpoints/00000060/reward_model.json")
    assert json.loads(described.read_text(encoding="utf-8"))["model"]["threshold"] is not None
