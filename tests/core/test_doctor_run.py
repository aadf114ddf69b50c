"""`assay doctor RUN`: which phase bounds a run, and what to change."""

import json
from pathlib import Path

import pytest

from assay.cli import main
from assay.reports.bound import find_bound

CONFIG = """
kind = "rlvr"
steps = 4
name = "sums"
policy = { model = "model" }
tasks = { use = "jsonl", path = "tasks.jsonl" }
engine = { use = "transformers" }
rewards = [{ use = "math" }]
optimizer = { use = "grpo" }
"""


def line(step: int, sample: float, judge: float, exposed: float, train: float, kept: int = 4) -> dict[str, float]:
    return {
        "step": step,
        "sample_s": sample,
        "judge_s": judge,
        "judge_exposed_s": exposed,
        "train_s": train,
        "publish_s": 0.01,
        "groups": 4,
        "kept_groups": kept,
    }


@pytest.mark.parametrize(
    ("times", "staleness", "phase", "word"),
    [
        ((2.0, 0.1, 0.0, 2.0), 0, "sampling", "max_staleness = 1"),
        ((2.0, 9.0, 7.0, 1.0), 0, "judging", "judging.workers"),
        ((9.0, 0.5, 0.0, 1.0), 1, "sampling", "vllm"),
        ((1.0, 0.5, 0.0, 9.0), 1, "training", "torchrun"),
    ],
)
def test_the_longest_phase_is_named_with_what_helps(
    times: tuple[float, float, float, float], staleness: int, phase: str, word: str
):
    lines = [line(1, 100.0, 100.0, 100.0, 100.0), *(line(step, *times) for step in range(2, 6))]
    bound = find_bound(lines, max_staleness=staleness)
    assert bound is not None
    assert bound.phase == phase
    assert bound.steps == 4, "the first step, which loads and fills, is left out"
    assert any(word in sentence for sentence in bound.advice)


def test_dropped_groups_are_told_as_waste_and_a_run_without_steps_has_no_bound():
    bound = find_bound([line(step, 1.0, 0.1, 0.0, 1.0, kept=1) for step in range(4)], max_staleness=1)
    assert bound is not None
    assert any("75% of the groups are dropped" in sentence for sentence in bound.advice)
    assert find_bound([{"step": 1}], max_staleness=0) is None


def test_the_command_reads_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "sums-0000"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    assert main(["doctor", str(folder)]) == 2
    assert "no step with times" in capsys.readouterr().err
    lines = [json.dumps(line(step, 2.0, 0.2, 0.1, 2.0)) for step in range(1, 4)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["doctor", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "sampling takes longest; median of 2 steps: sampling 2.00 s" in told
    assert "loop.max_staleness = 1" in told
