"""Reward shapers: what happens to rewards before any statistic is taken. NaN rewards stay NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from assay.component import Options
from assay.protocols import Needs, Sidecar
from assay_optim.credit import discounted
from assay_optim.masked import (
    group_max,
    group_min,
    needed,
    policy_logp,
    zero_where_masked,
)
from assay_optim.regularisers import AdaptiveOptions, kl_sample
from assay_optim.sidecars.scalars import AdaptiveKL, Counter

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch


class Overlong(Options):
    """Soft overlong penalty (DAPO, arXiv 2503.14476): 0 up to L - c tokens, linear to -factor at L.

    check: L 20480, c 4096, lengths 16384, 16385, 18432, 20480, 20481 give 0, -0.000244, -0.5, -1, -1. verl has no
    floor beyond L.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    """L; None for the length limit of a response."""
    cache_tokens: int | None = Field(default=None, ge=1)
    """c; None for a fifth of L, as in the paper (4096 of 20480)."""
    factor: float = Field(default=1.0, ge=0.0)
    """Largest penalty."""

    @model_validator(mode="after")
    def _inside(self) -> Overlong:
        if self.max_tokens is not None and self.cache_tokens is not None and self.cache_tokens > self.max_tokens:
            raise ValueError(f"cache_tokens is above max_tokens: {self.cache_tokens} of {self.max_tokens}")
        return self

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """Penalties added to the reward."""
        limit = self.max_tokens if self.max_tokens is not None else batch.denominators.max_tokens
        cache = self.cache_tokens if self.cache_tokens is not None else max(limit // 5, 1)
        over = (limit - cache - batch.mask.sum(dim=1)) / cache
        return replace(batch, reward=batch.reward + self.factor * over.clamp(-1.0, 0.0))


class KLRewardOptions(Options):
    """A KL penalty inside the reward."""

    beta: float = Field(default=0.05, ge=0.0)
    """Weight."""
    adaptive: AdaptiveOptions | None = None
    """Let beta follow a target; None keeps it."""

    @property
    def needs(self) -> Needs:
        """Reference and old log-probs in `prepare`, unless beta is 0 for good."""
        wanted = self.beta > 0
        return Needs(logp_old=wanted, logp_ref=wanted, old_in_prepare=wanted)


@dataclass
class KLReward:
    """r_t <- r_t - beta k1_t, k1 = logp - logp_ref under the policy before the update (PPO, RLOO, REINFORCE++).

    With the credit `broadcast` the penalties are summed into the response's reward. check: beta 0.05,
    k1 = [0.1, -0.05, 0.2], r = 1 gives [-0.005, 0.0025, 0.99].
    """

    beta: float
    controller: AdaptiveKL | None = None

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """The controller, where there is one."""
        return () if self.controller is None else (self.controller,)

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """The penalties added to the token rewards."""
        beta = self.beta if self.controller is None else self.controller.beta
        if beta == 0:
            return batch
        reference = needed(batch.logp_ref, "logp_ref", "kl_in_reward")
        return _add_tokens(batch, -beta * kl_sample(policy_logp(batch, "kl_in_reward"), reference, batch.mask, "k1"))


def build_kl_reward(options: KLRewardOptions) -> KLReward:
    """The penalty, with a fresh controller where asked for."""
    adaptive = options.adaptive
    controller = AdaptiveKL("kl_in_reward", options.beta, adaptive.target, adaptive.horizon) if adaptive else None
    return KLReward(options.beta, controller)


class RewardClip(Options):
    """r <- clip(r, low, high) (RTO clamps its reward model to +-10)."""

    low: float = -10.0
    """Least reward."""
    high: float = 10.0
    """Largest reward."""

    @model_validator(mode="after")
    def _ordered(self) -> RewardClip:
        if self.high < self.low:
            raise ValueError(f"high is below low: {self.low:g}..{self.high:g}")
        return self

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """Clipped rewards."""
        return replace(batch, reward=batch.reward.clamp(self.low, self.high))


class EosPenalty(Options):
    """What a response that did not end by itself gets (Tulu 3, arXiv 2411.15124: -10 instead of its score)."""

    value: float = -10.0
    """The number."""
    mode: Literal["replace", "add"] = "replace"
    """Instead of the reward, or added to it."""

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """Rewards of truncated rows changed."""
        other = batch.reward * 0.0 + self.value if self.mode == "replace" else batch.reward + self.value
        return replace(batch, reward=other.where(batch.truncated, batch.reward))


class LengthRewardOptions(Options):
    """Kimi k1.5's length reward (arXiv 2501.12599)."""

    weight: float = Field(default=1.0, ge=0.0)
    """Its weight."""
    correct: float = 1.0
    """Least reward of a correct response."""
    warmup_batches: int = Field(default=0, ge=0)
    """Batches without it at the start: the paper trains without it first, and it hurts a policy that is rarely right
    (how long is not printed)."""


@dataclass
class LengthReward:
    """lam = 0.5 - (len - min_g) / (max_g - min_g); added: lam if correct, min(0, lam) if wrong; 0 for equal lengths.

    Empty responses get nothing. check: correct responses of 100, 200, 300 tokens get 0.5, 0, -0.5.
    """

    options: LengthRewardOptions
    counter: Counter

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """How many batches were seen."""
        return (self.counter,)

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """Rewards with the bonus, once the warm-up is over."""
        self.counter.count += 1
        if self.counter.count <= self.options.warmup_batches:
            return batch
        lengths = batch.mask.sum(dim=1)
        there = (lengths > 0) & batch.reward.isnan().logical_not()
        low = group_min(lengths.where(there, math.inf), batch.group)
        high = group_max(lengths.where(there, -math.inf), batch.group)
        lam = (0.5 - (lengths - low) / (high - low).clamp(min=1)).where(there & (high > low), 0.0)
        bonus = lam.where(batch.reward >= self.options.correct, lam.clamp(max=0.0))
        return replace(batch, reward=batch.reward + self.options.weight * bonus)


def build_length_reward(options: LengthRewardOptions) -> LengthReward:
    """The length reward with its counter at 0."""
    return LengthReward(options, Counter("length_reward"))


class Recolour(Options):
    """A wrong response gets sigma(b (RTS - g)) < 1, RTS its share of correct steps (SGPO, arXiv 2505.11595).

    Counted are the steps before the first wrong one. RTS comes in a reward channel from a judge that finds that step;
    where it finds none in a wrong answer of n steps, RTS is (n - 1) / n; without steps 0. One account prints the
    decreasing form; this one increases.
    check: RTS 0, 0.25, 0.5, 0.75 give 0.075858, 0.2227, 0.5, 0.777299.
    """

    b: float = Field(default=5.0, gt=0.0)
    """Steepness (not confirmed)."""
    g: float = 0.5
    """Middle (not confirmed)."""
    channel: str = "rts"
    """Name of the channel."""
    correct: float = 1.0
    """Least reward of a correct response, which keeps it."""

    @property
    def needs(self) -> Needs:
        """The channel."""
        return Needs(logp_old=False, channels=(self.channel,))

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """Wrong rewards replaced where the channel has a number."""
        share = needed(batch.channels.get(self.channel), f"the reward channel {self.channel!r}", "recolour")
        coloured = (self.b * (share - self.g)).sigmoid()
        wrong = (batch.reward < self.correct) & share.isnan().logical_not()
        return replace(batch, reward=coloured.where(wrong, batch.reward))


class DpoTokenReward(Options):
    """r_t <- clip(b1 log(pi_dpo / pi_ref), +-clip) - b2 log(pi / pi_ref) (RTO, arXiv 2404.18922).

    pi_dpo is a frozen model that was trained by DPO. check: DPO log-ratios [0.5, 2, -1.5], k1 [0.1, 0.2, -0.1] and a
    reward of 0.7 at the end give 0.024, 0.048, 0.651.
    """

    b1: float = Field(default=0.05, ge=0.0)
    """Weight of the DPO model's log-ratio."""
    b2: float = Field(default=0.01, ge=0.0)
    """Weight of the KL penalty."""
    clip: float = Field(default=0.05, gt=0.0)
    """Largest DPO reward of a token."""

    @property
    def needs(self) -> Needs:
        """Log-probs of the policy, the reference and the model `dpo`."""
        return Needs(logp_ref=True, old_in_prepare=True, models=("dpo",))

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """The rewards added to the token rewards."""
        dpo = needed(batch.extra.get("logp_dpo"), "log-probs of the model 'dpo'", "dpo_token_reward")
        reference = needed(batch.logp_ref, "logp_ref", "dpo_token_reward")
        bonus = (self.b1 * kl_sample(dpo, reference, batch.mask, "k1")).clamp(-self.clip, self.clip)
        drift = kl_sample(policy_logp(batch, "dpo_token_reward"), reference, batch.mask, "k1")
        return _add_tokens(batch, bonus - self.b2 * drift)


class ProcessReward(Options):
    """Token rewards of a process reward model times `coefficient` (PRIME, arXiv 2502.01456: 5).

    With `normalise` they are first divided by the batch's largest |reverse cumulative sum| + 1e-6.
    """

    coefficient: float = 5.0
    """Weight."""
    normalise: bool = False
    """Whether to bring them to a common size first."""

    @property
    def needs(self) -> Needs:
        """Token rewards."""
        return Needs(logp_old=False, token_reward=True)

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """Weighted token rewards."""
        process = zero_where_masked(needed(batch.token_reward, "token_reward", "process_reward"), batch.mask)
        if self.normalise:
            process = process / (discounted(process, batch.mask, 1.0).abs().max() + 1e-6)
        return replace(batch, token_reward=self.coefficient * process)


def _add_tokens(batch: TrainBatch, rewards: Tensor) -> TrainBatch:
    before = 0.0 if batch.token_reward is None else batch.token_reward
    return replace(batch, token_reward=before + zero_where_masked(rewards, batch.mask))
