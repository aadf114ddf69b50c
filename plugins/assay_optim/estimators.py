"""Advantage estimators that are not baseline x scale x credit; two of them depend on the current policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from assay.component import Options
from assay.protocols import Needs, Regulariser, Sidecar
from assay_optim.credit import generalised_advantage, token_rewards
from assay_optim.masked import (
    ZERO_STD,
    group_max,
    group_min,
    listed,
    needed,
    over_groups,
    row_means,
    row_sums,
    whole_rewards,
    with_extra,
    zero_where_masked,
)
from assay_optim.sidecars.scalars import Dual

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch


class Maclaurin(Options):
    """MaxRL's order-T expansion of the log-likelihood (arXiv 2602.02710, `maclaurin.py`); binary rewards.

    Success: w = 1/N. Failure: w = -(1/N) sum_{k=2..min(T, f)} C(f-1, k-1) / C(N-1, k-1), f the failures of the group.
    The weights belong to a sum over the group, so A = N w with the aggregation `seq_mean_token_sum`. A group that
    shrank to one is 0. For T <= N the expectation is exactly p' sum_{k=1..T} (1-p)^(k-1). check: r = [1,0,0,1,0,0,0,0]
    gives w = 0.125 and -0.089286 for T = 2, 0.125 and -0.208333 for T = 8.
    """

    order: int = Field(default=8, ge=1)
    """T; 1 is plain REINFORCE without a baseline."""
    correct: float = 1.0
    """Least reward of a success."""

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(logp_old=False, group_size_min=2)

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with `advantage` (N,)."""
        valid = batch.reward.isnan().logical_not()
        success = (batch.reward >= self.correct) & valid
        sizes = listed(over_groups(valid.double(), batch.group))
        wins = listed(over_groups(success.double(), batch.group))
        rows = zip(sizes, wins, listed(success), listed(valid), strict=True)
        numbers = [self._weight(round(n), round(k), win > 0) * n if ok and n > 1 else 0.0 for n, k, win, ok in rows]
        return replace(batch, advantage=batch.reward.new_tensor(numbers))

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """None."""
        return None

    def _weight(self, size: int, wins: int, win: bool) -> float:
        if win:
            return 1.0 / size
        return -maclaurin_failures(size, size - wins, self.order) / size


def maclaurin_failures(size: int, failures: int, order: int) -> float:
    """sum_{k=2..min(T, f)} C(f-1, k-1) / C(N-1, k-1); 0 for T = 1."""
    terms = (math.comb(failures - 1, k - 1) / math.comb(size - 1, k - 1) for k in range(2, min(order, failures) + 1))
    return sum(terms)


class Kimi(Options):
    """A_j = r_j - mean_g - tau sg(log pi(y_j) - log pi_i(y_j)) (Kimi k1.5, arXiv 2501.12599).

    pi_i is the policy at the start of the iteration: sampler, reference and optimizer restart together. The gradient is
    that of (r - mean - tau lr)^2 up to the factor -2 tau. Token rewards are summed into r first.
    check: lr = [0.1, -0.2, 0.05, 0], r = [1, 0, 1, 0], tau 0.5 gives 0.45, -0.4, 0.475, -0.5.
    """

    tau: float = Field(default=0.1, ge=0.0)
    """Strength of the pull to the iterate (not printed in the paper)."""
    iteration: int = Field(default=16, ge=1)
    """Updates per iteration, after which the reference moves."""

    @property
    def needs(self) -> Needs:
        """The iterate's log-probs; a reference that moves, with the optimizer's moments reset."""
        return Needs(
            logp_old=False,
            logp_ref=True,
            group_size_min=2,
            reference_every=self.iteration,
            reset_optimizer=True,
        )

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with r - mean_g (N,) as `advantage`, the part that does not depend on the policy."""
        given = whole_rewards(batch).reward
        valid = given.isnan().logical_not()
        reward = given.double().where(valid, 0.0)
        count = over_groups(valid.double(), batch.group).clamp(min=1)
        centred = (reward - over_groups(reward, batch.group) / count).where(valid, 0.0)
        centred = centred.to(given.dtype)
        return with_extra(replace(batch, advantage=centred), kimi_centred=centred)

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """(N,) with the pull of the current policy's distance; a row's own, so slices need no rescoring."""
        reference = needed(batch.logp_ref, "logp_ref", "kimi")
        distance = row_sums(logp - zero_where_masked(reference, batch.mask), batch.mask)
        return batch.extra["kimi_centred"] - self.tau * distance


class Disco(Options):
    """DisCO (arXiv 2505.12366): push positives up and negatives down, the worst negatives most.

    s = mean_t logp (`log_likelihood`, tau 10) or mean_t rho (`ratio`, tau 1). A = G / n_pos for positives, and
    -G softmax_neg(s / tau) for negatives (`hard_negatives` off: -G / n_neg, DisCO-b); 0 in one-sided groups, which
    still count in the average, where a group weighs by its responses. Use `seq_mean_token_mean`, no trust region, and
    the constraint `squared_hinge_kl`.
    """

    score: Literal["log_likelihood", "ratio"] = "log_likelihood"
    """What a response's score is."""
    tau: float | None = Field(default=None, gt=0.0)
    """Temperature over negatives; None for 10 (log-likelihood) or 1 (ratio)."""
    hard_negatives: bool = True
    """Off for DisCO-b."""
    positive: float = 1.0
    """Reward of a positive, exactly."""
    negative: float = 0.0
    """Reward of a negative, exactly."""

    @model_validator(mode="after")
    def _apart(self) -> Disco:
        if self.positive == self.negative:
            raise ValueError(f"positive and negative are the same reward, {self.positive:g}; give them different ones")
        return self

    @property
    def needs(self) -> Needs:
        """All scores of a group under the current policy."""
        return Needs(logp_old=self.score == "ratio", batch_logp=True, group_size_min=2)

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with those of DisCO-b (N,), which `rescore` replaces."""
        return replace(batch, advantage=self._weights(batch, batch.reward * 0.0))

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """(N,) for whole groups; None for DisCO-b."""
        if not self.hard_negatives:
            return None
        scores = row_means(logp if self.score == "log_likelihood" else ratio, batch.mask)
        tau = self.tau if self.tau is not None else (10.0 if self.score == "log_likelihood" else 1.0)
        return self._weights(batch, scores / tau)

    def _weights(self, batch: TrainBatch, scores: Tensor) -> Tensor:
        there = batch.mask.sum(dim=1) > 0
        positive = (batch.reward == self.positive) & there
        negative = (batch.reward == self.negative) & there
        size = over_groups(there.to(scores.dtype), batch.group)
        n_positive = over_groups(positive.to(scores.dtype), batch.group)
        n_negative = over_groups(negative.to(scores.dtype), batch.group)
        top = group_max(scores.double().where(negative, -math.inf), batch.group)
        powers = (scores.double() - top.where(top > -math.inf, 0.0)).exp().where(negative, 0.0)
        total = over_groups(powers, batch.group)
        share = (powers / total.where(total > 0, 1.0)).to(scores.dtype)
        weights = (size / n_positive.clamp(min=1)).where(positive, 0.0) - size * share
        return weights.where((n_positive > 0) & (n_negative > 0), 0.0)


class BestWorst(Options):
    """Online DPO (arXiv 2402.04792, 2405.07863) as advantages: the best and the worst response of a group are a pair.

    A = +- n_g b (sigma(-b h) - e) with h = (log pi/ref)(best) - (log pi/ref)(worst), n_g the group's size: the gradient
    of DPO's mean over groups (each by its share of the responses, where groups are ragged), with the aggregation
    `seq_mean_token_sum` and no ratio. Token rewards are summed into the reward first; equal rewards give no pair.
    """

    beta: float = Field(default=0.1, gt=0.0)
    """b."""
    smoothing: float = Field(default=0.1, ge=0.0, lt=0.5)
    """e: label smoothing (RLHFlow's script 0.1)."""
    iteration: int = Field(default=0, ge=0)
    """Updates after which the reference moves to the current policy; 0 keeps it."""

    @property
    def needs(self) -> Needs:
        """The reference, and all log-probs of a group under the current policy."""
        return Needs(logp_old=False, logp_ref=True, batch_logp=True, group_size_min=2, reference_every=self.iteration)

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with those at h = 0 (N,), which `rescore` replaces."""
        batch = whole_rewards(batch)
        return replace(batch, advantage=self._weights(batch, batch.reward.nan_to_num(nan=0.0) * 0.0))

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """(N,) for whole groups."""
        reference = needed(batch.logp_ref, "logp_ref", "best_worst")
        return self._weights(batch, row_sums(logp - zero_where_masked(reference, batch.mask), batch.mask))

    def _weights(self, batch: TrainBatch, log_ratio: Tensor) -> Tensor:
        there = (batch.mask.sum(dim=1) > 0) & batch.reward.isnan().logical_not()
        reward = batch.reward.where(there, 0.0)
        best = _first_of(reward, batch.group, there)
        worst = _first_of(-reward, batch.group, there)
        sign = best.to(reward.dtype) - worst.to(reward.dtype)
        spread = over_groups(sign * reward, batch.group)
        h = over_groups(sign * log_ratio, batch.group)
        size = over_groups(there.to(h.dtype), batch.group)
        # With smoothing e the slope is (1 - e) sigma(-b h) - e sigma(b h) = sigma(-b h) - e.
        pull = size * self.beta * ((-self.beta * h).sigmoid() - self.smoothing)
        return (sign * pull).where(spread > ZERO_STD, 0.0)


def _first_of(values: Tensor, group: Tensor, there: Tensor) -> Tensor:
    """(N,) bool: the first row that is there of each group that has its largest value."""
    order = values.new_ones(len(values)).cumsum(0)
    top = (values == group_max(values.where(there, -math.inf), group)) & there
    return top & (order == group_min(order.where(top, math.inf), group))


class RectifiedOptions(Options):
    """RePO (rectified, arXiv 2410.19933): reward under a cost limit that holds for every prompt."""

    channel: str = "cost"
    """Name of the reward channel that holds the cost; below 0 is safe."""
    start: float = Field(default=1.0, ge=0.0)
    """lambda at the start."""
    rate: float = Field(default=0.05, ge=0.0)
    """Step of the ascent on lambda (not confirmed)."""
    ceiling: float = Field(default=100.0, gt=0.0)
    """Largest lambda (not confirmed)."""
    normalise: bool = True
    """Divide by 1 + lambda, safe-rlhf's habit (not confirmed for RePO)."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount of both streams."""
    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    """GAE's lambda of both streams."""
    coefficient: float = Field(default=0.1, ge=0.0)
    """Weight of each critic's loss."""
    clip: float | None = Field(default=0.2, gt=0.0)
    """Range of both value losses."""
    hidden: int = Field(default=128, ge=0)
    """Width of both critics' hidden layer."""
    learning_rate: float | None = Field(default=1e-3, gt=0.0)
    """Learning rate of both critics; None for that of the policy."""

    @property
    def needs(self) -> Needs:
        """Two critics and the cost."""
        return Needs(logp_old=False, values=True, channels=(self.channel,))


@dataclass
class Rectified:
    """A = (A_R - lambda A_C+) / (1 + lambda) from two GAE streams, C+ = max(cost, 0); lambda rises by E[C+].

    check: R = [1, 0.5, 0.2], C = [0.3, -0.2, 0.1], lambda 0.7: mean R - lambda C+ = 0.473333, mean C+ 0.133333.
    """

    options: RectifiedOptions
    critics: tuple[Sidecar, Sidecar]
    dual: Dual
    losses: tuple[Regulariser, Regulariser]

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """Both critics and lambda."""
        return (*self.critics, self.dual)

    @property
    def regularisers(self) -> tuple[Regulariser, ...]:
        """Both value losses."""
        return self.losses

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with `advantage` (N, T), and the targets of both critics."""
        options = self.options
        cost = needed(batch.channels.get(options.channel), f"the reward channel {options.channel!r}", "rectified")
        rectified = cost.clamp(min=0.0)
        values = needed(batch.values, "values", "rectified")
        cost_values = needed(batch.extra.get("values_cost_critic"), "values of 'cost_critic'", "rectified")
        plain = replace(batch, token_reward=None)
        gain, returns = generalised_advantage(
            token_rewards(batch.reward, batch), values, batch.mask, gamma=options.gamma, lam=options.lam
        )
        harm, cost_returns = generalised_advantage(
            token_rewards(rectified, plain), cost_values, batch.mask, gamma=options.gamma, lam=options.lam
        )
        finite = rectified[rectified.isnan().logical_not()]
        weight = self.dual.use_then_move(float(finite.mean()) if len(finite) else 0.0)
        mixed = (gain - weight * harm) / (1 + weight if options.normalise else 1.0)
        filled = replace(batch, advantage=zero_where_masked(mixed, batch.mask), returns=returns)
        return with_extra(filled, returns_cost_critic=cost_returns)

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """None."""
        return None


def build_rectified(options: RectifiedOptions) -> Rectified:
    """The estimator with fresh critics and lambda."""
    from assay_optim.regularisers import ValueLoss
    from assay_optim.sidecars.critic import ValueHead

    names = ("critic", "cost_critic")
    heads = [
        ValueHead(name, options.hidden, learning_rate=options.learning_rate, seed=seed)
        for seed, name in enumerate(names)
    ]
    losses = [ValueLoss(coefficient=options.coefficient, clip=options.clip, critic=name) for name in names]
    return Rectified(
        options,
        (heads[0], heads[1]),
        Dual("dual", options.start, options.rate, options.ceiling),
        (losses[0], losses[1]),
    )
