"""A source that fails too often stops the run and nothing is lost; what fails now and then is counted and masked."""

import json
import re
from pathlib import Path

import pytest

import assay
from assay.cli import main

pytestmark = pytest.mark.long

CONFIG = """
kind = "rlvr"
name = "sums"
steps = 4
seed = 5
policy = { model = "model" }
tasks = { use = "jsonl", path = "tasks.jsonl", columns = { prompt = "question", reference = "answer" } }
engine = { use = "transformers", template = "plain", group_size = 8, max_new_tokens = 4 }
rewards = [{ use = "python", path = "mine.py:mine" }]
optimizer = { use = "dr_grpo", learning_rate = 1e-3 }
loop = { groups_per_step = 4, max_refill = 0 }
checkpoint = { every_steps = 1, keep = 10 }
"""
MINE = '''
from zlib import crc32
from assay import Verdict

def mine(task, rollout):
    """A graded score, and trouble where the test wants it."""
    ticket, number = int(rollout.group_id[1:]), crc32(rollout.id.encode())
    {trouble}
    return Verdict.score(number % 5 / 4)
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="training needs torch")
    from assay.training.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("policy") / "model", hidden_size=32, layers=1)


@pytest.fixture
def folder(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").symlink_to(model)
    tasks = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in tasks), encoding="utf-8")
    (tmp_path / "sums.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trouble(code: str) -> None:
    Path("mine.py").write_text(MINE.format(trouble=code), encoding="utf-8")


def checkpoints() -> dict[int, Path]:
    (run,) = Path("runs").iterdir()
    return {int(path.name): path for path in (run / "checkpoints").iterdir() if path.name.isdigit()}


def test_a_source_that_breaks_stops_the_run_with_its_last_checkpoint_and_resumes_when_mended(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    trouble('if ticket >= 8: raise RuntimeError("the tool is gone")')
    assert main(["train", "sums.toml"]) == 3
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert re.search(r"source 'mine': .*26 of the last \d+ .*failed.*the run stops above 25", told), told
    assert "raised RuntimeError 26" in told
    assert sorted(checkpoints()) == [1, 2]
    trouble("pass")
    assert main(["train", "sums.toml", "--resume"]) == 0
    assert max(checkpoints()) == 4
    series = assay.open_run("latest").metrics
    assert [(line["step"], line["failed"]) for line in series] == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_a_tenth_of_failures_is_masked_and_seen_in_the_counts(folder: Path):
    trouble('if number % 10 == 0: raise ValueError("now and then")')
    assert main(["train", "sums.toml"]) == 0
    run = assay.open_run("latest")
    failed = sum(line["failed"] for line in run.metrics)
    assert 4 <= failed <= 30
    for line in run.metrics:
        assert line["scored"] + line["failed"] == 32
        rewards = [
            item.reward.value for item in run.rollouts() if item.step == line["step"] and item.reward is not None
        ]
        scored = [value for value in rewards if value is not None]
        assert len(scored) == line["scored"]
        assert line["reward"] == pytest.approx(sum(scored) / len(scored))
    assert {item.reward and item.reward.value for item in run.rollouts(status="failed")} == {None}


def test_a_batch_of_abstentions_makes_no_update_and_no_nan(folder: Path):
    trouble('if 4 <= ticket < 8: return Verdict.abstain("nothing to judge", fault="ours")')
    assert main(["train", "sums.toml"]) == 0
    run = assay.open_run("latest")
    second = run.metrics[1]
    assert (second["step"], second["scored"], second["abstained"], second["failed"]) == (2, 0, 32, 0)
    assert second.get("kept", 0) == 0
    text = (run.folder / "metrics.jsonl").read_text("utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    before, after, later = (
        (folder / "model.safetensors").read_bytes() for _, folder in sorted(checkpoints().items())[:3]
    )
    assert before == after
    assert after != later
