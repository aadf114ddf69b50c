"""A training run on a vLLM server of its own that is killed in the middle of a step."""

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.config.load import load_config
from assay.config.run import RlvrConfig
from assay.run import train
from assay.store import RunStore
from assay.training.model import PolicyModel
from assay_engines.vllm.routes import Routes
from assay_engines.vllm.server import MODULE

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(2400)]
STEPS, GROUPS, SIZE = 3, 3, 4
CONFIG = """
kind = "rlvr"
name = "killed"
steps = {steps}
policy = {{ model = "{model}" }}
tasks = {{ use = "jsonl", path = "tasks.jsonl", columns = {{ prompt = "question", reference = "answer" }} }}
engine = {{ use = "vllm", group_size = {size}, max_new_tokens = 160, ignore_end = true, environment = "{environment}" }}
rewards = [{{ use = "python", path = "even.py:even" }}]
optimizer = {{ use = "dr_grpo", learning_rate = 1e-3 }}
loop = {{ groups_per_step = {groups} }}
runs_dir = "{runs}"
"""
EVEN = """
from assay import Rollout, Task, Verdict

def even(task: Task, rollout: Rollout) -> Verdict:
    return Verdict.score(float(sum(map(ord, rollout.text)) % 2 == 0))
"""


def kill_server() -> None:
    """End every process of the server without a word."""
    roots = [each for each in psutil.Process().children(recursive=True) if MODULE in command(each)]
    assert roots
    for process in {child for root in roots for child in [root, *below(root)]}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def command(process: psutil.Process) -> str:
    """Its command line; empty where it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def below(process: psutil.Process) -> list[psutil.Process]:
    """Every process below one; none where it has ended meanwhile."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def test_a_server_killed_in_the_middle_of_a_step_costs_time_and_nothing_else(
    vllm_python: Path,
    policy: PolicyModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    processes_left: Callable[[], set[int]],
) -> None:
    rows = [f'{{"question": "{a}+{b}=", "answer": "{a + b}"}}' for a in range(4) for b in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "even.py").write_text(EVEN, encoding="utf-8")
    text = CONFIG.format(
        steps=STEPS,
        groups=GROUPS,
        size=SIZE,
        model=policy.path,
        environment=vllm_python.parents[1],
        runs=tmp_path / "runs",
    )
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    killed: list[int] = []
    versions: list[int] = []
    original = Routes.generate

    async def watched(self: Routes, body: Any) -> Any:
        """In the second step, after the first tokens of a response: kill the whole server at once."""
        count = 0
        async for delta in original(self, body):
            yield delta
            count += len(delta.tokens)
            if versions and not killed and count >= 32:
                kill_server()
                killed.append(count)

    def heard(event: Mapping[str, Any]) -> None:
        if event["event"] == "step":
            versions.append(event["step"])

    monkeypatch.setattr(Routes, "generate", watched)
    config = load_config(tmp_path / "run.toml")
    assert isinstance(config, RlvrConfig)
    with caplog.at_level(logging.WARNING, logger="assay.engines"):
        folder = train(config, base_dir=tmp_path, emit=heard)
    assert folder is not None
    assert killed, "the server was never killed"
    assert versions == list(range(1, STEPS + 1))
    assert [record.message for record in caplog.records if "the server died" in record.message]
    with RunStore.open(folder, read_only=True) as store:
        entries = list(store.rollouts())
    with sqlite3.connect(folder / "log.sqlite") as log:
        (ids,) = zip(*log.execute("SELECT id FROM rollouts"), strict=True)
        (rewarded,) = zip(*log.execute("SELECT rollout_id FROM rewards"), strict=True)
    assert len(ids) == len(set(ids)) == len(entries) >= STEPS * GROUPS * SIZE
    assert sorted(rewarded) == sorted(ids), "each rollout has one reward"
    assert all(len(entry.rollout.turns[-1].token_ids or ()) == 160 for entry in entries)
    assert all(entry.rollout.finish == "length" for entry in entries)
    assert {span.version for entry in entries for span in entry.rollout.weight_versions} == {0, 1, 2}
    assert (folder / "vllm.log").stat().st_size > 0
    assert not (folder / "weights").exists()
    assert not processes_left()
