"""Every preset passes the suite that third parties run on their own optimizers."""

from functools import partial

import pytest

from assay.testing.optimizer_suite import check_optimizer
from assay_optim import optimizer
from assay_optim.presets import PRESETS

NAMES = [preset.name for preset in PRESETS]
TIES_BY_ORDER = {"online_dpo"}
"""Where equal rewards are told apart by the order of rows, the suite runs on rewards that all differ."""


@pytest.mark.parametrize("name", NAMES)
def test_preset_passes_the_suite(name: str) -> None:
    check_optimizer(partial(optimizer, name), seeds=(0,), binary=name not in TIES_BY_ORDER)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "dapo", "gspo", "ppo", "scalerl", "reinforce_pp"])
def test_preset_passes_the_suite_on_graded_rewards(name: str) -> None:
    check_optimizer(partial(optimizer, name), seeds=(3,), binary=False)
