"""Training from examples that was stopped, killed or moved to other data: it ends as one that was not, or says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from assay import Run, train
from assay.config.load import parse_config
from assay.errors import ConfigError

pytestmark = pytest.mark.long

CONFIG = """
kind = "preference"
name = "pairs"
seed = 4
policy = { model = "model" }
objective = { use = "dpo", reference = "iterate", iteration = 3 }
data = { path = "pairs.jsonl", holdout = 0.2 }
training = { learning_rate = 1e-3, batch_size = 4, epochs = 40 }
evaluate = { every_steps = 50 }
checkpoint = { every_steps = 2 }
"""


def table(**more: Any) -> dict[str, Any]:
    """A short run whose reference moves, with a second stream."""
    return {
        "kind": "sft",
        "name": "texts",
        "seed": 4,
        "policy": {"model": "model"},
        "data": {"path": "texts.jsonl", "holdout": 0.2},
        "stream": {"path": "plain.jsonl", "objective": {"use": "sft", "text_column": "text"}, "batch_size": 3},
        "training": {"learning_rate": 1e-3, "batch_size": 8},
        "checkpoint": {"every_steps": 2},
        **more,
    }


def weights(run: Path) -> dict[str, Any]:
    """The weights of a run's last checkpoint."""
    return load_file(Run(run).policy / "model.safetensors")


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Equal bit by bit."""
    return all(bool((first[name] == second[name]).all()) for name in first)


def test_a_stopped_run_goes_on_as_one_that_was_not(folder: Path) -> None:
    longer = {"training": {"learning_rate": 1e-3, "batch_size": 8, "epochs": 2}}
    whole = train(parse_config(table(**longer, steps=6, runs_dir="whole")), base_dir=folder)
    begun = train(parse_config(table(**longer, steps=4, runs_dir="begun")), base_dir=folder)
    assert not same(weights(whole.folder), weights(begun.folder))
    resumed = train(parse_config(table(**longer, steps=6, runs_dir="begun")), base_dir=folder, resume=begun)
    assert resumed.folder == begun.folder
    assert same(weights(whole.folder), weights(resumed.folder))
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]
    assert [line["step"] for line in resumed.evaluations] == [0, 3, 4, 6], "at the stop it was measured, too"


@pytest.mark.parametrize("stop", [2, 8])
def test_a_frozen_reference_has_the_same_bits_after_a_resume(folder: Path, stop: int) -> None:
    """Stopped in the first pass of five steps, before every row was scored, and in the second."""

    def run(steps: int, runs: str, resume: Run | None = None) -> Run:
        config = {
            "kind": "preference",
            "name": "pairs",
            "policy": {"model": "model"},
            "objective": {"use": "dpo"},
            "data": {"path": "pairs.jsonl", "holdout": 0.2},
            "training": {"learning_rate": 1e-3, "batch_size": 4, "epochs": 3},
        }
        return train(parse_config({**config, "steps": steps, "runs_dir": runs}), base_dir=folder, resume=resume)

    whole, resumed = run(12, "whole"), run(12, "begun", run(stop, "begun"))
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]
    assert same(weights(whole.folder), weights(resumed.folder))


def test_other_data_or_another_config_is_no_resume(folder: Path) -> None:
    run = train(parse_config(table(steps=1)), base_dir=folder)
    lines = (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    with pytest.raises(ConfigError, match="was begun with another training"):
        train(parse_config(table(steps=2, training={"learning_rate": 2e-3})), base_dir=folder, resume=run)
    (folder / "texts.jsonl").write_text("\n".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ConfigError, match="another data; it had 25 examples and there are 24"):
        train(parse_config(table(steps=2)), base_dir=folder, resume=run)
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "plain.jsonl").write_text('{"text": "something else"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="another stream"):
        train(parse_config(table(steps=2)), base_dir=folder, resume=run)


def start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "assay", "train", "pairs.toml", "--json", *flags],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_killed_run_goes_on_bit_by_bit(folder: Path) -> None:
    (folder / "pairs.toml").write_text(CONFIG, encoding="utf-8")
    killed = start(folder)
    assert killed.stdout is not None
    for line in killed.stdout:
        if json.loads(line).get("step") == 21:
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    (run,) = (folder / "runs").iterdir()
    assert not (run / "outcome.json").exists()
    out, err = start(folder, "--resume").communicate(timeout=240)
    events = [json.loads(line) for line in out.splitlines()]
    assert events, err
    resumed = next(event for event in events if event["event"] == "resumed")
    assert resumed["step"] >= 20
    assert events[-1]["status"] == "done"
    whole = train(parse_config({**_read(folder / "pairs.toml"), "name": "pairs", "runs_dir": "whole"}), base_dir=folder)
    assert same(weights(run), weights(whole.folder))
    assert [line["step"] for line in Run(run).metrics] == [line["step"] for line in whole.metrics]


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8"))
