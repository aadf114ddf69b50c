"""A built-in plugin has no door of its own: its copy, an outsider's wheel, does all that the original did."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import assay
from assay.registry import Registry

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
SUITES = ("plugins/test_optim_suite.py", "plugins/test_optim_config.py", "plugins/test_optim_edges.py")
KINDS = {
    "rlvr": """
        steps = 1
        policy = { model = "model" }
        tasks = { use = "jsonl", path = "tasks.jsonl" }
        engine = { use = "transformers", template = "plain", group_size = 4, max_new_tokens = 6 }
        rewards = [{ use = "repetition" }, { use = "length", max_tokens = 4 }]
        optimizer = { use = "dapo", learning_rate = 1e-3 }
        loop = { groups_per_step = 2, max_refill = 0 }
    """,
    "sft": """
        steps = 2
        policy = { model = "model" }
        data = { use = "jsonl", path = "answers.jsonl" }
        training = { batch_size = 4, learning_rate = 1e-3 }
    """,
    "preference": """
        steps = 2
        policy = { model = "model" }
        objective = { use = "dpo" }
        data = { use = "jsonl", path = "pairs.jsonl" }
        training = { batch_size = 4, learning_rate = 1e-3 }
    """,
}


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def renamed(names: tuple[str, ...], folder: Path) -> list[str]:
    """Copies of test files that know the package by its outside name."""
    folder.mkdir()
    for name in names:
        text = re.sub(r"\bassay_optim\b", "outside_optim", (TESTS / name).read_text("utf-8"))
        (folder / Path(name).name).write_text(text, encoding="utf-8")
    return [str(path) for path in sorted(folder.glob("*.py"))]


@pytest.fixture
def outside(tmp_path: Path, install_outside: Callable[[str, str, str], Path]) -> Path:
    install_outside("plugins", "assay_optim", "optim")
    return tmp_path


def test_the_optimizers_come_from_outside_and_pass_their_suites(outside: Path):
    registry = Registry.load()
    for kind, name in (("policy_optimizer", "grpo"), ("objective", "dpo"), ("objective", "sft")):
        origin = registry.origin(kind, name)
        assert (origin.distribution, origin.version, origin.builtin) == ("outside_optim", "9.9.9", False)
    assert not registry.problems
    gone = subprocess.run([sys.executable, "-c", "import assay_optim"], capture_output=True, text=True, check=False)
    assert "assay_optim is disabled here" in gone.stderr
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull]
    told = run("pytest", *options, *renamed(SUITES, outside / "suites"), cwd=outside)
    found = re.search(r"(\d+) passed", told)
    assert found is not None
    assert int(found[1]) > 60, told
    assert "0 failed" in run("assay", "check", "grpo", cwd=outside)


@pytest.mark.slow
def test_the_kinds_that_it_serves_run(outside: Path):
    from assay.training.tiny import make_tiny_model

    make_tiny_model(outside / "model", hidden_size=32, layers=1)
    sums = [(f"{n}+1=", str(n + 1), str(n + 2)) for n in range(8)]
    rows = {
        "tasks": [{"prompt": prompt} for prompt, _, _ in sums],
        "answers": [{"prompt": prompt, "response": right} for prompt, right, _ in sums],
        "pairs": [{"prompt": prompt, "chosen": right, "rejected": wrong} for prompt, right, wrong in sums],
    }
    for name, listing in rows.items():
        (outside / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in listing), encoding="utf-8")
    for kind, text in KINDS.items():
        lines = [f'kind = "{kind}"', *(line.strip() for line in text.splitlines())]
        (outside / f"{kind}.toml").write_text("\n".join(lines), encoding="utf-8")
        run("assay", "train", f"{kind}.toml", cwd=outside)
        finished = assay.open_run("latest", runs_dir=outside / "runs")
        info = json.loads((finished.folder / "outcome.json").read_text("utf-8"))
        assert info["status"] == "done"
        assert finished.metrics
