"""What must hold for any rewards: invariances of advantages, equal gradients at ratio 1, identities between methods."""

# pyright: reportUnknownMemberType=false
# (torch's stub leaves `backward` partial)

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.contracts.tensors import Forward, TrainBatch
from assay.testing.optimizer_suite import batch_of, loss_and_gradient, random_batch
from assay_optim import optimizer
from assay_optim.masked import count_denominators, group_table, over_groups

REWARDS = st.lists(st.integers(-40, 40).map(lambda number: number / 10), min_size=2, max_size=12)
BINARY = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=10)
FEW = settings(max_examples=12, deadline=None)


def advantages(preset: str, rewards: list[float], groups: list[int] | None = None, **options: object) -> Tensor:
    batch = batch_of(rewards, [2] * len(rewards), groups=groups)
    zero = torch.zeros_like(batch.mask)
    prepared = optimizer(preset, **options).prepare(replace(batch, logp_old=zero, logp_ref=zero))
    assert prepared.advantage is not None
    return prepared.advantage


@FEW
@given(REWARDS, st.integers(-30, 30))
@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rloo"])
def test_a_constant_on_all_rewards_of_a_group_changes_no_advantage(
    preset: str, rewards: list[float], constant: int
) -> None:
    moved = advantages(preset, [reward + constant for reward in rewards])
    assert torch.allclose(advantages(preset, rewards), moved, atol=2e-4)


@FEW
@given(REWARDS)
@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rloo", "dapo"])
def test_centred_advantages_sum_to_zero_per_group(preset: str, rewards: list[float]) -> None:
    groups = [index % 2 for index in range(len(rewards))]
    options: dict[str, list[str]] = {"shaping": []} if preset == "dapo" else {}
    found = advantages(preset, rewards, groups, **options)
    sums = over_groups(found, torch.tensor(groups))
    assert torch.allclose(sums, torch.zeros_like(sums), atol=1e-4)


@FEW
@given(REWARDS, st.randoms(use_true_random=False))
def test_permuting_rows_permutes_advantages(rewards: list[float], random: object) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - hypothesis types it as object
    groups = [index % 3 for index in range(len(rewards))]
    found = advantages("grpo", rewards, groups)
    shuffled = advantages("grpo", [rewards[index] for index in order], [groups[index] for index in order])
    assert torch.allclose(found[torch.tensor(order)], shuffled, atol=1e-6)


@FEW
@given(BINARY)
def test_the_advantage_of_dr_grpo_is_that_of_disco_b_times_p_one_minus_p(rewards: list[float]) -> None:
    p = sum(rewards) / len(rewards)
    disco = advantages("disco", rewards, estimator={"hard_negatives": False})
    assert torch.allclose(advantages("dr_grpo", rewards), p * (1 - p) * disco, atol=1e-5)


@FEW
@given(BINARY)
def test_grpo_weighs_a_question_by_the_root_of_p_one_minus_p(rewards: list[float]) -> None:
    """Mean |A| x deviation is p (1 - p) x 2: GRPO divides it by the root that Dr. GRPO keeps."""
    p = sum(rewards) / len(rewards)
    found = advantages("dr_grpo", rewards).abs().mean()
    assert float(found) == pytest.approx(2 * p * (1 - p), abs=1e-5)


@FEW
@given(st.integers(0, 1000))
def test_at_ratio_one_the_trust_regions_have_one_gradient(seed: int) -> None:
    """PPO, CISPO, DPPO and GSPO-token, with one aggregation."""
    gradients: list[Tensor] = []
    for preset in ("grpo", "cispo", "dppo", "dppo_kl", "gspo_token"):
        ours = optimizer(
            preset, scale="none", aggregation="seq_mean_token_mean", regularisers=[], shaping=[], batch_rules=[]
        )
        batch, current = random_batch(ours.needs, seed=seed)
        same = replace(batch, logp_old=current, logp_gen=current)
        gradients.append(loss_and_gradient(ours, ours.prepare(same), current)[1])
    assert all(torch.allclose(gradients[0], other, atol=1e-6) for other in gradients[1:])


@FEW
@given(st.integers(0, 1000))
def test_clipped_tokens_have_no_gradient_and_truncated_ones_keep_theirs(seed: int) -> None:
    clip, truncate = optimizer("dr_grpo"), optimizer("cispo", trust_region={"cap": 1.1}, scale="none", shaping=[])
    batch, current = random_batch(clip.needs, seed=seed)
    far = current + 0.8 * torch.randn(current.shape, generator=torch.Generator().manual_seed(seed))
    prepared = clip.prepare(batch)
    assert prepared.advantage is not None
    assert batch.logp_old is not None
    rho, advantage = (far - batch.logp_old).exp(), prepared.advantage.unsqueeze(1)
    cut = ((advantage > 0) & (rho > 1.2)) | ((advantage < 0) & (rho < 0.8))
    gradient = loss_and_gradient(clip, prepared, far)[1]
    assert not bool(gradient[cut].any())
    learning = (batch.mask > 0) & (advantage != 0)
    assert bool(gradient[learning & ~cut].all())
    assert bool(loss_and_gradient(truncate, truncate.prepare(batch), far)[1][learning].all())


def test_fresh_samples_make_off_policy_grpo_equal_to_grpo_bit_for_bit() -> None:
    on, off = optimizer("grpo"), optimizer("off_policy_grpo")
    batch, current = random_batch(on.needs, seed=5)
    fresh = replace(batch, logp_gen=batch.logp_old)
    one, other = (loss_and_gradient(ours, ours.prepare(fresh), current) for ours in (on, off))
    assert one[0] == other[0]
    assert torch.equal(one[1], other[1])
    stale = replace(batch, logp_gen=None if batch.logp_old is None else batch.logp_old - 0.1)
    prepared = off.prepare(stale)
    assert torch.equal(prepared.advantage, on.prepare(fresh).advantage)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - prepared
    assert not torch.equal(loss_and_gradient(off, prepared, current)[1], one[1])


def test_gspo_token_equals_gspo_where_the_advantage_is_one_per_response() -> None:
    one, other = optimizer("gspo"), optimizer("gspo_token")
    batch, current = random_batch(one.needs, seed=2)
    assert batch.logp_old is not None
    near = batch.logp_old + 1e-3 * (current - batch.logp_old)
    found = [loss_and_gradient(ours, ours.prepare(batch), near) for ours in (one, other)]
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-6)


@FEW
@given(st.lists(st.integers(0, 3), min_size=1, max_size=14))
def test_group_table_holds_each_group_once(groups: list[int]) -> None:
    values = torch.arange(len(groups), dtype=torch.float32)
    table = group_table(values, torch.tensor(groups), fill=-1.0)
    for row, group in enumerate(groups):
        members = sorted(float(index) for index, other in enumerate(groups) if other == group)
        assert sorted(float(value) for value in table[row] if value >= 0) == members


@FEW
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=10))
def test_denominators_are_counts(rows: list[tuple[int, int]]) -> None:
    lengths, groups = [length for length, _ in rows], [group for _, group in rows]
    batch: TrainBatch = batch_of([0.0] * len(rows), lengths, groups=groups)
    counts = count_denominators(batch.mask, batch.group, 9)
    assert counts.rows == sum(length > 0 for length in lengths)
    assert counts.tokens == sum(lengths)
    assert counts.groups == pytest.approx(len({group for length, group in rows if length > 0}))
    assert counts.group_tokens.tolist() == [sum(n for n, other in rows if other == group) for group in groups]


def test_online_dpo_has_the_gradient_of_dpo_on_the_best_and_the_worst() -> None:
    beta, smoothing = 0.3, 0.1
    ours = optimizer("online_dpo", estimator={"beta": beta, "smoothing": smoothing})
    batch = batch_of([0.2, 0.9, 0.1, 0.4, 0.8, 0.3], [3, 2, 4, 1, 3, 2], group_size=3)
    current = -torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0))
    reference = current + 0.3
    batch = replace(batch, logp_ref=reference)
    _, gradient = loss_and_gradient(ours, ours.prepare(batch), current)

    logp = current.clone().requires_grad_()
    ratio = ((logp - reference) * batch.mask).sum(1)
    h = torch.stack([ratio[1] - ratio[2], ratio[4] - ratio[5]])
    logsigmoid = torch.nn.functional.logsigmoid
    loss = -((1 - smoothing) * logsigmoid(beta * h) + smoothing * logsigmoid(-beta * h)).mean()
    loss.backward()
    assert logp.grad is not None
    assert torch.allclose(gradient, logp.grad, atol=1e-6)


def test_disco_has_the_gradient_of_its_objective() -> None:
    """J = mean_pos s - tau logmeanexp_neg(s / tau), s the mean log-prob, averaged over questions of equal size."""
    tau = 0.7
    ours = optimizer("disco", estimator={"tau": tau}, regularisers=[])
    batch = batch_of([1, 0, 0, 1, 1, 0], [3, 2, 4, 1, 3, 2], group_size=3)
    current = -torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(1))
    _, gradient = loss_and_gradient(ours, ours.prepare(batch), current)

    logp = current.clone().requires_grad_()
    s = (logp * batch.mask).sum(1) / batch.mask.sum(1)
    objectives = [
        s[[0]].mean() - tau * (torch.logsumexp(s[[1, 2]] / tau, 0) - torch.tensor(2.0).log()),
        s[[3, 4]].mean() - tau * torch.logsumexp(s[[5]] / tau, 0),
    ]
    (-torch.stack(objectives).mean()).backward()
    assert logp.grad is not None
    assert torch.allclose(gradient, logp.grad, atol=1e-6)


def test_kimi_has_the_gradient_of_its_squared_loss() -> None:
    tau = 0.5
    ours = optimizer("kimi", estimator={"tau": tau}, shaping=[])
    batch = batch_of([1, 0, 0, 1], [3, 2, 4, 1])
    current = -torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(1))
    batch = replace(
        batch, logp_ref=current + 0.1 * torch.randn(current.shape, generator=torch.Generator().manual_seed(2))
    )
    _, gradient = loss_and_gradient(ours, ours.prepare(batch), current)

    logp = current.clone().requires_grad_()
    distance = ((logp - batch.logp_ref) * batch.mask).sum(1)  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand]
    (batch.reward - batch.reward.mean() - tau * distance).square().mean().backward()
    assert logp.grad is not None
    assert torch.allclose(gradient, logp.grad / (2 * tau), atol=1e-6)


def test_a_slice_of_a_batch_dependent_loss_is_refused_until_it_was_rescored() -> None:
    ours = optimizer("disco")
    batch, current = random_batch(ours.needs)
    prepared, half = ours.prepare(batch), torch.arange(5)
    from assay.errors import TrainingError

    with pytest.raises(TrainingError, match="call `rescore` on the batch before it is split"):
        ours.loss(prepared.take(half), Forward(current[half], current[half]))
