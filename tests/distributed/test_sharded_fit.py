"""`torchrun -m assay train` from examples: the run and the measures of one process, and one that goes on with it."""

# pyright: reportUnknownVariableType=false
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
COMMON = """
name = "sums"
seed = 5
training = { learning_rate = 1e-3, batch_size = 8, epochs = 2, micro_batch_tokens = 24%s }
checkpoint = { every_steps = 1, keep = 2 }
steps = 2
"""
PRM = """
kind = "prm"
model = { base = "model" }
objective = { use = "%s" }
data = { path = "labels.jsonl", holdout = 0.2 }
evaluate = { best_of = [1, 2], aggregate = ["last"] }
"""
KINDS = {
    "sft": """
kind = "sft"
policy = { model = "model" }
data = { path = "texts.jsonl", holdout = 0.2 }
stream = { path = "texts.jsonl", weight = 0.5 }
""",
    "preference": """
kind = "preference"
policy = { model = "model" }
objective = { use = "dpo", reference = "iterate", iteration = 1 }
data = { path = "pairs.jsonl", holdout = 0.2 }
""",
    "prm": PRM % "outcome",
    "implicit": PRM % "implicit_ce",
    "adapter": PRM % "outcome",
}
ADAPTER = ", lora = { rank = 4 }"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("policy") / "model", hidden_size=32, layers=1)


def prepare(folder: Path, model: Path, kind: str) -> Path:
    folder.mkdir()
    (folder / "model").symlink_to(model)
    sums = [(f"{a}+{b}=", str(a + b), str((a + b + 3) % 10)) for a in range(5) for b in range(5)]
    rows: dict[str, list[dict[str, Any]]] = {
        "texts": [{"prompt": question, "response": right} for question, right, _ in sums],
        "pairs": [{"prompt": question, "chosen": right, "rejected": wrong} for question, right, wrong in sums],
        "labels": [
            {"prompt": question, "response": text, "label": label}
            for question, right, wrong in sums
            for text, label in ((right, True), (wrong, False))
        ],
    }
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    common = COMMON % (ADAPTER if kind == "adapter" else "")
    if kind == "implicit":  # one step a pass: what the reference said of a row in the first is used in the others
        common = common.replace("batch_size = 8, epochs = 2", "batch_size = 40, epochs = 3")
    (folder / "sums.toml").write_text(common + KINDS[kind], encoding="utf-8")
    return folder


def trained(folder: Path, processes: int, *more: str) -> str:
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    done = subprocess.run(
        [*start, "assay", "train", "sums.toml", *more],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    (run,) = (folder / "runs").iterdir()
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def numbers(value: Any, name: str = "") -> dict[str, float]:
    """Every number of a line but its times, by its path."""
    if isinstance(value, dict):
        found: dict[str, float] = {}
        for key, inside in value.items():  # pyright: ignore[reportUnknownVariableType]
            found |= numbers(inside, f"{name}/{key}")
        return found
    return {name: value} if isinstance(value, int | float) and not name.endswith("_s") else {}


SLOW = ("sft", "prm")
CASES = [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS]


@pytest.mark.parametrize("kind", CASES)
def test_two_processes_learn_from_examples_what_one_does_and_one_goes_on_with_it(
    kind: str, model: Path, tmp_path: Path
) -> None:
    alone, shared = prepare(tmp_path / "alone", model, kind), prepare(tmp_path / "shared", model, kind)
    trained(alone, 1)
    told = trained(shared, 2)
    assert told.count("step 2/2") == 1, "only the first process speaks"
    first = numbers(lines(alone, "metrics")[0])
    assert first["/grad_norm"] > 0
    assert numbers(lines(shared, "metrics")[0]) == pytest.approx(first, rel=1e-6, abs=1e-6)
    for name in ("metrics", "evaluations"):
        for one, two in zip(lines(alone, name), lines(shared, name), strict=True):
            assert numbers(two) == pytest.approx(numbers(one), rel=1e-4, abs=1e-5), name
    if kind == "adapter":  # merged in at the end, by all processes together
        (one,), (two,) = (list(folder.glob("runs/*/model/model.safetensors")) for folder in (alone, shared))
        first_weights, second_weights = load_file(one), load_file(two)
        assert set(first_weights) == set(second_weights)
        assert max(float((first_weights[n] - second_weights[n]).abs().max()) for n in first_weights) <= 1e-5
    for folder in (alone, shared):
        trained(folder, 1, "--resume", "--steps", "3")
    one, two = (numbers(lines(folder, "metrics")[2]) for folder in (alone, shared))
    assert two == pytest.approx(one, rel=1e-3, abs=1e-5)
