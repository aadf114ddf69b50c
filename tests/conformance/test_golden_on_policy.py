"""The golden numbers of the on-policy methods, each from the table in golden/on_policy.toml."""

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from assay.contracts.tensors import Forward, TrainBatch
from assay.protocols import Estimator, GroupMoments, Ratios
from assay.testing.optimizer_suite import batch_of
from assay_optim import optimizer
from assay_optim.aggregation import LengthSoftmax, LengthSoftmaxOptions, build_length_softmax
from assay_optim.baselines import EmaOptions, LeaveOneOutPerSource, build_ema
from assay_optim.compose import Builder
from assay_optim.credit import discounted, generalised_advantage, token_rewards
from assay_optim.estimators import Disco, Kimi, Maclaurin, RectifiedOptions, build_rectified
from assay_optim.masked import group_moments
from assay_optim.options import PartSpec
from assay_optim.ratio import SequenceRatio
from assay_optim.regularisers import KLSample, LikelihoodTerm, SquaredHingeKL, kl_sample
from assay_optim.shaping import DpoTokenReward
from assay_optim.sidecars.scalars import AdaptiveKL
from assay_optim.trust_region import Clip, binary_divergence, topk_divergence

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "golden" / "on_policy.toml").read_text())["row"]
Numbers = Tensor | Sequence[Tensor] | float


def part(axis: str, spec: Mapping[str, Any]) -> Any:
    return Builder({}).one(axis, PartSpec(**spec), axis)


def padded(rows: Sequence[Sequence[float]]) -> tuple[Tensor, list[int]]:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows]), [len(row) for row in rows]


def kl(d: list[float], samples: list[KLSample]) -> Numbers:
    logp, mask = torch.tensor([d]), torch.ones(1, len(d))
    return [kl_sample(logp, torch.zeros_like(logp), mask, sample)[0] for sample in samples]


def _ratios(rho: list[float]) -> Ratios:
    logp = torch.tensor([rho]).log().requires_grad_()
    return Ratios(logp.exp(), logp, torch.zeros_like(logp), plain=False, clamped=torch.zeros_like(logp) > 0)


def weighted_advantage(part_: Mapping[str, Any], rho: list[float], advantage: list[float]) -> Numbers:
    ratios, batch = _ratios(rho), batch_of([0.0], [len(rho)])
    surrogate = part("trust_region", part_).surrogate(
        torch.tensor([advantage]), ratios, batch, Forward(ratios.logp, ratios.logp)
    )
    surrogate.value.sum().backward()
    assert ratios.logp.grad is not None
    declared = surrogate.weight * torch.tensor([advantage])
    assert torch.allclose(ratios.logp.grad, declared), "the gradient is not the declared weight x advantage"
    return ratios.logp.grad[0]


def token_loss(part_: Mapping[str, Any], rho: list[float], advantage: list[float]) -> Numbers:
    ratios, batch = _ratios(rho), batch_of([0.0], [len(rho)])
    region = part("trust_region", part_)
    return (
        -region.surrogate(torch.tensor([advantage]), ratios, batch, Forward(ratios.logp, ratios.logp)).value[0].detach()
    )


def aggregate(losses: list[list[float]], groups: list[int], max_tokens: int, parts: list[str]) -> Numbers:
    values, lengths = padded(losses)
    batch = batch_of([0.0] * len(losses), lengths, groups=groups, max_tokens=max_tokens)
    found = [(part("aggregation", {"use": name}).weights(batch) * batch.mask * values).sum() for name in parts]
    return torch.stack(found)


def ema(start: float, momentum: float, batches: list[list[float]]) -> Numbers:
    baseline = build_ema(EmaOptions(start=start, momentum=momentum))
    rows: list[Tensor] = []
    for rewards in batches:
        batch = batch_of(rewards, [1] * len(rewards))
        rows.append(baseline.centre(batch, group_moments(batch.reward, batch.group)).reward)
    return [*rows, torch.tensor([baseline.average.value])]


def gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> Numbers:
    ones = torch.ones(1, len(rewards))
    pair = generalised_advantage(torch.tensor([rewards]), torch.tensor([values]), ones, gamma=gamma, lam=lam)
    return [tensor[0] for tensor in pair]


def shape_tokens(part_: Mapping[str, Any], reward: float, k1: list[float]) -> Numbers:
    logp = torch.tensor([k1])
    batch = batch_of([reward], [len(k1)], logp_old=logp, logp_ref=torch.zeros_like(logp))
    shaped = part("shaper", part_).shape(batch)
    return token_rewards(shaped.reward, shaped)[0]


def adaptive_kl(beta: float, kl: float, target: float, rows: int, horizon: int) -> Numbers:
    controller = AdaptiveKL("kl", beta, target, horizon)
    controller.move(kl, rows)
    return controller.beta


def advantage(
    preset: str,
    rewards: list[float],
    options: Mapping[str, Any] | None = None,
    group_size: int | None = None,
    lengths: list[int] | None = None,
    kl: list[float] | None = None,
    token_reward: list[list[float]] | None = None,
    channels: Mapping[str, list[float]] | None = None,
) -> Numbers:
    batch = batch_of(rewards, lengths or [1] * len(rewards), group_size=group_size)
    zero = torch.zeros_like(batch.mask)
    old = zero if kl is None else torch.tensor(kl).unsqueeze(1)
    batch = replace(
        batch,
        logp_old=old,
        logp_ref=zero,
        token_reward=None if token_reward is None else torch.tensor(token_reward),
        channels={name: torch.tensor(values) for name, values in (channels or {}).items()},
    )
    found = optimizer(preset, **(options or {})).prepare(batch).advantage
    assert found is not None
    return found


def shape_rewards(part_: Mapping[str, Any], rewards: list[float], lengths: list[int]) -> Numbers:
    return part("shaper", part_).shape(batch_of(rewards, lengths)).reward


def sequence_surrogate(log_ratios: list[float], advantage: float, low: float, high: float) -> Numbers:
    logp = torch.tensor([log_ratios])
    batch = batch_of([0.0], [len(log_ratios)], logp_old=torch.zeros_like(logp))
    forward = Forward(logp, logp)
    ratios = SequenceRatio().ratios(batch, forward)
    value = Clip(low=low, high=high).surrogate(torch.full_like(logp, advantage), ratios, batch, forward).value
    return torch.stack([ratios.rho[0, 0], value[0, 0]])


def _length_softmax(lengths: list[int], exponent: float) -> tuple[LengthSoftmax, TrainBatch]:
    softmax = build_length_softmax(LengthSoftmaxOptions(start=exponent))
    return softmax, softmax.prepare(batch_of([0.0] * len(lengths), lengths))


def length_softmax(lengths: list[int], exponent: float) -> Numbers:
    softmax, batch = _length_softmax(lengths, exponent)
    return (softmax.weights(batch)[:, 0] * batch.denominators.tokens).detach()


def length_heights(lengths: list[int]) -> Numbers:
    return _length_softmax(lengths, 0.0)[1].extra["length_height"]


def length_scores(lengths: list[int]) -> Numbers:
    return (torch.as_tensor(length_heights(lengths)) - 1.0) * 9.0


def maclaurin_weights(order: int, rewards: list[float]) -> Numbers:
    found = Maclaurin(order=order).advantages(batch_of(rewards, [1] * len(rewards))).advantage
    assert found is not None
    return found / len(rewards)


def _expectation(estimator: Estimator, size: int, p: float) -> float:
    """E[mean A S] of a Bernoulli policy over all 2^N outcomes, S the score d log prob / dp."""
    total = 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=size):
        advantages = estimator.advantages(batch_of(outcome, [1] * size)).advantage
        assert advantages is not None
        wins = sum(outcome)
        scores = torch.tensor([1 / p if win else -1 / (1 - p) for win in outcome])
        total += p**wins * (1 - p) ** (size - wins) * float((advantages * scores).mean())
    return total


def maclaurin_expectation(size: int, p: float) -> Numbers:
    return torch.tensor([_expectation(Maclaurin(order=order), size, p) for order in range(1, size + 1)])


def maxrl_expectation(size: int, p: float) -> Numbers:
    both = [optimizer("maxrl", scale={"all_wrong": kind}).estimator for kind in ("zero", "push")]
    return torch.tensor([_expectation(estimator, size, p) for estimator in both])


def divergence(p: list[float], q: list[float]) -> Numbers:
    return [binary_divergence(torch.tensor(p), torch.tensor(q), kind) for kind in ("tv", "kl")]


def topk_divergence_(p: list[float], q: list[float]) -> Numbers:
    return torch.stack([topk_divergence(torch.tensor(p), torch.tensor(q), kind) for kind in ("tv", "kl")])


def disco(positives: list[float], negatives: list[float], tau: float) -> Numbers:
    rewards = [1.0] * len(positives) + [0.0] * len(negatives)
    logp = torch.tensor([*positives, *negatives]).unsqueeze(1)
    found = Disco(tau=tau).at_policy(batch_of(rewards, [1] * len(rewards)), logp, torch.ones_like(logp))
    assert found is not None
    return found


def disco_weights(positives: list[float], negatives: list[float], tau: float) -> Numbers:
    found = torch.as_tensor(disco(positives, negatives, tau))
    return -found[len(positives) :] / len(found)


def disco_value(positives: list[float], negatives: list[float], tau: float) -> Numbers:
    """J, whose gradient by each response's score is the advantage over the group's size."""
    good, bad = torch.tensor(positives).requires_grad_(), torch.tensor(negatives).requires_grad_()
    value = good.mean() - tau * ((bad / tau).logsumexp(0) - torch.tensor(len(negatives)).log())
    value.backward()  # pyright: ignore[reportUnknownMemberType] - torch's stub is partial
    assert good.grad is not None
    assert bad.grad is not None
    found = disco(positives, negatives, tau)
    assert isinstance(found, Tensor)
    assert torch.allclose(torch.cat([good.grad, bad.grad]), found / len(found), atol=1e-6)
    return value.detach()


def disco_b_value(positives: list[float], negatives: list[float]) -> Numbers:
    """J of DisCO-b as the sum of score times advantage over the group's size."""
    rewards, logp = [1.0] * len(positives) + [0.0] * len(negatives), [*positives, *negatives]
    found = Disco(hard_negatives=False).advantages(batch_of(rewards, [1] * len(rewards))).advantage
    assert found is not None
    return (found * torch.tensor(logp)).sum() / len(rewards)


def returns_to_go(rewards: list[list[float]]) -> Numbers:
    values, lengths = padded(rewards)
    return discounted(values, batch_of([0.0] * len(lengths), lengths).mask, 1.0)


def hinge(kl: float, beta: float, delta: float) -> Numbers:
    term = SquaredHingeKL(beta=beta, delta=delta)
    logp = torch.tensor([[-kl]]).requires_grad_()
    batch = term.rescore(batch_of([0.0], [1], logp_old=torch.zeros(1, 1)), logp)
    report = term.penalty(batch, Forward(logp, logp), torch.ones(1, 1))
    report.loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch's stub is partial
    assert logp.grad is not None
    return torch.stack([report.loss.detach(), -logp.grad[0, 0]])


def recolour(rts: list[float]) -> Numbers:
    batch = replace(batch_of([0.0] * len(rts), [1] * len(rts)), channels={"rts": torch.tensor(rts)})
    return part("shaper", {"use": "recolour"}).shape(batch).reward


def kimi(log_ratios: list[float], rewards: list[float], tau: float) -> Numbers:
    batch = batch_of(rewards, [1] * len(rewards), logp_ref=torch.zeros(len(rewards), 1))
    estimator = Kimi(tau=tau)
    logp = torch.tensor(log_ratios).unsqueeze(1)
    found = estimator.at_policy(estimator.advantages(batch), logp, torch.ones_like(logp))
    assert found is not None
    return found


def kimi_loss(log_ratios: list[float], rewards: list[float], tau: float) -> Numbers:
    found = kimi(log_ratios, rewards, tau)
    assert isinstance(found, Tensor)
    return found.square().mean()


def loss(
    preset: str,
    rewards: list[float],
    logp: list[list[float]],
    logp_gen: list[list[float]],
    group_size: int,
    options: Mapping[str, Any] | None = None,
) -> Numbers:
    current, lengths = padded(logp)
    batch = batch_of(rewards, lengths, group_size=group_size, logp_gen=padded(logp_gen)[0])
    ours = optimizer(preset, **(options or {}))
    return ours.loss(ours.prepare(batch), Forward(current, current)).loss


def likelihood(logp: list[list[float]], beta: float) -> Numbers:
    values, lengths = padded(logp)
    batch = batch_of([float("nan")] * len(lengths), lengths)
    batch = replace(batch, extra={"nll_mask": batch.mask}, mask=batch.mask * 0)
    term = LikelihoodTerm(beta=beta)
    return term.penalty(term.prepare(batch), Forward(values, values), batch.mask).loss


def rto(dpo_ratio: list[float], k1: list[float], reward: float) -> Numbers:
    old = torch.tensor([k1])
    batch = batch_of([reward], [len(k1)], logp_old=old, logp_ref=torch.zeros_like(old))
    shaped = DpoTokenReward().shape(replace(batch, extra={"logp_dpo": torch.tensor([dpo_ratio])}))
    return token_rewards(shaped.reward, shaped)[0]


def prime_rows(rows: list[list[float]], rewards: list[float]) -> Numbers:
    values, lengths = padded(rows)
    batch = batch_of(rewards, lengths, token_reward=values)
    unused = GroupMoments(*[torch.ones(len(rows))] * 3)
    found = LeaveOneOutPerSource().centre(batch, unused).token_reward
    assert found is not None
    return found


def rectified(rewards: list[float], costs: list[float], dual: float) -> Numbers:
    """With values of 0 and one token each the streams are the rewards themselves."""
    rows = len(rewards)
    batch = batch_of(rewards, [1] * rows, values=torch.zeros(rows, 1))
    batch = replace(batch, channels={"cost": torch.tensor(costs)}, extra={"values_cost_critic": torch.zeros(rows, 1)})
    estimator = build_rectified(RectifiedOptions(start=dual, normalise=False, rate=1.0))
    found = estimator.advantages(batch).advantage
    assert found is not None
    return torch.stack([found.mean(), torch.tensor(estimator.dual.value - dual)])


CHECKS: dict[str, Callable[..., Numbers]] = {
    check.__name__.rstrip("_"): check
    for check in (
        kl, weighted_advantage, token_loss, aggregate, ema, gae, shape_tokens, adaptive_kl, advantage, shape_rewards,
        sequence_surrogate, length_softmax, length_heights, length_scores, maclaurin_weights, maclaurin_expectation,
        maxrl_expectation, divergence, topk_divergence_, disco, disco_weights, disco_value, disco_b_value,
        returns_to_go, hinge, recolour, kimi, kimi_loss, loss, likelihood, rto, prime_rows, rectified,
    )
}  # fmt: skip


def as_tensors(numbers: Any) -> list[Tensor]:
    if isinstance(numbers, list | tuple):
        rows = cast("Sequence[Any]", numbers)
        if rows and isinstance(rows[0], list | tuple | Tensor):
            return [torch.as_tensor(row, dtype=torch.float64) for row in rows]
    if isinstance(numbers, Tensor) and numbers.dim() == 2:
        return [row.double() for row in numbers]
    return [torch.as_tensor(numbers, dtype=torch.float64)]


def name_of(row: dict[str, Any]) -> str:
    return f"{row['method']}:{row['check']}".replace(" ", "_")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_golden_number(row: dict[str, Any]) -> None:
    inputs = {("part_" if key == "part" else key): value for key, value in row["inputs"].items()}
    found, expected = as_tensors(CHECKS[row["check"]](**inputs)), as_tensors(row["expected"])
    assert len(found) == len(expected)
    for ours, wanted in zip(found, expected, strict=True):
        assert ours.shape == wanted.shape
        assert torch.allclose(ours.detach(), wanted, rtol=0.0, atol=row["tolerance"]), f"{ours} is not {wanted}"


def test_every_row_names_its_origin() -> None:
    assert all(row["origin"] and row["tolerance"] > 0 for row in ROWS)
