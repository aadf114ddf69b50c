"""Scales: what a centred reward is divided by. Standard deviations have ddof = 1."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.component import Options
from assay.errors import TrainingError
from assay.protocols import GroupMoments, Needs
from assay_optim.masked import deviation, zero_where_masked

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch

log = logging.getLogger("assay")


class SampleScale(Options):
    """Acts on one number per response, before the credit."""

    @property
    def level(self) -> Literal["sample", "token"]:
        """`sample`."""
        return "sample"


class NoScale(SampleScale):
    """The centred reward as it is (Dr. GRPO, RLOO)."""

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """The advantage itself."""
        return advantage


class GroupStd(SampleScale):
    """A / (std_g + eps) (GRPO, arXiv 2402.03300); exactly 0 where std_g is 0 (below 1e-6)."""

    eps: float = Field(default=1e-6, ge=0.0)
    """Added to the standard deviation (verl 1e-6, TRL 1e-4, OpenRLHF 1e-9, oat 1e-8)."""

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(logp_old=False, group_size_min=2)

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """(N,) divided by the group's deviation, virtual samples included."""
        scaled = (advantage.double() / (moments.std + self.eps)).to(advantage.dtype)
        return scaled.where((moments.std > 0) | advantage.isnan(), 0.0)


class BatchStd(SampleScale):
    """A / std of all centred advantages of the batch (ScaleRL, arXiv 2510.13786).

    Computed after zero-variance groups were dropped, as the batch rule does; the paper leaves the order open.
    """

    eps: float = Field(default=1e-6, ge=0.0)
    """Added to the standard deviation."""

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """(N,) divided by one number; 0 where nothing in the batch varies."""
        std = deviation(advantage[advantage.isnan().logical_not()])
        if not bool(std > 0):
            return advantage.where(advantage.isnan(), 0.0)
        return (advantage.double() / (std + self.eps)).to(advantage.dtype)


class GroupMeanOptions(Options):
    """A / (mean_g + eps) (MaxRL, arXiv 2602.02710, repository form); an all-wrong group is 0.

    With a mean over samples this is the maximum-likelihood gradient; with a sum it would be N times too large. A group
    that shrank to one is 0 (the repository divides by eps there). It is made for rewards of 0 and 1: others are warned
    about, negative ones refused. The zero makes the expectation one of order N - 1 instead of N: with N = 5, p = 0.3
    the expectation is 2.533 times that of REINFORCE, with `push` 2.7731.
    """

    eps: float = Field(default=1e-6, gt=0.0)
    """Added to the mean."""
    all_wrong: Literal["zero", "push"] = "zero"
    """What an all-wrong group gets: nothing (the repository), or -1 for every response."""

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(logp_old=False, group_size_min=2)


@dataclass
class GroupMeanScale:
    """A / (mean_g + eps); see `GroupMeanOptions`."""

    options: GroupMeanOptions
    warned: bool = False

    @property
    def level(self) -> Literal["sample", "token"]:
        """`sample`."""
        return "sample"

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """(N,) divided by the group's mean reward; raises `TrainingError` for a negative reward."""
        rewards = (advantage.double() + moments.mean).nan_to_num(nan=0.0)
        lowest = float(rewards.min()) if len(rewards) else 0.0
        if lowest < -1e-6:
            raise TrainingError(
                f"optimizer.scale 'group_mean': it divides by a group's mean reward, so rewards must not be negative; "
                f"found {lowest:g}; use rewards of 0 and 1"
            )
        if not self.warned and bool(((rewards * (rewards - 1)).abs() > 1e-4).any()):
            self.warned = True
            log.warning("optimizer.scale 'group_mean': it is made for rewards of 0 and 1, and others were found")
        scaled = (advantage.double() / (moments.mean + self.options.eps)).to(advantage.dtype)
        if self.options.all_wrong == "push":
            pushed = (moments.mean == 0) & (moments.count > 1) & advantage.isnan().logical_not()
            scaled = scaled.where(pushed.logical_not(), -1.0)
        return scaled


def build_group_mean(options: GroupMeanOptions) -> GroupMeanScale:
    """The scale, which warns once."""
    return GroupMeanScale(options)


class WhitenSample(SampleScale):
    """(A - mean) / (std + eps) over the responses of the batch (ms-swift's REINFORCE++-baseline)."""

    eps: float = Field(default=1e-8, ge=0.0)
    """Added to the standard deviation."""

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """(N,) with mean 0 and deviation 1 over finite rows; 0 where nothing varies."""
        finite = advantage[advantage.isnan().logical_not()].double()
        std = deviation(finite)
        if not bool(std > 0):
            return advantage.where(advantage.isnan(), 0.0)
        return ((advantage.double() - finite.mean()) / (std + self.eps)).to(advantage.dtype)


class WhitenToken(Options):
    """(A - mean) / sqrt(var + eps) over all unmasked tokens of the global batch (PPO, REINFORCE++; verl's form).

    Re-centres, so an all-correct group gets advantages that are not zero. OpenRLHF takes the biased variance.
    """

    eps: float = Field(default=1e-8, ge=0.0)
    """Added to the variance."""

    @property
    def level(self) -> Literal["sample", "token"]:
        """`token`."""
        return "token"

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """(N, T) with mean 0 and deviation 1 over unmasked tokens; 0 where nothing varies."""
        values = advantage[batch.mask > 0].double()
        if not bool(deviation(values) > 0):
            return advantage * 0.0
        white = (advantage.double() - values.mean()) / (values.var() + self.eps).sqrt()
        return zero_where_masked(white.to(advantage.dtype), batch.mask)
