"""Two processes that hold half of every weight each: the loss, gradients and weights of one process."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from assay.training.tiny import make_tiny_model

pytestmark = pytest.mark.long
PROGRAM = Path(__file__).parent / "steps.py"


def launch(processes: int, *arguments: object) -> None:
    words = [str(word) for word in arguments]
    start = [sys.executable] if processes == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    if processes > 1:
        start += ["--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*start, PROGRAM, *words], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


def metrics(folder: Path) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return [{name: value for name, value in line.items() if not name.endswith("_s")} for line in found]


def largest_gap(one: Path, other: Path) -> float:
    """The largest difference of two files of tensors, relative to the larger of 1 and the largest number."""
    first, second = load_file(one), load_file(other)
    assert set(first) == set(second)
    numbers = [name for name in first if first[name].is_floating_point()]  # the others are states of generators
    return max(
        float((first[name] - second[name]).abs().max()) / max(1.0, float(first[name].abs().max())) for name in numbers
    )


def paid(folder: Path) -> list[float]:
    """What the source that learns paid the tokens of the first step."""
    steps: list[list[list[float]]] = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return [value for response in steps[0] for value in response]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=3, hidden_size=64)


@pytest.mark.parametrize("preset", [pytest.param("grpo", marks=pytest.mark.slow), "ppo", "grpo+lora"])
def test_two_processes_come_to_the_loss_and_the_gradients_of_one(preset: str, model: Path, tmp_path: Path):
    for processes in (1, 2):
        launch(processes, model, tmp_path / str(processes), preset, 2)
    one, two = tmp_path / "1", tmp_path / "2"
    assert largest_gap(one / "gradients.safetensors", two / "gradients.safetensors") <= 1e-6
    first: dict[str, Any] = metrics(one)[0]
    assert metrics(two)[0] == pytest.approx(first, rel=1e-5, abs=1e-6)
    assert first["grad_norm"] > 0
    assert first["prime/grad_norm"] > 0
    assert paid(two) == pytest.approx(paid(one), abs=1e-6), "a source that learns gives the verdicts of one process"
    assert max(map(abs, paid(one))) > 0.01
    trained = "adapter.safetensors" if preset.endswith("+lora") else "model.safetensors"
    assert largest_gap(one / "checkpoint" / trained, two / "checkpoint" / trained) <= 1e-4
    published = Path("weights") / "00000001" / "model.safetensors"
    assert largest_gap(one / published, two / published) <= 1e-4


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three updates of one process."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    launch(1, model, folder, "ppo", 3)
    return folder


def test_a_checkpoint_of_an_adapter_goes_on_with_another_number_of_processes(model: Path, tmp_path: Path):
    whole, start, end = (tmp_path / name for name in ("whole", "start", "end"))
    launch(1, model, whole, "grpo+lora", 3)
    launch(1, model, start, "grpo+lora", 2)
    launch(2, model, end, "grpo+lora", 1, start / "checkpoint")
    for file in ("adapter.safetensors", "trainer.safetensors"):
        assert largest_gap(whole / "checkpoint" / file, end / "checkpoint" / file) <= 1e-4


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_a_checkpoint_goes_on_with_another_number_of_processes(
    first: int, then: int, model: Path, whole: Path, tmp_path: Path
):
    start, end = tmp_path / "start", tmp_path / "end"
    launch(first, model, start, "ppo", 2)
    launch(then, model, end, "ppo", 1, start / "checkpoint")
    for file in ("model.safetensors", "trainer.safetensors", "prime.safetensors"):
        assert largest_gap(whole / "checkpoint" / file, end / "checkpoint" / file) <= 1e-4
    for file in ("trainer.json", "prime.json"):
        assert json.loads((end / "checkpoint" / file).read_text(encoding="utf-8"))["version"] == 3
