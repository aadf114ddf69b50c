"""Baselines: what is subtracted from a reward. Options and formula are one class; r (N,), group statistics (N,)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import Field

from assay.component import Options
from assay.protocols import GroupMoments, Needs, Regulariser, Sidecar
from assay_optim.masked import needed, over_groups, row_means
from assay_optim.sidecars.scalars import MovingAverage

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch

log = logging.getLogger("assay")


class NoBaseline(Options):
    """A = r (REINFORCE++, arXiv 2501.03262)."""

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """The batch itself."""
        return batch


class BatchMeanOptions(Options):
    """A_i = r_i - mean over the batch (REINFORCE); slightly biased, since the mean holds the own sample."""


@dataclass
class BatchMean:
    """A_i = r_i - mean of all finite rewards of the batch; 0, and one warning, where there is a single one."""

    warned: bool = False

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """Rewards minus the mean of all finite rewards."""
        if not self.warned and int(batch.reward.isnan().logical_not().sum()) == 1:
            self.warned = True
            log.warning("optimizer.baseline 'batch_mean': a batch has one scored response; its advantage is 0")
        return replace(batch, reward=batch.reward - batch.reward.nanmean())


def build_batch_mean(options: BatchMeanOptions) -> BatchMean:
    """The batch's mean as baseline."""
    return BatchMean()


class GroupMean(Options):
    """A_i = r_i - mean_g (GRPO, arXiv 2402.03300; Dr. GRPO, 2503.20783); 0 where all rewards of a group are equal."""

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(logp_old=False, group_size_min=2)

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """Rewards minus their group's mean, exactly 0 in a group without spread."""
        centred = (batch.reward.double() - moments.mean).to(batch.reward.dtype)
        return replace(batch, reward=centred.where((moments.std > 0) | batch.reward.isnan(), 0.0))


class GroupLeaveOneOut(Options):
    """A_i = r_i - mean of the others of its group = K / (K - 1) (r_i - mean_g) (RLOO, arXiv 2402.14740)."""

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(logp_old=False, group_size_min=2)

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """Rewards minus the mean of the others; 0 in a group that shrank to one."""
        return replace(batch, reward=_leave_one_out(batch.reward, moments))


class LeaveOneOutPerSource(Options):
    """PRIME (arXiv 2502.01456): leave-one-out for the outcome, and for process rewards against the others' means.

    Process: r_it n / (n - 1) - sum_j mean_t(r_jt) / (n - 1), j over the whole group (the own mean cancels against the
    factor n / (n - 1) only in the mean). Oracle: verl-recipe `compute_rloo_advantage_return`.
    """

    @property
    def needs(self) -> Needs:
        """Token rewards, and groups of two at least."""
        return Needs(logp_old=False, group_size_min=2, token_reward=True)

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """Both rewards centred; 0 in a group that shrank to one."""
        process = needed(batch.token_reward, "token_reward", "group_loo_per_source")
        valid = (batch.reward.isnan().logical_not() & (batch.mask.sum(1) > 0)).to(process.dtype)
        count = over_groups(valid, batch.group)
        means = over_groups(row_means(process, batch.mask) * valid, batch.group)
        others = (count - 1).clamp(min=1)
        centred = process * (count / others).unsqueeze(1) - (means / others).unsqueeze(1)
        centred = centred.where((count > 1).unsqueeze(1) & (batch.mask > 0), 0.0)
        return replace(batch, reward=_leave_one_out(batch.reward, moments), token_reward=centred)


class EmaOptions(Options):
    """b moves as b <- m b + (1 - m) mean(r) *after* use (REINFORCE)."""

    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """m."""
    start: float | None = None
    """b before the first batch; None takes the first batch's mean."""


@dataclass
class Ema:
    """A_i = r_i - b with a moving average b of past rewards; the number lives in a sidecar."""

    average: MovingAverage

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """The moving average."""
        return (self.average,)

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """Rewards minus the average, which then takes in this batch."""
        mean = float(batch.reward.nanmean())
        if mean != mean:  # NaN: every reward of the batch is masked, and nothing is learned from it
            return batch
        return replace(batch, reward=batch.reward - self.average.use_then_move(mean))


def build_ema(options: EmaOptions) -> Ema:
    """The moving-average baseline with fresh state."""
    return Ema(MovingAverage(options.momentum, options.start))


class CriticOptions(Options):
    """A learned value of each state (PPO, arXiv 1707.06347); the credit `gae` turns it into advantages."""

    coefficient: float = Field(default=0.1, ge=0.0)
    """Weight of the value loss (TRL 0.1)."""
    clip: float | None = Field(default=0.2, gt=0.0)
    """Range by which the value may move from the old one; None for an unclipped loss."""
    hidden: int = Field(default=128, ge=0)
    """Width of the head's hidden layer; 0 for a linear head."""
    shared: bool = False
    """Whether the value loss also reaches the policy's trunk; off, so that it cannot spoil the policy."""
    learning_rate: float | None = Field(default=1e-3, gt=0.0)
    """Learning rate of the critic's own parameters; None for that of the policy."""

    @property
    def needs(self) -> Needs:
        """A critic."""
        return Needs(logp_old=False, values=True)


@dataclass
class CriticBaseline:
    """No subtraction here: `gae` uses the critic's values; brings the critic and its loss."""

    critic: Sidecar
    value_loss: Regulariser

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """The critic."""
        return (self.critic,)

    @property
    def regularisers(self) -> tuple[Regulariser, ...]:
        """The value loss."""
        return (self.value_loss,)

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """The batch itself."""
        return batch


def build_critic(options: CriticOptions) -> CriticBaseline:
    """The critic baseline with a fresh head."""
    from assay_optim.regularisers import ValueLoss
    from assay_optim.sidecars.critic import ValueHead

    head = ValueHead("critic", options.hidden, shared=options.shared, learning_rate=options.learning_rate)
    return CriticBaseline(head, ValueLoss(coefficient=options.coefficient, clip=options.clip))


def _leave_one_out(reward: Tensor, moments: GroupMoments) -> Tensor:
    exact = reward.double()
    centred = (exact - moments.mean) * moments.count / (moments.count - 1).clamp(min=1)
    return centred.to(reward.dtype).where((moments.std > 0) | reward.isnan(), 0.0)
