"""A run of the tiny model through the command line: it learns, it is killed with SIGKILL, and it goes on."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor
from torch.testing import assert_close

from assay.store import RunStore

pytestmark = pytest.mark.long

CONFIG = """
kind = "rlvr"
name = "sums"
steps = {steps}
seed = 3
policy = {{ model = "model" }}
tasks = {{ use = "jsonl", path = "train.jsonl", columns = {{ prompt = "question", reference = "answer" }} }}
engine = {{ group_size = 4, max_new_tokens = 12, {engine} }}
rewards = [{{ use = "math" }}, {{ use = "python", path = "short.py:short", weight = 0.1 }}]
optimizer = {{ use = "dr_grpo", learning_rate = 3e-4 }}
loop = {{ groups_per_step = 6 }}
checkpoint = {{ every_steps = 2 }}
"""

SHORT = """
from assay import Rollout, Task, Verdict

def short(task: Task, rollout: Rollout) -> Verdict:
    return Verdict.score(float(len(rollout.text) < 12))
"""

TRANSFORMERS = 'use = "transformers", template = "plain"'
SCRIPTED = 'use = "scripted-sums"'
SCRIPTED_PLUGIN = '''
"""An engine that answers one-digit sums by a script, in the tokens of the policy."""
import random
from assay import Component, Options, hookimpl
from assay.testing.scripted import ScriptedEngine

def answer(request, version):
    draw = random.Random(request.sampling.seed)
    return "\\\\boxed{%d}" % (int(request.task.reference) + draw.choice([0, 0, 1, 2]))

class Sums(ScriptedEngine):
    def __init__(self, tokenizer):
        super().__init__(answer, delay_s=0.1)
        self.tokenizer = tokenizer

    async def generate(self, requests):
        prompts = {request.id: request.task.prompt for request in requests}
        async for rollout in super().generate(requests):
            ids = (*self.tokenizer.encode(rollout.text), self.tokenizer.eos_token_id)
            turn = rollout.turns[0].model_copy(update={"token_ids": ids, "logprobs": (-1.0,) * len(ids)})
            prompt = tuple(self.tokenizer.encode(prompts[rollout.id]))
            yield rollout.model_copy(update={"turns": (turn,), "prompt_ids": prompt})

@hookimpl
def assay_rollout_engines():
    """Offer it."""
    return [Component("scripted-sums", Options, lambda options, context: Sums(context.policy.tokenizer))]
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from assay.training.quick_start import quick_start_model

    return quick_start_model(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture
def scripted_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the scripted engine for the runs that this test starts."""
    site = tmp_path / "site"
    info = site / "assay_scripted-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "assay_scripted_sums.py").write_text(SCRIPTED_PLUGIN, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: assay-scripted\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[assay.plugins]\nscripted = assay_scripted_sums\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def set_up(folder: Path, model: Path, steps: int, engine: str = TRANSFORMERS) -> Path:
    folder.mkdir()
    (folder / "model").symlink_to(model)
    questions = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10) if (a + b) % 3]
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in questions), encoding="utf-8")
    (folder / "short.py").write_text(SHORT, encoding="utf-8")
    (folder / "sums.toml").write_text(CONFIG.format(steps=steps, engine=engine), encoding="utf-8")
    return folder


def start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "assay", "train", "sums.toml", "--json", *flags],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> list[dict[str, object]]:
    out, err = process.communicate(timeout=1800)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def run_folder(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def weights(folder: Path) -> dict[str, Tensor]:
    newest = max(path for path in (run_folder(folder) / "checkpoints").iterdir() if path.name.isdigit())
    return load_file(newest / "model.safetensors")


def trained(folder: Path) -> dict[int, list[str]]:
    with RunStore.open(run_folder(folder), read_only=True) as store:
        return {step: sorted(m.group_id for m in store.marks(step) if m.action == "keep") for step in store.steps()}


def read_until(process: "subprocess.Popen[str]", wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == wanted:
            return
    raise AssertionError(process.communicate()[1])


def check_equal(killed: Path, calm: Path, steps: int, tolerance: float = 1e-6) -> None:
    """Equal weights and equal groups; no prompt twice, none skipped, every rollout judged by both sources."""
    assert trained(killed) == trained(calm)
    groups = [group for names in trained(killed).values() for group in names]
    assert len(groups) == len(set(groups))
    calm_weights, killed_weights = weights(calm), weights(killed)
    for name, value in calm_weights.items():
        assert_close(killed_weights[name], value, rtol=0, atol=tolerance)
    with RunStore.open(run_folder(killed), read_only=True) as store:
        rollouts = list(store.rollouts())
        assert len({entry.rollout.id for entry in rollouts}) == len(rollouts) == steps * 6 * 4
        assert all(entry.reward is not None and len(entry.judgements) == 2 for entry in rollouts)


def test_a_run_that_is_killed_and_interrupted_ends_with_the_same_weights(model: Path, tmp_path: Path):
    steps = 10
    calm = set_up(tmp_path / "calm", model, steps)
    events = finish(start(calm))
    assert events[0]["event"] == "launch"
    assert (events[-1]["event"], events[-1]["status"]) == ("done", "done")
    assert sum(event["event"] == "step" for event in events) == steps

    other = set_up(tmp_path / "killed", model, steps)
    process = start(other)
    read_until(process, "step")
    os.killpg(process.pid, signal.SIGSTOP)
    second = start(other, "--resume")
    _, err = second.communicate(timeout=300)
    assert second.returncode == 2
    assert f"in use by pid {process.pid}" in err
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    changed = start(other, "--resume", "--set", "seed=4", "--set", "optimizer.learning_rate=0.1")
    _, err = changed.communicate(timeout=300)
    assert changed.returncode == 2
    assert "was begun with another seed, optimizer" in err

    process = start(other, "--resume")
    read_until(process, "step")
    process.send_signal(signal.SIGINT)
    rest = finish(process)
    assert (rest[-1]["event"], rest[-1]["status"]) == ("done", "stopped")
    assert (run_folder(other) / "report.html").stat().st_size > 10_000

    resumed = finish(start(other, "--resume"))
    assert resumed[-1]["status"] == "done"
    check_equal(other, calm, steps)


def killed_at(process: "subprocess.Popen[str]", checkpoints: Path, wait_s: float | None) -> bool:
    """Kill a run `wait_s` after its work began, or (None) in its next checkpoint; whether it still ran.

    After two steps it is killed in any case: however fast the machine is, the run is longer than all kills together.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    with process, process.stdout, process.stderr:
        try:
            for line in process.stdout:
                if json.loads(line)["event"] in ("launch", "resumed"):
                    break
            os.set_blocking(process.stdout.fileno(), False)
            until = time.monotonic() + (1.0 if wait_s is None else wait_s)
            steps = 0
            while time.monotonic() < until and steps < 2 and not (wait_s is None and any(checkpoints.glob(".*.*"))):
                with contextlib.suppress(BlockingIOError):
                    steps += os.read(process.stdout.fileno(), 1 << 16).count(b'"event": "step"')
                time.sleep(0.001)
            return process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.usefixtures("scripted_plugin")
@pytest.mark.parametrize(("engine", "tolerance"), [(SCRIPTED, 0.0), (TRANSFORMERS, 1e-6)], ids=["scripted", "sampled"])
def test_a_run_killed_at_fifty_random_moments_ends_with_the_same_weights(
    engine: str, tolerance: float, model: Path, tmp_path: Path
):
    steps, kills = 160, 50
    calm = set_up(tmp_path / "calm", model, steps, engine)
    finish(start(calm))
    killed = set_up(tmp_path / "killed", model, steps, engine)
    moments = random.Random(11)
    durable: dict[str, float | None] = {}
    hits = 0
    for number in range(kills):
        process = start(killed, *(("--resume",) if number else ()))
        checkpoints = next((killed / "runs").iterdir()) / "checkpoints" if number else killed / "none"
        hits += killed_at(process, checkpoints, None if number % 10 == 9 else moments.uniform(0.0, 0.5))
        with RunStore.open(run_folder(killed), read_only=True) as store:
            found = {entry.rollout.id: entry.reward and entry.reward.value for entry in store.rollouts()}
        assert durable.items() <= {name: value for name, value in found.items() if name in durable}.items()
        durable = {name: value for name, value in found.items() if value is not None}
    assert hits == kills
    assert finish(start(killed, "--resume"))[-1]["status"] == "done"
    check_equal(killed, calm, steps, tolerance)
