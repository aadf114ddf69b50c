"""`assay train --ray`: the same run as on one machine, and where the flag has no meaning."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay import runs
from assay.cli import main
from assay.store import RunStore

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
CONFIG = """
kind = "rlvr"
name = "{name}"
steps = 2
seed = 3
policy = {{ model = "{model}" }}
tasks = {{ use = "jsonl", path = "tasks.jsonl", columns = {{ prompt = "question", reference = "answer" }} }}
engine = {{ group_size = 4, max_new_tokens = 8, template = "plain" }}
rewards = [{{ use = "python", path = "even.py:even" }}]
judging = {{ ray = {{ cpus_per_worker = 0, workers_per_actor = 1 }} }}
optimizer = {{ use = "dr_grpo", learning_rate = 1e-3 }}
loop = {{ groups_per_step = 3 }}
runs_dir = "{runs}"
"""
EVEN = """
from assay import Rollout, Task, Verdict

def even(task: Task, rollout: Rollout) -> Verdict:
    if not rollout.text:
        return Verdict.abstain("no answer", fault="candidate")
    return Verdict.score(float(sum(map(ord, rollout.text)) % 2 == 0))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from assay.training.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("policy") / "model", seed=3, hidden_size=64)


def written(folder: Path, model: Path, name: str, *, ray: bool) -> Path:
    rows = [json.dumps({"question": f"{a}+{b}=", "answer": str(a + b)}) for a in range(4) for b in range(4)]
    (folder / "tasks.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "even.py").write_text(EVEN, encoding="utf-8")
    text = CONFIG.format(name=name, model=model, runs=folder / "runs")
    if not ray:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("judging"))
    file = folder / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    return file


def log(folder: Path) -> list[Any]:
    with RunStore.open(folder, read_only=True) as store:
        return [
            (entry.rollout.id, entry.rollout.text, entry.reward.value if entry.reward else None, judgement.status)
            for entry in sorted(store.rollouts(), key=lambda entry: entry.rollout.id)
            for judgement in entry.judgements
        ]


def test_a_run_on_a_cluster_is_the_run_of_one_machine(cluster: str, model: Path, tmp_path: Path) -> None:
    here = written(tmp_path, model, "here", ray=False)
    there = written(tmp_path, model, "there", ray=True)
    assert main(["train", str(here), "--json"]) == 0
    assert main(["train", str(there), "--ray", cluster, "--json"]) == 0
    folders = {folder.name.rpartition("-")[0]: folder for folder in runs.run_folders(tmp_path / "runs")}
    assert log(folders["there"]) == log(folders["here"])
    assert len(log(folders["here"])) >= 2 * 3 * 4
    metrics = [json.loads(line) for line in (folders["there"] / runs.METRICS).read_text("utf-8").splitlines()]
    assert metrics[-1]["judge.workers/spawned"] >= 1
    assert 'address = "local"' in (folders["there"] / runs.CONFIG).read_text("utf-8")


def test_a_kind_that_judges_nothing_refuses_the_flag(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f'kind = "sft"\nname = "s"\nsteps = 1\npolicy = {{ model = "{model}" }}\ndata = {{ path = "rows.jsonl" }}\n'
    file = tmp_path / "sft.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["train", str(file), "--ray", "local"]) == 2
    assert "--ray local: kind 'sft' judges nothing" in " ".join(capsys.readouterr().err.split())
