"""The edge cases on which libraries disagree: one decision each, pinned here."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# (torch's stub leaves `tolist` and `backward` partial)

import logging
from dataclasses import replace

import pytest
import torch

from assay.contracts.tensors import Forward, TrainBatch
from assay.errors import TrainingError
from assay.testing.optimizer_suite import batch_of, loss_and_gradient
from assay_optim import optimizer
from assay_optim.baselines import EmaOptions, build_ema
from assay_optim.credit import generalised_advantage
from assay_optim.masked import group_moments
from assay_optim.optimizer import Composition
from assay_optim.regularisers import kl_sample
from assay_optim.sidecars.critic import ValueHead

NAN = float("nan")
TOKENS: dict[str, list[str]] = {"shaping": [], "regularisers": []}


def advantage(ours: Composition, rewards: list[float], lengths: list[int] | None = None, **more: object) -> list[float]:
    batch = batch_of(rewards, lengths or [1] * len(rewards), **more)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - pass-through
    found = ours.prepare(batch).advantage
    assert found is not None
    return [float(value) for value in found]


def advantage_of(ours: Composition, batch: TrainBatch) -> list[float]:
    found = ours.prepare(batch).advantage
    assert found is not None
    return [float(value) for value in found]


def test_a_group_that_shrank_to_one_gets_zero_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("grpo", "dr_grpo", "rloo", "maxrl", "maxrl_t"):
        caplog.clear()
        ours = optimizer(name, **TOKENS)
        with caplog.at_level(logging.WARNING, logger="assay"):
            for _ in range(2):
                found = advantage(ours, [1.0, 1.0, 0.0], groups=[0, 1, 1])
                assert found[0] == 0
        assert len(caplog.records) == 1
        assert ours.needs.group_size_min == 2


def test_one_response_against_the_mean_of_its_batch_gets_zero_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    ours = optimizer("reinforce_batch_mean")
    with caplog.at_level(logging.WARNING, logger="assay"):
        assert [advantage(ours, [2.0, NAN]) for _ in range(2)] == [[0.0, 0.0]] * 2
    assert [record.message for record in caplog.records] == [
        "optimizer.baseline 'batch_mean': a batch has one scored response; its advantage is 0"
    ]


def test_maxrl_warns_once_about_rewards_between_zero_and_one(caplog: pytest.LogCaptureFixture) -> None:
    ours = optimizer("maxrl")
    with caplog.at_level(logging.WARNING, logger="assay"):
        advantage(ours, [1.0, 0.0, NAN, 0.0])
        assert not caplog.records
        for _ in range(2):
            assert advantage(ours, [0.75, 0.25]) == pytest.approx([0.5, -0.5], abs=1e-5)
    assert len(caplog.records) == 1
    assert "made for rewards of 0 and 1" in caplog.records[0].message


def test_the_length_reward_pays_nothing_to_an_empty_response() -> None:
    ours = optimizer("kimi", shaping=["length_reward"])
    shaped = ours.prepare(batch_of([1, 1, 0, 1], [0, 10, 12, 20])).reward
    assert shaped.tolist() == pytest.approx([1, 1.5, 0, 0.5])


def test_rewards_of_tokens_reach_estimators_that_take_a_response_as_one_action() -> None:
    batch = batch_of([1, 0, 0], [2, 2, 2], token_reward=torch.tensor([[0.0, 0.0], [0.5, 0.25], [-1.0, 0.0]]))
    batch = replace(batch, logp_ref=torch.zeros(3, 2))
    assert advantage_of(optimizer("kimi", shaping=[]), batch) == pytest.approx([0.75, 0.5, -1.25])
    worst = advantage_of(optimizer("online_dpo"), batch)
    assert worst[0] > 0 == worst[1] > worst[2]


def test_equal_rewards_give_exactly_zero_and_count_as_zero_variance() -> None:
    for rewards in ([0.3] * 4, [0.1 + 0.2, 0.3, 0.3, 0.3]):
        for name in ("grpo", "dr_grpo", "rloo", "dapo"):
            batch = batch_of(rewards, [1] * 4)
            prepared = optimizer(name, **TOKENS).prepare(batch)
            assert prepared.advantage is not None
            assert prepared.advantage.tolist() == [0, 0, 0, 0]
            assert prepared.metrics["zero_variance_share"] == 1


def test_one_sided_groups_by_method() -> None:
    right, wrong = [1.0] * 4, [0.0] * 4
    zero = [0.0] * 4
    assert advantage(optimizer("grpo", **TOKENS), right) == advantage(optimizer("grpo", **TOKENS), wrong) == zero
    assert advantage(optimizer("maxrl"), wrong) == advantage(optimizer("maxrl"), right) == zero
    assert advantage(optimizer("ngrpo"), right) == zero
    assert all(value < 0 for value in advantage(optimizer("ngrpo"), wrong))
    assert advantage(optimizer("disco", regularisers=[]), right) == zero
    whitened = optimizer("reinforce_pp_baseline", regularisers=[]).prepare(
        batch_of([1, 1, 1, 0], [1, 1, 1, 2], group_size=2)
    )
    assert whitened.advantage is not None
    assert float(whitened.advantage[0, 0]) != 0  # token whitening re-centres an all-correct group


def test_a_batch_without_signal_has_a_zero_loss_with_a_graph() -> None:
    ours = optimizer("dapo", shaping=[])
    loss, gradient = loss_and_gradient(ours, ours.prepare(batch_of([1, 1, NAN, NAN], [2, 3, 1, 2])), torch.zeros(4, 3))
    assert loss == 0
    assert not gradient.any()


def test_truncated_responses_have_four_treatments() -> None:
    batch = batch_of([1, 0, 1, 0], [2, 2, 2, 2], truncated=[True, False, False, False])
    kept = optimizer("dr_grpo").prepare(batch)
    masked = optimizer("dr_grpo", batch_rules=["mask_truncated"]).prepare(batch)
    without = optimizer("dr_grpo", batch_rules=[{"use": "mask_truncated", "stats": "leave_out"}]).prepare(batch)
    punished = optimizer("dr_grpo", shaping=[{"use": "eos_penalty", "value": -1.0}]).prepare(batch)
    assert kept.denominators.rows == 4
    assert masked.denominators.rows == without.denominators.rows == 3
    assert kept.advantage.tolist() == masked.advantage.tolist() == [0.5, -0.5, 0.5, -0.5]  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    assert without.advantage.tolist() == pytest.approx([0, -1 / 3, 2 / 3, -1 / 3])  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    assert punished.advantage.tolist() == [-1, 0, 1, 0]  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


def test_an_empty_response_is_in_no_mean_and_its_reward_in_the_statistics() -> None:
    ours = optimizer("grpo", scale="none", regularisers=[])
    batch = batch_of([1, 0, 0], [0, 2, 2])
    prepared = ours.prepare(batch)
    assert prepared.denominators.rows == 2
    assert prepared.advantage is not None
    assert prepared.advantage.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    loss, gradient = loss_and_gradient(ours, prepared, torch.zeros(3, 2))
    assert loss == pytest.approx(1 / 3)
    assert not gradient[0].any()


def test_a_masked_reward_is_left_out_of_everything() -> None:
    ours = optimizer("dr_grpo")
    prepared = ours.prepare(batch_of([1, 0, NAN], [2, 2, 2]))
    assert prepared.advantage is not None
    assert prepared.advantage.tolist() == [0.5, -0.5, 0]
    assert prepared.denominators.rows == 2
    assert prepared.metrics["masked_rows"] == 1


def test_an_overflowing_ratio_is_clamped_and_counted() -> None:
    ours = optimizer("cispo", shaping=[])
    batch = replace(batch_of([1, 0], [1, 1]), logp_old=torch.tensor([[-90.0], [-1.0]]))
    forward = Forward(torch.tensor([[-1.0], [-1.0]]), torch.zeros(2, 1))
    report = ours.loss(ours.prepare(batch), forward)
    assert report.metrics["ratio_clamped"] == 1
    assert torch.isfinite(report.loss)


def test_a_probability_of_zero_is_floored_in_the_kl_only() -> None:
    logp, mask = torch.tensor([[-torch.inf, -1.0]]), torch.ones(1, 2)
    for sample in ("k1", "k2", "k3"):
        assert kl_sample(logp, torch.tensor([[-2.0, -1.0]]), mask, sample).isfinite().all()
    assert float(kl_sample(logp, torch.tensor([[-2.0, -1.0]]), mask, "k1")[0, 0]) == -98


def test_certain_tokens_do_not_break_the_divergence() -> None:
    ours = optimizer("dppo_kl")
    batch = replace(batch_of([1, 0], [1, 1]), logp_gen=torch.tensor([[0.0], [-1e-9]]))
    loss, gradient = loss_and_gradient(ours, ours.prepare(batch), torch.tensor([[-1e-9], [0.0]]))
    assert loss == loss
    assert gradient.isfinite().all()


def test_tool_tokens_are_carried_across_unchanged() -> None:
    """A masked token between two own ones leaves advantages and values as if it were not there."""
    rewards, values = torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([[0.5, 7.0, 0.4]])
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    found = generalised_advantage(rewards, values, mask, gamma=1.0, lam=0.95)
    short = generalised_advantage(rewards[:, [0, 2]], values[:, [0, 2]], mask[:, [0, 2]], gamma=1.0, lam=0.95)
    assert torch.equal(found[0][:, [0, 2]], short[0])
    assert found[0][0, 1] == found[1][0, 1] == 0


def test_ragged_groups_go_by_id() -> None:
    rewards, groups = [1.0, 0.0, 1.0, 0.0, 0.0], [7, 3, 3, 7, 3]
    assert advantage(optimizer("dr_grpo"), rewards, groups=groups) == pytest.approx([0.5, -1 / 3, 2 / 3, -0.5, -1 / 3])


def test_the_first_batch_sets_the_moving_baseline_unless_a_start_is_given() -> None:
    batch = batch_of([1, 0], [1, 1])
    moments = group_moments(batch.reward, batch.group)
    assert build_ema(EmaOptions()).centre(batch, moments).reward.tolist() == [0.5, -0.5]
    assert build_ema(EmaOptions(start=0.0)).centre(batch, moments).reward.tolist() == [1, 0]


def test_a_negative_mean_reward_is_refused_where_it_divides() -> None:
    with pytest.raises(TrainingError, match="rewards must not be negative; found -1;"):
        advantage(optimizer("maxrl"), [-1.0, 0.0])


def test_what_the_trainer_did_not_fill_is_named() -> None:
    with pytest.raises(TrainingError, match="part 'gae': it needs values and the batch has none"):
        optimizer("ppo", shaping=[]).prepare(batch_of([1, 0], [1, 1]))
    with pytest.raises(TrainingError, match="no advantages; call `prepare` on it first"):
        optimizer("dr_grpo").loss(batch_of([1, 0], [1, 1]), Forward(torch.zeros(2, 1), torch.zeros(2, 1)))


def test_a_critic_starts_at_zero_and_leaves_the_policy_alone() -> None:
    head = ValueHead("critic", 8)
    with pytest.raises(TrainingError, match="call `bind"):
        head.parameters()
    head.bind(4)
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    assert not head.values(hidden).any()
    head.values(hidden).sum().backward()
    assert hidden.grad is None
    shared = ValueHead("critic", 0, shared=True)
    shared.bind(4)
    assert shared.values(hidden).requires_grad


def test_texts_set_apart_are_no_members_of_their_group() -> None:
    ours = optimizer("expo", regularisers=[{"use": "nll_term", "beta": 0.5}])
    batch = replace(batch_of([1, 0, 0], [1, 1, 2]), channels={"nll": torch.tensor([0.0, 0.0, 1.0])})
    prepared = ours.prepare(batch)
    assert prepared.denominators.rows == 2
    assert prepared.advantage is not None
    assert prepared.advantage.tolist()[2] == 0
    _, gradient = loss_and_gradient(ours, prepared, torch.zeros(3, 2))
    assert gradient[2].tolist() == [-0.25, -0.25]
