"""Every preset and every preference objective teaches a tiny real model; the table says which free numbers were chosen.

Free are learning rate, group size and number of updates only. A preset that cannot learn is a defect.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.config.training import OptimizerSettings
from assay.contracts.task import Task
from assay.protocols import Example
from assay.testing import learning
from assay.training.model import PolicyModel, load_policy
from assay_optim import objective, optimizer
from assay_optim.presets import PRESETS

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

ENOUGH = 0.9
"""Share of the attainable reward that must be reached."""


class Chosen(NamedTuple):
    """What is free."""

    learning_rate: float = 1e-3
    group_size: int = 8
    updates: int = 150
    """At most; a run stops as soon as it has reached enough."""


FREE = {preset.name: Chosen() for preset in PRESETS} | {
    "kimi": Chosen(learning_rate=7e-4, group_size=12, updates=120),
    "prime": Chosen(learning_rate=7e-4, group_size=5, updates=300),
    "tulu3": Chosen(learning_rate=7e-4, group_size=20, updates=150),
    "reinforce_batch_mean": Chosen(learning_rate=7e-4, group_size=12, updates=120),
}
"""Where the defaults are not enough: chosen on seeds 10, 11 and 12 by `tests/benchmarks/learning_numbers.py`, and only
then judged on seeds 0, 1 and 2."""
BETAS = {"grpo": 0.04, "rloo": 0.05, "ppo": 0.05, "tulu3": 0.05, "repo": 0.05}
"""Strength of the KL in the objective, where the attainable is below 1 by more than nothing."""
QUICK = ["grpo", "ppo", "rloo", "cispo", "maxrl"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learning.supervised_start(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def good_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start from which fewer updates suffice, for the default run."""
    return learning.supervised_start(tmp_path_factory.mktemp("good"), until=0.6)


@pytest.fixture(scope="module")
def preferring(start: Path) -> PolicyModel:
    """A model that DPO has taught a little: what RTO's token rewards come from."""
    encode = learning.encode(load_policy(str(start)))
    pairs = [
        Example(
            (encode(task.prompt, str(task.reference)), encode(task.prompt, str((int(str(task.reference)) + step) % 10)))
        )
        for task in learning.tasks()
        for step in (1, 3, 5)
    ]
    settings = OptimizerSettings(learning_rate=5e-4, micro_batch_tokens=8192)
    return learning.learn_examples(objective("dpo"), start, pairs, settings=settings, updates=15)[1]


def channels_of(task: Task, text: str) -> Mapping[str, float]:
    """What judges would say of an answer: how far its steps are right, what it costs, how good its first token is."""
    right = text[:1] == task.reference
    near = text[:1].isdigit() and abs(int(text[0]) - int(str(task.reference))) <= 1
    return {"rts": 0.8 if right else 0.4 if near else 0.0, "cost": -0.1 if near else 0.1, "process": 0.1 * right}


def teach(
    name: str, start: Path, preferring: PolicyModel | None, seed: int, chosen: Chosen | None = None
) -> learning.Learned:
    chosen = chosen or FREE[name]
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
        models={"dpo": preferring} if name == "rto" and preferring is not None else None,
        stop_at=ENOUGH,
    )


def check(name: str, start: Path, preferring: PolicyModel | None, seed: int) -> None:
    found = teach(name, start, preferring, seed)
    print(f"{name}, seed {seed}: {found.before:.3f} -> {found.after:.3f} of {found.attainable:.3f} in {found.updates}")
    assert found.share >= ENOUGH, f"{name} reached {found.share:.3f} of the attainable reward with {FREE[name]}"


@pytest.mark.parametrize("name", QUICK)
def test_preset_learns(name: str, good_start: Path) -> None:
    check(name, good_start, None, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(FREE))
def test_every_preset_learns_on_every_seed(name: str, seed: int, start: Path, preferring: PolicyModel) -> None:
    check(name, start, preferring, seed)


# ---- Objectives: larger digits are preferred, on some sums; held out are other sums ---------------------------------

PREFERENCES = [
    "dpo", "dpo_norm", "ipo", "simpo", "spin", "iterative_dpo", "hinge", "orpo", "kto", "bnf", "larpo",
    "larpo_lambdarank", "larpo_listmle",
]  # fmt: skip
TRAINED, HELD_OUT = learning.tasks()[0::2], learning.tasks()[1::2]
LARGE, SMALL = "56789", "01234"


@pytest.fixture(scope="module", params=[0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def undecided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start that answers with any digit."""
    folder = tmp_path_factory.mktemp("undecided")
    return learning.supervised_start(folder, seed=request.param, until=0.0, format_steps=60)


def digit_pairs(start: Path, tasks: Sequence[Task]) -> list[Example]:
    """A large digit against a small one, five pairs per sum."""
    encode = learning.encode(load_policy(str(start)))
    return [
        Example((encode(task.prompt, good), encode(task.prompt, bad)))
        for task in tasks
        for good, bad in zip(LARGE, SMALL, strict=True)
    ]


def examples_for(name: str, start: Path) -> list[Example]:
    found = digit_pairs(start, TRAINED)
    if name == "kto":
        return [
            Example((sequence,), facts={"label": good})
            for example in found
            for sequence, good in zip(example.sequences, (True, False), strict=True)
        ]
    if name.startswith("larpo"):
        rejected = [[found[at + step].sequences[1] for step in range(3)] for at in range(len(found) - 3)]
        return [
            Example((example.sequences[0], *worse))
            for example, worse in zip(found, rejected, strict=False)
            if all(prompt == example.sequences[0][0] for prompt, _ in worse)
        ]
    return found


def preferred(policy: PolicyModel) -> tuple[float, float]:
    """On held-out sums: the share of pairs with the chosen digit above the rejected, and the mass of large digits."""
    above = mass = 0.0
    for task in HELD_OUT:
        found = learning.log_probs(policy, [(task, digit) for digit in SMALL + LARGE])
        small, large = found[:5], found[5:]
        above += sum(good > bad for good in large for bad in small) / 25
        mass += sum(math.exp(value) for value in large)
    return above / len(HELD_OUT), mass / len(HELD_OUT)


def check_objective(name: str, start: Path) -> None:
    settings = OptimizerSettings(learning_rate=2e-4, micro_batch_tokens=8192)
    before, after = learning.learn_examples(
        objective(name), start, examples_for(name, start), settings=settings, updates=25,
        reference_every=10 * (name == "spin"),
    )  # fmt: skip
    (old_above, old_mass), (above, mass) = preferred(before), preferred(after)
    print(f"{name}: held-out pairs {old_above:.3f} -> {above:.3f}, sampled reward {old_mass:.3f} -> {mass:.3f}")
    assert above > old_above
    assert mass > old_mass


@pytest.mark.parametrize(
    "name", [name if name in ("dpo", "kto") else pytest.param(name, marks=pytest.mark.slow) for name in PREFERENCES]
)
def test_objective_learns(name: str, undecided: Path) -> None:
    check_objective(name, undecided)


def test_supervised_learning_imitates(good_start: Path) -> None:
    encode = learning.encode(load_policy(str(good_start)))
    examples = [Example((encode(task.prompt, str(task.reference)),)) for task in learning.tasks()]
    settings = OptimizerSettings(learning_rate=1e-3, micro_batch_tokens=8192)
    before, after = learning.learn_examples(objective("sft"), good_start, examples, settings=settings, updates=15)
    assert learning.success_rate(after) > learning.success_rate(before) + 0.1
