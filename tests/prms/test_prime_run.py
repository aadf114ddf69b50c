"""PRIME inside a run: it learns at every step, its state is in the checkpoints, and a resumed run goes on from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main

pytestmark = pytest.mark.long

CONFIG = """
kind = "rlvr"
name = "sums"
steps = 3
seed = 5
policy = { model = "model" }
tasks = { use = "jsonl", path = "tasks.jsonl", columns = { prompt = "question", reference = "answer" } }
engine = { use = "transformers", template = "plain", group_size = 6, max_new_tokens = 4 }
rewards = [
    { use = "python", path = "mine.py:mine" },
    { use = "prime", beta = 0.5, learning_rate = 1e-3, accuracy_low = 0.0, accuracy_high = 1.0 },
]
optimizer = { use = "prime", learning_rate = 1e-3 }
loop = { groups_per_step = 3, max_refill = 0 }
checkpoint = { every_steps = 1, keep = 9 }
"""
MINE = """
from zlib import crc32
from assay import Verdict

def mine(task, rollout):
    return Verdict.score(float(crc32(rollout.text.encode()) % 2))
"""


@pytest.fixture
def folder(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").symlink_to(tiny)
    tasks = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in tasks), encoding="utf-8")
    (tmp_path / "sums.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_resumed_run_goes_on_with_what_the_source_had_learned(folder: Path):
    assert main(["train", "sums.toml"]) == 0
    assert main(["train", "sums.toml", "--steps", "2"]) == 0
    assert main(["train", "sums.toml", "--resume"]) == 0
    resumed, whole = sorted((folder / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns, reverse=True)
    assert len(lines(whole)) == len(lines(resumed)) == 3
    assert [line["prime/version"] for line in lines(whole)] == [1.0, 2.0, 3.0]
    for name in ("prime/version", "prime/loss", "loss", "grad_norm"):
        assert [line[name] for line in lines(resumed)] == [line[name] for line in lines(whole)], name
    sources = [path for path in (resumed / "checkpoints").glob("*/sources/*/*") if path.is_file()]
    assert len(sources) >= 3


def test_a_checkpoint_without_the_sources_state_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "sums.toml", "--steps", "1"]) == 0
    (checkpoint,) = (folder / "runs").glob("*/checkpoints/00000001")
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"] = {name: facts for name, facts in manifest["files"].items() if not name.startswith("sources/")}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (checkpoint / "sources").rename(checkpoint / "elsewhere")
    assert main(["train", "sums.toml", "--resume"]) == 2
    assert "there is no state of the source 'prime'" in capsys.readouterr().err
