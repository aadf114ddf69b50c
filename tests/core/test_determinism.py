"""The same config and seed give the same verdicts, in one order and with one evidence, however they are judged."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BATCHY = '''
from pydantic import Field
from assay import Component, Limits, Options, Verdict, hookimpl

class BatchOptions(Options):
    max_batch: int = Field(default=1, ge=1)

class Source:
    """Scores by a set's order, which a hash seed must not be let near: the author sorts, or is found out."""

    def __init__(self, options):
        self.limits = Limits(max_batch=options.max_batch, max_wait_s=0.01)

    async def judge(self, batch):
        verdicts = []
        for candidate in batch:
            words = sorted(set(candidate.rollout.text.split()))
            if not words:
                verdicts.append(Verdict.abstain("no word"))
            else:
                verdicts.append(Verdict.score(len(words) % 7 / 7, evidence=f"{len(batch) > 0}: {words}"))
        return verdicts

    async def aclose(self):
        pass

@hookimpl
def assay_reward_sources():
    return [
        Component(f"batchy-{isolation}", BatchOptions, lambda options, context: Source(options), isolation=isolation)
        for isolation in ("process", "inline")
    ]
'''
JUDGE = """
import hashlib, json, sys
import assay
workers, batch = int(sys.argv[1]), int(sys.argv[2])
batchy = [{"use": name, "max_batch": batch} for name in ("batchy-process", "batchy-inline")]
plain = ["math", "exact", "token-f1", "repetition", "mine.py:letters"]
found = assay.score("answers.jsonl", rewards=[*plain, *batchy], workers=workers)
for j in found:
    told = json.dumps([j.reason, j.output, j.verdict.model_dump(mode="json")])
    print(j.rollout_id, j.source, j.status, j.value, hashlib.sha256(told.encode()).hexdigest()[:16])
"""
MINE = '''
from assay import Verdict

def letters(task, rollout):
    """The share of letters."""
    text = rollout.text
    return Verdict.score(sum(c.isalpha() for c in text) / len(text)) if text else Verdict.abstain("empty")
'''
ANSWERS = """
\\boxed{\\{1, 2, 3\\}}|{3, 2, 1}
\\boxed{\\{a, b\\}}|\\{b, a\\}
\\boxed{x = 1 \\text{ or } x = -2}|x=-2, x=1
The answer is $(1, 2) \\cup (3, 4]$.|(3,4] \\cup (1,2)
\\boxed{\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}}|\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}
\\boxed{x^2 + 2xy + y^2}|(x+y)^2
\\boxed{\\sqrt{2} + \\sqrt{3}}|\\sqrt{5 + 2\\sqrt{6}}
\\boxed{\\frac{3}{4}}|0.75
I think 12 km, or 13 km.|12
{"b": 1, "a": [1, 2]}|12
<think>7</think> 8|8
|4
""".strip().splitlines()
SETTINGS = (("0", 1, 1), ("1", 2, 8), ("random", 4, 64))


def in_another_process(*arguments: str, folder: Path, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verdicts_order_and_evidence_are_those_of_any_worker_count_batch_size_and_hash_seed(
    install: Callable[[str, str], None], tmp_path: Path
):
    install("batchy", BATCHY)
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    rows = [
        {"problem": f"{turn}?", "completion": f"{text}{' ' * turn}", "answer": gold}
        for turn in range(6)
        for text, _, gold in (line.rpartition("|") for line in ANSWERS)
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    told = [
        in_another_process("-c", JUDGE, str(workers), str(batch), folder=tmp_path, hash_seed=seed).splitlines()
        for seed, workers, batch in SETTINGS
    ]
    assert len(told[0]) == len(rows) * 7
    for other in told[1:]:
        assert other == told[0]
    statuses = {line.split()[2] for line in told[0]}
    assert statuses == {"scored", "abstained"}


TRAIN = """
kind = "rlvr"
name = "sums"
steps = 3
seed = 5
policy = { model = "model" }
tasks = { use = "jsonl", path = "tasks.jsonl", columns = { prompt = "question", reference = "answer" } }
engine = { use = "transformers", template = "plain", group_size = 4, max_new_tokens = 8 }
rewards = [{ use = "math" }, { use = "repetition", weight = 0.2 }, { use = "python", path = "mine.py:letters" }]
optimizer = { use = "dr_grpo", learning_rate = 1e-3 }
loop = { groups_per_step = 4, max_staleness = 0, max_refill = 0 }
"""


@pytest.mark.slow
def test_training_at_staleness_zero_is_bit_equal(tmp_path: Path):
    from assay.training.tiny import make_tiny_model

    make_tiny_model(tmp_path / "model", hidden_size=64, layers=2)
    found: list[tuple[str, list[object]]] = []
    for number, (seed, workers, _) in enumerate(SETTINGS):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        (folder / "model").symlink_to(tmp_path / "model")
        (folder / "mine.py").write_text(MINE, encoding="utf-8")
        (folder / "sums.toml").write_text(TRAIN, encoding="utf-8")
        tasks = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
        (folder / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in tasks), encoding="utf-8")
        arguments = ("-m", "assay", "train", "sums.toml", "--set", f"judging.workers={workers}")
        in_another_process(*arguments, folder=folder, hash_seed=seed)
        (run,) = (folder / "runs").iterdir()
        (weights,) = (run / "checkpoints").glob("*3/model.safetensors")
        series = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        found.append(
            (hashlib.sha256(weights.read_bytes()).hexdigest(), [(line["reward"], line["loss"]) for line in series])
        )
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) == 3
