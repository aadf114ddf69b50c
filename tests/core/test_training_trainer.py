"""One update: the split changes nothing, no gradient means no step, and what an optimizer asks for it is given."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import assay_optim
import assay_prms.plugin
from assay.component import BuildContext
from assay.config.training import LoraSettings, OptimizerSettings, split_optimizer_table
from assay.contracts import (
    Forward,
    LossReport,
    Message,
    Reward,
    Rollout,
    Sampling,
    ScoredGroup,
    Task,
    TrainBatch,
    Turn,
)
from assay.errors import ConfigError, TrainingError
from assay.protocols import Example, Needs, PolicyOptimizer, Selection, Sidecar
from assay.training.model import PolicyModel, load_policy
from assay.training.schedule import learning_rate_share
from assay.training.tiny import make_tiny_model
from assay.training.trainer import Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=32, layers=2)


@pytest.fixture
def policy(folder: Path) -> PolicyModel:
    return load_policy(str(folder))


def preset(name: str, **options: Any) -> PolicyOptimizer:
    component = next(part for part in assay_optim.assay_policy_optimizers() if part.name == name)
    return component.build(component.config(**options), BuildContext())


def draw_groups(
    seed: int = 0, *, count: int = 4, size: int = 5, value: float | None = None, binary: bool = False
) -> list[ScoredGroup]:
    draw = random.Random(seed)
    groups: list[ScoredGroup] = []
    for number in range(count):
        task = Task(id=f"t{number}", messages=(Message(role="user", content="x"),))
        prompt = tuple(draw.randrange(3, 90) for _ in range(draw.randrange(2, 7)))
        responses = [tuple(draw.randrange(3, 90) for _ in range(draw.randrange(0, 8))) for _ in range(size)]
        rollouts = tuple(
            Rollout(
                id=f"{number}-{index}",
                task_id=task.id,
                group_id=task.id,
                prompt_ids=prompt,
                turns=(Turn(text="x", token_ids=ids, logprobs=tuple(-4.5 + draw.random() for _ in ids)),),
                sampling=Sampling(max_new_tokens=8, temperature=0.9),
            )
            for index, ids in enumerate(responses)
        )
        values = [draw.random() if value is None else value for _ in rollouts]
        values = [float(one > 0.5) for one in values] if binary else values
        rewards = tuple(Reward(rollout_id=r.id, value=v) for r, v in zip(rollouts, values, strict=True))
        groups.append(ScoredGroup(task=task, rollouts=rollouts, rewards=rewards))
    return groups


def masked(groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    nothing = [tuple(reward.model_copy(update={"value": None}) for reward in group.rewards) for group in groups]
    return [group.model_copy(update={"rewards": rewards}) for group, rewards in zip(groups, nothing, strict=True)]


def weights(policy: PolicyModel) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.model.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def gradient(trainer: Trainer) -> list[Tensor]:
    """The gradient of the first step, from AdamW's first moment."""
    return [state["exp_avg"] / (1 - trainer.settings.betas[0]) for state in trainer.adamw.state.values()]


SPLITS: list[dict[str, Any]] = [
    {"micro_batch_tokens": 25},
    {"packing": "padded", "micro_batch_tokens": 30},
    {"gradient_checkpointing": True, "micro_batch_tokens": 60},
    {"head_chunk_tokens": 3},
]


@pytest.mark.parametrize(("name", "splits"), [("grpo", SPLITS), ("kimi", SPLITS[:1]), ("disco", SPLITS[:1])])
def test_any_split_gives_the_same_loss_and_gradient(folder: Path, name: str, splits: list[dict[str, Any]]) -> None:
    groups = draw_groups(binary=True)

    def update(changes: dict[str, Any]) -> tuple[float, list[Tensor]]:
        options = OptimizerSettings(learning_rate=1e-4, max_grad_norm=None, **changes)
        trainer = Trainer(load_policy(str(folder)), preset(name), options)
        return trainer.step(groups).metrics["loss"], gradient(trainer)

    loss, whole = update({})
    scale = max(float(grad.abs().max()) for grad in whole)
    assert scale > 0
    for split in splits:
        split_loss, parts = update(split)
        assert split_loss == pytest.approx(loss, abs=1e-6 * max(1.0, abs(loss))), split
        difference = max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True))
        assert difference <= 1e-6 * max(1.0, scale), split


def test_the_same_seed_and_groups_give_the_same_bits(folder: Path) -> None:
    results: list[list[Tensor]] = []
    for _ in range(2):
        policy = load_policy(str(folder))
        trainer = Trainer(policy, preset("grpo"), OptimizerSettings(learning_rate=1e-3, updates_per_batch=2), seed=5)
        for step in range(2):
            trainer.step(draw_groups(step))
        results.append(weights(policy))
    assert same(*results)


def test_a_batch_without_a_gradient_moves_nothing_even_with_momentum(policy: PolicyModel) -> None:
    trainer = Trainer(policy, preset("dr_grpo"), OptimizerSettings(learning_rate=1e-3))
    assert trainer.step(draw_groups()).metrics["updates"] == 1
    before = weights(policy)
    flat = trainer.step(draw_groups(1, value=1.0))
    assert flat.metrics["skipped_updates"] == 1
    assert flat.metrics["grad_norm"] == 0
    nothing = trainer.step(masked(draw_groups(2)))
    assert "updates" not in nothing.metrics
    assert nothing.metrics["masked_rows"] == 20
    assert same(before, weights(policy))
    assert (trainer.version, trainer.updates) == (3, 1)


def test_rewards_move_the_policy_towards_what_was_rewarded(policy: PolicyModel) -> None:
    trainer = Trainer(policy, preset("dr_grpo"), OptimizerSettings(learning_rate=1e-3))
    groups = draw_groups(count=2, size=2)
    groups = [
        group.model_copy(
            update={"rewards": tuple(r.model_copy(update={"value": float(i)}) for i, r in enumerate(group.rewards))}
        )
        for group in groups
    ]

    def gaps() -> list[float]:
        from assay.training.batch import make_batch
        from assay.training.forward import response_forward

        with torch.no_grad():
            logp = response_forward(policy.model, make_batch(groups).rows).logp.sum(dim=1)
        return [float(logp[1] - logp[0]), float(logp[3] - logp[2])]

    before = gaps()
    for _ in range(3):
        trainer.step(groups)
    assert all(after > old for after, old in zip(gaps(), before, strict=True))


def test_several_updates_compare_with_the_policy_before_the_first(policy: PolicyModel) -> None:
    settings = OptimizerSettings(learning_rate=1e-2, updates_per_batch=2, epochs=2)
    report = Trainer(policy, preset("dr_grpo"), settings).step(draw_groups())
    assert report.metrics["updates"] == 4
    assert report.metrics["ratio_max"] > 1.01
    fresh = Trainer(policy, preset("dr_grpo"), OptimizerSettings(learning_rate=1e-2)).step(draw_groups())
    assert fresh.metrics["ratio_max"] == 1.0


def test_the_distance_of_sampler_and_trainer_is_reported(policy: PolicyModel) -> None:
    report = Trainer(policy, preset("dr_grpo"), OptimizerSettings()).step(draw_groups())
    assert 0 < report.metrics["logp_diff_mean"] <= report.metrics["logp_diff_max"]


class Recorder:
    """An optimizer that keeps what its loss was given; its loss is the advantage-weighted log-prob."""

    def __init__(self, needs: Needs | None = None, loss: Callable[[Tensor], Tensor] = lambda value: value) -> None:
        self.needs = needs or Needs()
        self.sidecars: Sequence[Sidecar] = ()
        self.seen: list[TrainBatch] = []
        self._loss = loss

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        raise NotImplementedError

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        return replace(batch, advantage=batch.reward)

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        return batch

    def loss(self, batch: TrainBatch, forward: Forward) -> LossReport:
        self.seen.append(batch)
        assert batch.advantage is not None
        advantage = batch.advantage if batch.advantage.ndim == 2 else batch.advantage[:, None]
        value = -(advantage * forward.logp * batch.mask).sum() / batch.denominators.tokens
        return LossReport(self._loss(value))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_importance_correction_weighs_advantages_up_to_its_cap(policy: PolicyModel, level: str) -> None:
    settings = OptimizerSettings.model_validate({"importance_correction": level, "importance_cap": 0.5})
    recorder = Recorder()
    Trainer(policy, recorder, settings).step(draw_groups(count=2))
    batch = recorder.seen[0]
    assert batch.logp_old is not None
    assert batch.logp_gen is not None
    assert batch.advantage is not None
    gap = (batch.logp_old - batch.logp_gen) * batch.mask
    gap = gap if level == "token" else gap.sum(dim=1, keepdim=True).expand_as(gap)
    expected = batch.reward[:, None] * gap.exp().clamp(max=0.5)
    torch.testing.assert_close(batch.advantage * batch.mask, expected * batch.mask)
    assert bool((gap.exp() > 0.5).any())
    assert bool((gap.exp() < 0.5).any())


@pytest.mark.parametrize("name", ["kimi", "disco", "online_dpo"])
def test_the_importance_correction_reaches_advantages_of_the_current_policy(folder: Path, name: str) -> None:
    groups = draw_groups(binary=True)

    def update(correction: str, budget: int) -> list[Tensor]:
        settings = OptimizerSettings.model_validate(
            {"importance_correction": correction, "micro_batch_tokens": budget, "max_grad_norm": None}
        )
        trainer = Trainer(load_policy(str(folder)), preset(name), settings)
        trainer.step(groups)
        return gradient(trainer)

    plain, whole, split = update("none", 2048), update("token", 2048), update("token", 25)
    scale = max(float(grad.abs().max()) for grad in whole)
    assert max(float((a - b).abs().max()) for a, b in zip(plain, whole, strict=True)) > 1e-2 * scale
    assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) <= 1e-6 * max(1.0, scale)


def test_a_loss_that_is_not_finite_stops_before_the_weights_move(policy: PolicyModel) -> None:
    before = weights(policy)
    trainer = Trainer(policy, Recorder(loss=lambda value: value * math.inf), OptimizerSettings(learning_rate=1.0))
    with pytest.raises(TrainingError, match=r"trainer: the loss is not finite at update 1; found -?(inf|nan)"):
        trainer.step(draw_groups())
    assert same(before, weights(policy))
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_reference_log_probs_are_those_of_the_policy_at_the_start(policy: PolicyModel) -> None:
    recorder = Recorder(Needs(logp_ref=True, logp_old=True))
    trainer = Trainer(policy, recorder, OptimizerSettings(learning_rate=1e-2))
    groups = draw_groups(count=1)
    for _ in range(2):
        trainer.step(groups)
    first, second = recorder.seen
    assert first.logp_ref is not None
    assert first.logp_old is not None
    assert second.logp_ref is not None
    assert second.logp_old is not None
    torch.testing.assert_close(first.logp_ref, first.logp_old)
    torch.testing.assert_close(second.logp_ref, first.logp_ref, atol=0, rtol=0)
    assert float((second.logp_old - second.logp_ref).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["implicit_ce", "kto"])
def test_a_remembered_reference_gives_the_same_losses_and_is_asked_once(folder: Path, name: str) -> None:
    draw = random.Random(5)
    shapes = [(draw.randrange(2, 6), draw.randrange(1, 8), index % 2 == 0) for index in range(12)]
    examples = [
        Example(
            ((tuple(draw.choices(range(3, 90), k=prompt)), tuple(draw.choices(range(3, 90), k=size))),),
            facts={"label": label},
        )
        for prompt, size, label in shapes
    ]
    examples[7] = replace(examples[7], sequences=examples[1].sequences)
    losses: dict[bool, list[float]] = {}
    asked = {False: 0, True: 0}
    for remembered in (False, True):
        objective: Any = assay_prms.plugin.objective(name) if name == "implicit_ce" else assay_optim.objective(name)
        trainer = Trainer(load_policy(str(folder)), None, OptimizerSettings(learning_rate=1e-2), objective=objective)
        assert trainer.reference is not None

        def count(*_: object, arm: bool = remembered) -> None:
            asked[arm] += 1

        trainer.reference.model.get_input_embeddings().register_forward_hook(count)
        losses[remembered] = []
        for _ in range(3):
            for batch in (examples[:5], examples[5:]):
                if remembered:
                    trainer.remember_reference(batch)
                losses[remembered].append(trainer.step_examples(batch).metrics["loss"])
    assert losses[True] == pytest.approx(losses[False], abs=1e-6)
    assert len(set(losses[True])) == 6, "the policy moved"
    if name == "implicit_ce":  # kto compares with responses of other prompts, too, which are scored as they come
        assert asked[False] - asked[True] == 4, "two batches, three times or once"


def test_a_moving_reference_follows_the_policy(policy: PolicyModel) -> None:
    recorder = Recorder(Needs(logp_ref=True, reference_every=1, reset_optimizer=True))
    trainer = Trainer(policy, recorder, OptimizerSettings(learning_rate=1e-2))
    for _ in range(2):
        trainer.step(draw_groups(count=1))
    second = recorder.seen[1]
    assert second.logp_ref is not None
    assert second.logp_old is not None
    torch.testing.assert_close(second.logp_ref, second.logp_old)
    assert trainer.reference_moved
    assert not trainer.adamw.state


def test_an_adapter_trains_alone_and_switched_off_it_is_the_reference(folder: Path) -> None:
    pytest.importorskip("peft")
    policy = load_policy(str(folder))
    base = weights(policy)
    recorder = Recorder(Needs(logp_ref=True))
    settings = OptimizerSettings(learning_rate=1e-2, lora=LoraSettings(rank=4))
    trainer = Trainer(policy, recorder, settings)
    groups = draw_groups(count=1)
    for _ in range(2):
        trainer.step(groups)
    assert trainer.reference is None
    first, second = recorder.seen
    assert first.logp_ref is not None
    assert second.logp_ref is not None
    assert second.logp_old is not None
    torch.testing.assert_close(second.logp_ref, first.logp_ref, atol=1e-6, rtol=0)
    assert float((second.logp_old - second.logp_ref).abs().max()) > 1e-3
    frozen = [p for name, p in policy.model.named_parameters() if "lora_" not in name]
    assert same(base, [parameter.detach() for parameter in frozen])


def test_critics_are_bound_trained_and_valued_before_the_update(policy: PolicyModel) -> None:
    trainer = Trainer(policy, preset("ppo"), OptimizerSettings(learning_rate=1e-3, sidecar_learning_rate=1e-2))
    before = [parameter.detach().clone() for parameter in trainer.sidecars[0].parameters()]
    report = trainer.step(draw_groups())
    assert "critic_loss" in report.metrics
    assert not same(before, [parameter.detach() for parameter in trainer.sidecars[0].parameters()])


class DrawnCritic:
    """A critic of its own whose first weights come out of torch's own generator."""

    name = "drawn"

    def bind(self, hidden_size: int) -> None:
        self.layer = torch.nn.Linear(hidden_size, 1)

    def parameters(self) -> list[Tensor]:
        return list(self.layer.parameters())

    def values(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden).squeeze(-1)

    def after_step(self, batch: TrainBatch, metrics: Any) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return self.layer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.layer.load_state_dict(state)


def test_first_weights_that_a_part_draws_are_decided_by_the_seed(folder: Path) -> None:
    def drawn(seed: int) -> list[Tensor]:
        optimizer = preset("reinforce")
        critic = DrawnCritic()
        optimizer.sidecars = (critic,)  # pyright: ignore[reportAttributeAccessIssue]
        Trainer(load_policy(str(folder)), optimizer, seed=seed)
        return critic.parameters()

    state = torch.get_rng_state()
    first = drawn(1)
    torch.rand(3)  # what else a process has drawn decides nothing
    assert same(first, drawn(1))
    assert not same(first, drawn(2))
    torch.set_rng_state(state)
    drawn(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_an_optimizer_needs_and_is_not_there_is_one_sentence(policy: PolicyModel) -> None:
    with pytest.raises(ConfigError, match="needs a critic"):
        Trainer(policy, Recorder(Needs(values=True)))
    with pytest.raises(ConfigError, match="a policy named 'dpo'; given: none"):
        Trainer(policy, Recorder(Needs(models=("dpo",))))
    silent = [
        group.model_copy(
            update={
                "rollouts": tuple(
                    rollout.model_copy(update={"turns": (Turn(text="x", token_ids=(3, 4)),)})
                    for rollout in group.rollouts
                )
            }
        )
        for group in draw_groups(count=1)
    ]
    with pytest.raises(TrainingError, match="needs the sampler's log-probs; these rollouts have none"):
        Trainer(policy, Recorder(Needs(logp_gen=True))).step(silent)


def test_a_narrow_policy_adds_up_steps_that_its_own_type_would_round_away(folder: Path) -> None:
    policy = load_policy(str(folder), dtype="bfloat16")
    trainer = Trainer(policy, preset("dr_grpo"), OptimizerSettings(learning_rate=1e-6))
    before, masters = weights(policy), [master.detach().clone() for master in trainer.masters.tensors]
    trainer.step(draw_groups())
    norms = [index for index, parameter in enumerate(before) if parameter.ndim == 1]
    assert all(torch.equal(before[index], weights(policy)[index]) for index in norms)
    assert not any(torch.equal(old, new) for old, new in zip(masters, trainer.masters.tensors, strict=True))


def test_gradients_are_clipped_to_the_norm(policy: PolicyModel) -> None:
    trainer = Trainer(policy, preset("dr_grpo"), OptimizerSettings(max_grad_norm=1e-3))
    report = trainer.step(draw_groups())
    assert report.metrics["grad_norm"] > 1e-3
    assert report.metrics["grad_clipped"] == 1
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in gradient(trainer)))
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_the_learning_rate_warms_up_and_falls_to_its_share() -> None:
    options = OptimizerSettings(schedule="linear", warmup_steps=2, total_steps=7, final_lr_share=0.2)
    shares = [learning_rate_share(options, step, None) for step in range(8)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    cosine = OptimizerSettings(schedule="cosine")
    assert [learning_rate_share(cosine, step, 5) for step in range(5)] == pytest.approx(
        [1.0, 0.5 + 0.25 * math.sqrt(2), 0.5, 0.5 - 0.25 * math.sqrt(2), 0.0]
    )
    assert learning_rate_share(cosine, 3, None) == 1.0


def test_the_optimizer_table_is_taken_apart() -> None:
    table = {"use": "grpo", "learning_rate": 1e-6, "trust_region": {"use": "clip"}}
    found = split_optimizer_table(table)
    assert (found.use, found.settings.learning_rate, found.options) == ("grpo", 1e-6, {"trust_region": {"use": "clip"}})
    with pytest.raises(ConfigError, match=r"optimizer\.use: no optimizer is named; found None"):
        split_optimizer_table({"learning_rate": 1e-6})
