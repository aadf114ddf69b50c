"""`torchrun -m assay train`: two processes make the run of one, one goes on with it, and a dead peer ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.training.tiny import make_tiny_model

pytestmark = pytest.mark.long
CONFIG = """
kind = "rlvr"
name = "sums"
steps = 2
seed = 5
policy = { model = "model" }
tasks = { use = "jsonl", path = "tasks.jsonl", columns = { prompt = "question", reference = "answer" } }
engine = { use = "transformers", template = "plain", group_size = 4, max_new_tokens = 4 }
rewards = [
    { use = "python", path = "mine.py:mine" },
    { use = "prime", beta = 0.5, learning_rate = 1e-3, accuracy_low = 0.0, accuracy_high = 1.0 },
]
optimizer = { use = "prime", learning_rate = 1e-3 }
loop = { groups_per_step = 4, max_refill = 0 }
checkpoint = { every_steps = 1, keep = 2 }

[evaluate]
tasks = { use = "jsonl", path = "held.jsonl", columns = { prompt = "question", reference = "answer" } }
also = [{ use = "prime", label = "unmoved", beta = 0.5 }]
"""
MINE = """
from zlib import crc32
from assay import Verdict

def mine(task, rollout):
    return Verdict.score(crc32(rollout.text.encode()) % 2)
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "assay"]
ALONE = [sys.executable, "-m", "assay"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("policy") / "model", hidden_size=32, layers=1)


def prepare(folder: Path, model: Path) -> Path:
    folder.mkdir()
    (folder / "model").symlink_to(model)
    tasks = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in tasks), encoding="utf-8")
    held = [{"question": f"{n}+2=", "answer": str(n + 2)} for n in range(6)]
    (folder / "held.jsonl").write_text("\n".join(json.dumps(row) for row in held), encoding="utf-8")
    (folder / "sums.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    return folder


def start(words: list[str], folder: Path, *more: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*words, "train", "sums.toml", *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def rank_of(process: psutil.Process) -> str | None:
    """The rank of one of torchrun's processes; None for any other process and for one that has ended meanwhile."""
    try:
        return process.environ().get("RANK")
    except psutil.NoSuchProcess:
        return None


def series(folder: Path, name: str) -> list[float]:
    (run,) = (folder / "runs").iterdir()
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)[name] for line in lines]


def evaluations(folder: Path) -> list[dict[str, Any]]:
    (run,) = (folder / "runs").iterdir()
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()]


def test_two_processes_make_the_run_of_one_and_one_goes_on_with_it(model: Path, tmp_path: Path):
    alone, shared = prepare(tmp_path / "alone", model), prepare(tmp_path / "shared", model)
    for words, folder in ((ALONE, alone), (TORCHRUN, shared)):
        process = start(words, folder)
        told, _ = process.communicate()
        assert process.returncode == 0, told
    assert told.count("step 2/2") == 1, "only the first process speaks"
    assert series(alone, "prime/version") == [1.0, 2.0]
    for name in ("loss", "grad_norm", "reward", "tokens", "prime/version", "prime/loss", "prime/grad_norm"):
        assert series(shared, name) == pytest.approx(series(alone, name), rel=1e-4, abs=1e-6)
    judged = [evaluations(folder) for folder in (alone, shared)]  # by a source that only the evaluation has, too
    assert judged[0] == judged[1]
    assert [entry["unmoved"]["scored"] for entry in judged[1]] == [6, 6]
    process = start(ALONE, shared, "--resume", "--steps", "3")
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert len(series(shared, "loss")) == 3
    assert series(shared, "prime/version") == [1.0, 2.0, 3.0]


def test_a_dry_run_of_two_processes_says_once_that_all_is_in_order(model: Path, tmp_path: Path):
    folder = prepare(tmp_path / "run", model)
    process = start(TORCHRUN, folder, "--dry-run")
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert told.count("is in order") == 1, told
    assert not (folder / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_peer_that_is_killed_ends_the_run_with_its_cause_and_nothing_is_lost(rank: str, model: Path, tmp_path: Path):
    folder = prepare(tmp_path / "run", model)
    process = start(TORCHRUN, folder, "--steps", "100000")
    deadline = time.monotonic() + 600
    while not list(folder.glob("runs/*/checkpoints/0*")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    (peer,) = [child for child in psutil.Process(process.pid).children() if rank_of(child) == rank]
    peer.send_signal(signal.SIGKILL)
    told, _ = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "SIGKILL" in told or "cannot go on together" in told, told
    done = len(series(folder, "step"))
    assert done >= 1
    process = start(ALONE, folder, "--resume", "--steps", str(done + 1))
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert series(folder, "step") == list(range(1, done + 2))
