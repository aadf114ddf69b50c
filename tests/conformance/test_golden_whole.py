"""Whole methods: the loss of one batch against plain floats, decisions on groups, and each number without its term."""

import runpy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.contracts.batch import Reward, ScoredGroup
from assay.contracts.rollout import Rollout, Turn, WeightSpan
from assay.contracts.task import Message, Task
from assay.contracts.tensors import Forward, TrainBatch
from assay.testing.optimizer_suite import batch_of
from assay_optim import optimizer
from assay_optim.optimizer import Composition
from assay_optim.presets import PRESETS

FOLDER = Path(__file__).parent
ROWS: list[dict[str, Any]] = tomllib.loads((FOLDER / "golden" / "whole.toml").read_text())["row"]
INPUTS: dict[str, Any] = runpy.run_path(str(FOLDER / "by_hand.py"))
ACTIONS = {"drop": 0.0, "keep": 1.0, "refill": 2.0}


def padded(rows: Sequence[Sequence[float]], fill: float = 0.0) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def the_batch(*, explained: bool) -> tuple[TrainBatch, Forward]:
    """The batch of the golden file and the current policy on it; ExPO's has an explanation as one more row."""
    names = ("old", "gen", "reference", "values", "process", "dpo", "now", "second_gen", "second_now")
    tensors = {name: padded(INPUTS[name.upper()]) for name in names}
    top = {name: torch.stack([tensors[name], tensors[f"second_{name}"]], dim=-1) for name in ("gen", "now")}
    costs = padded(INPUTS["COST_VALUES"])
    lengths, rewards, groups = INPUTS["LENGTHS"], INPUTS["REWARDS"], INPUTS["GROUPS"]
    cut, channels = INPUTS["TRUNCATED"], {name: INPUTS[name.upper()] for name in ("rts", "cost")}
    if explained:
        more = padded([INPUTS["EXPLANATION"], [0.0] * tensors["now"].shape[1]])[:1]
        tensors = {name: torch.cat([tensor, more]) for name, tensor in tensors.items()}
        lengths, rewards, groups = [*lengths, len(INPUTS["EXPLANATION"])], [*rewards, 0.0], [*groups, groups[-1]]
        cut = [*cut, False]
        channels = {"nll": [0.0] * (len(rewards) - 1) + [1.0]}
    batch = batch_of(
        rewards, lengths, groups=groups, max_tokens=INPUTS["LIMIT"], truncated=cut, logp_gen=tensors["gen"],
        logp_old=tensors["old"], logp_ref=tensors["reference"], values=tensors["values"],
    )  # fmt: skip
    batch = replace(
        batch,
        channels={name: torch.tensor(values) for name, values in channels.items()},
        topk_gen=top["gen"],
        extra={"logp_dpo": tensors["dpo"], "values_cost_critic": costs, "process": tensors["process"]},
    )
    moved = {"values_cost_critic": costs + 0.1}
    now = tensors["now"]
    return batch, Forward(now, now * 0, values=tensors["values"] + 0.1, topk=top["now"], extra=moved)


def whole_loss(preset: str, options: Mapping[str, Any]) -> Tensor:
    """The loss of the batch, after as many batches without rewards as the preset's warm-up takes."""
    ours = optimizer(preset, **options)
    batch, forward = the_batch(explained=preset == "expo")
    if ours.needs.token_reward:
        batch = replace(batch, token_reward=batch.extra["process"])
    for _ in range(INPUTS["WARM_UP"].get(preset, 0)):
        ours.prepare(replace(batch, reward=batch.reward * 0))
    return ours.loss(ours.prepare(batch), forward).loss.detach()


def decisions(preset: str, options: Mapping[str, Any], groups: list[list[float]], versions: list[int]) -> Tensor:
    """0 for drop, 1 for keep, 2 for refill."""
    chosen = optimizer(preset, **options).select(scored_groups(groups, versions))
    return torch.tensor([ACTIONS[decision.action] for decision in chosen])


def task_weights(preset: str, options: Mapping[str, Any], groups: list[list[float]], versions: list[int]) -> Tensor:
    """The task sampler's weights after these groups, and that of a task that was never drawn."""
    ours: Composition = optimizer(preset, **options)
    ours.select(scored_groups(groups, versions))
    assert ours.task_sampler is not None
    return torch.tensor(ours.task_sampler.weights([*map(str, range(len(groups))), "unseen"]))


def scored_groups(groups: list[list[float]], versions: list[int]) -> list[ScoredGroup]:
    """Groups with these rewards whose tokens are of these versions."""
    found: list[ScoredGroup] = []
    for task, (rewards, version) in enumerate(zip(groups, versions, strict=True)):
        rollouts = tuple(
            Rollout(
                id=f"{task}-{index}", task_id=str(task), group_id=str(task), turns=(Turn(text="x", token_ids=(1,)),),
                weight_versions=(WeightSpan(version=version, first=0, last=0),),
            )
            for index in range(len(rewards))
        )  # fmt: skip
        values = tuple(
            Reward(rollout_id=rollout.id, value=value) for rollout, value in zip(rollouts, rewards, strict=True)
        )
        messages = (Message(role="user", content="?"),)
        found.append(ScoredGroup(task=Task(id=str(task), messages=messages), rollouts=rollouts, rewards=values))
    return found


CHECKS = {check.__name__: check for check in (whole_loss, decisions, task_weights)}


def number(row: dict[str, Any], without: Mapping[str, Any] | None = None) -> list[float]:
    inputs = dict(row["inputs"])
    changes = {axis: None if part == "absent" else part for axis, part in (without or {}).items()}
    options = {**inputs.pop("options", {}), **changes}
    return [float(value) for value in CHECKS[row["check"]](row["method"], options, **inputs).flatten()]


def expected(row: dict[str, Any]) -> list[float]:
    return list(row["expected"]) if row["check"] != "whole_loss" else [row["expected"]]


def name_of(row: dict[str, Any]) -> str:
    return f"{row['method']}:{row['check']}"


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_number_is_that_of_the_formulas(row: dict[str, Any]) -> None:
    assert number(row) == pytest.approx(expected(row), abs=row["tolerance"])


TERMS = [(row, without) for row in ROWS for without in row["without"]]


@pytest.mark.parametrize(("row", "without"), TERMS, ids=lambda value: str(value.get("method", value)))
def test_without_its_term_the_number_is_another(row: dict[str, Any], without: dict[str, Any]) -> None:
    near = pytest.approx(expected(row), abs=10 * row["tolerance"])
    assert number(row, without) != near, f"{without} changes nothing"


def test_every_preset_is_there_with_a_term() -> None:
    assert {row["method"] for row in ROWS if row["without"]} == {preset.name for preset in PRESETS}


def test_the_expected_losses_are_those_of_the_script() -> None:
    losses = {row["method"]: row["expected"] for row in ROWS if row["check"] == "whole_loss"}
    assert losses == {name: pytest.approx(value, abs=1e-7) for name, value in INPUTS["whole"]().items()}
