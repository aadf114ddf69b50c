"""Checkpoints: a killed run goes on bit by bit, a damaged one is passed over, a full disk is told before the run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import assay_optim
from assay.component import BuildContext
from assay.config.training import LoraSettings, OptimizerSettings
from assay.contracts import Message, Reward, Rollout, Sampling, ScoredGroup, Task, Turn
from assay.errors import ConfigError, TrainingError
from assay.training.checkpoint import (
    Checkpoints,
    check_free_space,
    checkpoint_bytes,
    find_fault,
    load_trainer,
    save_trainer,
)
from assay.training.model import load_policy
from assay.training.tiny import make_tiny_model
from assay.training.trainer import Trainer
from assay.training.weights import Publisher


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=32, layers=2)


def make_trainer(folder: Path, name: str = "grpo", **changes: Any) -> Trainer:
    component = next(part for part in assay_optim.assay_policy_optimizers() if part.name == name)
    optimizer = component.build(component.config(), BuildContext())
    dtype = changes.pop("policy_dtype", "float32")
    settings = OptimizerSettings(learning_rate=1e-3, updates_per_batch=2, schedule="cosine", total_steps=20, **changes)
    return Trainer(load_policy(str(folder), dtype=dtype), optimizer, settings, seed=3)


def draw_groups(step: int) -> list[ScoredGroup]:
    draw = random.Random(step)
    groups: list[ScoredGroup] = []
    for number in range(3):
        task = Task(id=f"t{number}", messages=(Message(role="user", content="x"),))
        prompt = tuple(draw.randrange(3, 90) for _ in range(4))
        rollouts = tuple(
            Rollout(
                id=f"{number}-{index}",
                task_id=task.id,
                group_id=task.id,
                prompt_ids=prompt,
                turns=(Turn(text="x", token_ids=tuple(draw.randrange(3, 90) for _ in range(5))),),
                sampling=Sampling(max_new_tokens=8),
            )
            for index in range(4)
        )
        rewards = tuple(Reward(rollout_id=rollout.id, value=draw.random()) for rollout in rollouts)
        groups.append(ScoredGroup(task=task, rollouts=rollouts, rewards=rewards))
    return groups


def bits(trainer: Trainer) -> list[Tensor]:
    found = [parameter.detach().clone() for parameter in trainer.policy.model.parameters()]
    moments = trainer.adamw.state_dict()["state"]
    found += [moments[index][name].clone() for index in sorted(moments) for name in sorted(moments[index])]
    found += [
        value for sidecar in trainer.sidecars for value in sidecar.state_dict().values() if torch.is_tensor(value)
    ]
    return found


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("grpo", {}),
        ("ppo", {}),
        ("kimi", {}),
        ("grpo", {"lora": LoraSettings(rank=2)}),
        ("dr_grpo", {"policy_dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(
    folder: Path, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    straight = make_trainer(folder, name, **changes)
    for step in range(4):
        straight.step(draw_groups(step))

    first = make_trainer(folder, name, **changes)
    for step in range(2):
        first.step(draw_groups(step))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(2, lambda path: save_trainer(first, path, {"tasks_drawn": 6}))

    torch.manual_seed(99)
    random.seed(99)
    second = make_trainer(folder, name, **changes)
    found = checkpoints.latest()
    assert found is not None
    assert load_trainer(second, found.path) == {"tasks_drawn": 6}
    assert (second.version, second.updates) == (2, 4)
    for step in range(2, 4):
        second.step(draw_groups(step))
    ours, theirs = bits(second), bits(straight)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_random_streams_go_on_where_they_were(folder: Path, tmp_path: Path) -> None:
    trainer = make_trainer(folder)
    save_trainer(trainer, tmp_path)
    expected = (torch.rand(2).tolist(), random.random())
    torch.manual_seed(0)
    random.seed(0)
    load_trainer(trainer, tmp_path)
    assert (torch.rand(2).tolist(), random.random()) == expected


def write(text: str) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        (path / "data").write_text(text, encoding="utf-8")

    return fill


def flip(path: Path) -> None:
    raw = bytearray((path / "data").read_bytes())
    raw[0] ^= 1
    (path / "data").write_bytes(raw)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flip, "file data has another hash"),
    "cut": (
        lambda path: (path / "data").write_text("x", encoding="utf-8"),
        "file data has 1 bytes instead of 5",
    ),
    "missing": (lambda path: (path / "data").unlink(), "file data is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "its manifest cannot be read"),
    "torn manifest": (
        lambda path: (path / "manifest.json").write_text('{"form', encoding="utf-8"),
        "its manifest cannot be read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, write(f"step{step}"))
    spoil, reason = DAMAGES[damage]
    spoil(tmp_path / "00000002")
    found = checkpoints.latest()
    assert found is not None
    assert found.step == 1
    assert reason in found.skipped[0]
    spoil(tmp_path / "00000001")
    with pytest.raises(TrainingError, match="every checkpoint is damaged"):
        checkpoints.latest()


def test_no_checkpoint_at_all_is_not_an_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").latest() is None


def test_the_newest_ones_are_kept_and_a_step_can_be_written_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 10, 10):
        checkpoints.save(step, write(str(step)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "00000010"]


def test_a_failed_write_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, write("one"))

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError, match="cannot be written; No space left on device"):
        checkpoints.save(2, full)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    assert find_fault(tmp_path / "00000001") is None


KILLED = """
import sys
from pathlib import Path
from assay.training.checkpoint import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]))
def fill(path):
    for part in range(20):
        (path / f"part{part}").write_bytes(bytes(100_000))
for step in range(10_000):
    checkpoints.save(step, fill)
    print(step, flush=True)
"""


def test_a_kill_in_the_middle_of_writing_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    seen = [int(child.stdout.readline()) for _ in range(3)]
    time.sleep(random.Random(os.getpid()).random() * 0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert found.step >= seen[-1]
    assert not found.skipped
    Checkpoints(tmp_path).save(found.step + 1, write("x"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_another_model_is_refused_before_anything_is_changed(folder: Path, tmp_path: Path) -> None:
    save_trainer(make_trainer(folder), tmp_path / "a")
    other = make_tiny_model(tmp_path / "other", hidden_size=64, layers=1)
    trainer = make_trainer(other)
    before = bits(trainer)
    with pytest.raises(TrainingError, match="the checkpoint is of another model or optimizer"):
        load_trainer(trainer, tmp_path / "a")
    assert all(torch.equal(a, b) for a, b in zip(before, bits(trainer), strict=True))


def test_a_checkpoint_is_a_model_folder_and_about_as_large_as_foretold(folder: Path, tmp_path: Path) -> None:
    trainer = make_trainer(folder)
    trainer.step(draw_groups(0))
    path = Checkpoints(tmp_path).save(1, lambda target: save_trainer(trainer, target))
    loaded = load_policy(str(path))
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, trainer.policy.model(ids).logits)
    written = sum(file.stat().st_size for file in path.iterdir())
    assert written <= checkpoint_bytes(trainer.policy, trainer.settings)
    assert json.loads((path / "manifest.json").read_text(encoding="utf-8"))["step"] == 1


def test_too_little_disk_is_one_sentence_before_the_run(tmp_path: Path) -> None:
    check_free_space(tmp_path / "run", 1000)
    with pytest.raises(
        ConfigError,
        match=r"run: too little free disk for checkpoints; needed 4\.86 GB, free 1\.20 GB\. Free some space",
    ):
        check_free_space(tmp_path / "run", 4_860_000_000, free=1_200_000_000)


def test_an_engine_that_shares_the_module_gets_a_version_and_others_a_folder(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(str(folder))
    shared = Publisher(policy).publish(4)
    assert (shared.version, shared.path) == (4, None)
    publisher = Publisher(policy, folder=tmp_path / "weights", keep=2)
    paths = [publisher.publish(version).path for version in (1, 2, 3)]
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["00000002", "00000003"]
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(load_policy(str(paths[-1])).model(ids).logits, policy.model(ids).logits)


def test_a_published_adapter_is_merged_into_the_weights(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    trainer = make_trainer(folder, lora=LoraSettings(rank=2))
    trainer.step(draw_groups(0))
    path = Publisher(trainer.policy, folder=tmp_path).publish(1).path
    ids = torch.tensor([[5, 6, 7]])
    found, expected = load_policy(str(path)).model(ids).logits, trainer.policy.model(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert not torch.equal(expected, load_policy(str(folder)).model(ids).logits)
