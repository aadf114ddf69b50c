"""Every preset and every preference objective teaches a tiny real model; the table says which free numbers were chosen.

Free are learning rate, group size and number of updates only. A preset that cannot learn is a defect.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.config.training import OptimizerSettings
from assay.contracts.task import Task
from assay.protocols import Example
from assay.testing import learning
from assay.training.model import PolicyModel, load_policy
from assay_optim import objective, optimizer
from assay_optim.presets import PRESETS

pytestmark = pytest.mark.filterwarnings("ignore")

ENOUGH = 0.9
"""Share of the attainable reward that must be reached."""


class Chosen(NamedTuple):
    """What is free."""

    learning_rate: float = 1e-3
    group_size: int = 8
    updates: int = 90


FREE: dict[str, Chosen] = {preset.name: Chosen() for preset in PRESETS}
BETAS = {"grpo": 0.04, "rloo": 0.05, "ppo": 0.05, "tulu3": 0.05, "repo": 0.05}
"""Strength of the KL in the objective, where the attainable is below 1 by more than nothing."""
QUICK = ["grpo", "ppo", "rloo", "cispo", "maxrl"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learning.supervised_start(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def weak_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start that likes many wrong answers better than the right one, for objectives on pairs."""
    return learning.supervised_start(tmp_path_factory.mktemp("weak"), until=0.15)


@pytest.fixture(scope="module")
def preferring(start: Path) -> PolicyModel:
    """A model that DPO has taught a little: what RTO's token rewards come from."""
    objective_ = objective("dpo")
    settings = OptimizerSettings(learning_rate=5e-4, micro_batch_tokens=8192)
    return learning.learn_examples(objective_, start, pairs(start), settings=settings, updates=15)[1]


def channels_of(task: Task, text: str) -> Mapping[str, float]:
    """What judges would say of an answer: how far its steps are right, what it costs, how good its first token is."""
    right = text[:1] == task.reference
    near = text[:1].isdigit() and abs(int(text[0]) - int(str(task.reference))) <= 1
    return {"rts": 0.8 if right else 0.4 if near else 0.0, "cost": -0.1 if near else 0.1, "process": 0.1 * right}


def teach(name: str, start: Path, preferring: PolicyModel, seed: int) -> learning.Learned:
    chosen = FREE[name]
    return learning.learn(
        optimizer(name),
        start,
        settings=OptimizerSettings(learning_rate=chosen.learning_rate, micro_batch_tokens=8192),
        updates=chosen.updates,
        group_size=chosen.group_size,
        seed=seed,
        beta=BETAS.get(name, 0.0),
        channels=channels_of if name in ("sgpo", "repo", "prime") else None,
        explained=name == "expo",
        models={"dpo": preferring} if name == "rto" else None,
        stop_at=ENOUGH,
    )


def check(name: str, start: Path, preferring: PolicyModel, seed: int) -> None:
    found = teach(name, start, preferring, seed)
    print(f"{name}, seed {seed}: {found.before:.3f} -> {found.after:.3f} of {found.attainable:.3f} in {found.updates}")
    assert found.share >= ENOUGH, f"{name} reached {found.share:.3f} of the attainable reward with {FREE[name]}"


@pytest.mark.parametrize("name", QUICK)
def test_preset_learns(name: str, start: Path, preferring: PolicyModel) -> None:
    check(name, start, preferring, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(FREE))
def test_every_preset_learns_on_every_seed(name: str, seed: int, start: Path, preferring: PolicyModel) -> None:
    check(name, start, preferring, seed)


# ---- Objectives -----------------------------------------------------------------------------------------------------

PREFERENCES = ["dpo", "dpo_norm", "ipo", "simpo", "spin", "iterative_dpo", "hinge", "orpo", "kto", "bnf", "larpo"]


def pairs(start: Path, *, held_out: bool = False) -> list[Example]:
    """Right answers against wrong ones that the start likes; held-out pairs have wrongs that training never shows."""
    policy = load_policy(str(start))
    encode = learning.encode(policy)
    found: list[Example] = []
    for task in learning.tasks():
        right = str(task.reference)
        wrongs = [str(digit) for digit in range(10) if str(digit) != right]
        liked = dict(zip(wrongs, learning.log_probs(policy, [(task, wrong) for wrong in wrongs]), strict=True))
        ranked = sorted(wrongs, key=lambda wrong: -liked[wrong])
        for rank in (0, 2) if held_out else (1, 3, 5):
            found.append(Example((encode(task.prompt, right), encode(task.prompt, ranked[rank]))))
    return found


def examples_for(name: str, start: Path) -> list[Example]:
    if name == "kto":
        return [
            Example((sequence,), facts={"label": good})
            for example in pairs(start)
            for sequence, good in zip(example.sequences, (True, False), strict=True)
        ]
    if name.startswith("larpo"):
        grouped = pairs(start)
        return [
            Example((grouped[at].sequences[0], *[grouped[at + step].sequences[1] for step in range(3)]))
            for at in range(0, len(grouped), 3)
        ]
    return pairs(start)


def chosen_above(policy: PolicyModel, examples: list[Example]) -> float:
    """Share of pairs whose chosen answer is likelier than the rejected one."""
    tokenizer: Any = policy.tokenizer
    answers: list[tuple[Task, str]] = []
    for example in examples:
        for prompt, response in example.sequences:
            task = next(task for task in learning.tasks() if task.prompt == tokenizer.decode(prompt))
            answers.append((task, tokenizer.decode(response[:-1])))
    found = learning.log_probs(policy, answers)
    return sum(good > bad for good, bad in zip(found[0::2], found[1::2], strict=True)) / len(examples)


def check_objective(name: str, start: Path, options: Mapping[str, Any] | None = None) -> None:
    settings = OptimizerSettings(learning_rate=3e-4, micro_batch_tokens=8192)
    made = objective(name, **(options or {}))
    before, after = learning.learn_examples(
        made, start, examples_for(name, start), settings=settings, updates=20, reference_every=10 * (name == "spin")
    )
    held_out = pairs(start, held_out=True)
    old, new = chosen_above(before, held_out), chosen_above(after, held_out)
    print(f"{name}: held-out pairs {old:.3f} -> {new:.3f}, reward {learning.success_rate(before):.3f} -> "
          f"{learning.success_rate(after):.3f}")  # fmt: skip
    assert new > old
    assert learning.success_rate(after) > learning.success_rate(before)


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_objective_learns(name: str, weak_start: Path) -> None:
    check_objective(name, weak_start)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PREFERENCES, "larpo_lambdarank", "larpo_listmle"])
def test_every_objective_learns(name: str, weak_start: Path) -> None:
    check_objective(name, weak_start)


def test_supervised_learning_imitates(start: Path) -> None:
    examples = [Example(example.sequences[:1]) for example in pairs(start)]
    settings = OptimizerSettings(learning_rate=1e-3, micro_batch_tokens=8192)
    before, after = learning.learn_examples(objective("sft"), start, examples, settings=settings, updates=15)
    assert learning.success_rate(after) > learning.success_rate(before) + 0.1
