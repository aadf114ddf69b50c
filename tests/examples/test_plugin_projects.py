"""The example plugins: built as wheels, installed beside assay, they pass their own tests and take part in a run."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import assay
from assay.cli import main
from assay.config.load import parse_config
from assay.registry import Registry

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
OFFERS = {
    "assay-haiku": ("reward_source", "haiku"),
    "assay-chess": ("reward_source", "chess-move"),
    "assay-group-median": ("part:baseline", "group_median"),
    "assay-best-of-group": ("policy_optimizer", "best-of-group"),
    "assay-csv": ("task_source", "csv"),
}
MAX_LINES = 150

Install = Callable[[Path], Path]


def test_each_project_passes_its_own_tests_and_is_listed(install_project: Install):
    for project in OFFERS:
        install_project(EXAMPLES / project)
    folders = [str(EXAMPLES / project / "tests") for project in OFFERS]
    options = ["-q", "-rA", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib", "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *folders], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    registry = Registry.load()
    for project, (kind, name) in OFFERS.items():
        assert re.search(rf"^PASSED .*{project}/tests/", done.stdout, re.MULTILINE), done.stdout
        origin = registry.origin(kind, name)
        assert (origin.distribution, origin.builtin) == (project, False)


def test_every_project_is_short():
    for project in OFFERS:
        lines = sum(
            len(path.read_text("utf-8").splitlines())
            for folder in ("src", "tests")
            for path in (EXAMPLES / project / folder).rglob("*.py")
        )
        assert lines < MAX_LINES, f"{project} has {lines} lines"
        pages = (EXAMPLES / "README.md").read_text("utf-8")
        assert f"[{project}]({project}/README.md)" in pages


def test_the_chess_verifier_scores_a_file(
    install_project: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    install_project(EXAMPLES / "assay-chess")
    monkeypatch.chdir(tmp_path)
    fen = "6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 0 1"
    rows = [{"prompt": "Mate?", "response": text, "fen": fen} for text in ("Move: Rd8#", "Move: Rd7", "I resign")]
    (tmp_path / "games.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert main(["score", "games.jsonl", "-r", "chess-move"]) == 0
    assert re.search(r"^chess-move +0.500 +2 +1 +0 ", capsys.readouterr().out, re.MULTILINE)


def test_the_task_source_the_optimizer_and_the_part_take_part_in_runs(install_project: Install, tmp_path: Path):
    from assay.training.tiny import make_tiny_model

    for project in ("assay-csv", "assay-best-of-group", "assay-group-median", "assay-haiku"):
        install_project(EXAMPLES / project)
    (tmp_path / "sums.csv").write_text("question,answer\n1+1=,2\n1+2=,3\n", encoding="utf-8")
    model = make_tiny_model(tmp_path / "model", seed=1)
    for optimizer in ({"use": "best-of-group"}, {"use": "grpo", "baseline": "group_median"}):
        config = parse_config(
            {
                "kind": "rlvr",
                "steps": 1,
                "runs_dir": str(tmp_path / "runs"),
                "policy": {"model": str(model)},
                "tasks": {"use": "csv", "path": str(tmp_path / "sums.csv")},
                "engine": {"use": "transformers", "template": "plain", "group_size": 4, "max_new_tokens": 6},
                "rewards": [{"use": "haiku"}, {"use": "repetition"}],
                "optimizer": {**optimizer, "learning_rate": 1e-3},
                "loop": {"groups_per_step": 2, "max_refill": 0},
            }
        )
        run = assay.train(config)
        (line,) = run.metrics
        assert line["scored"] == 8
        assert {str(item.task.reference) for item in run.rollouts()} == {"2", "3"}
        assert {judgement.source for item in run.rollouts() for judgement in item.judgements} == {"haiku", "repetition"}
        resolved = (run.folder / "config.toml").read_text("utf-8")
        assert f'use = "{optimizer["use"]}"' in resolved
