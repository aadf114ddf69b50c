"""The estimator of most methods: baseline x scale x credit, with virtual samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import Field

from assay.component import Options
from assay.protocols import Baseline, Credit, Scale
from assay_optim.masked import group_moments, whole_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch


class VirtualSamples(Options):
    """Rewards that are added to every group's statistics and to nothing else (NGRPO: one of 1)."""

    count: int = Field(default=1, ge=1)
    """How many."""
    value: float = 1.0
    """Their reward."""


@dataclass(frozen=True)
class Standard:
    """A = credit(scale(baseline(r))) with group statistics over finite rewards and virtual samples.

    With a credit that takes the response as one action, token rewards are summed into the reward first. A scale of
    level `token` acts after the credit, one of level `sample` before it.
    """

    baseline: Baseline
    scale: Scale
    credit: Credit
    virtual: VirtualSamples | None = None

    @property
    def parts(self) -> Sequence[object]:
        """The parts that it is made of."""
        return (self.baseline, self.scale, self.credit)

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with `advantage` (N,) or (N, T), and `returns` where a critic learns; masked rewards count 0."""
        known = whole_rewards(batch) if self.credit.whole_response else batch
        virtual = self.virtual
        moments = group_moments(
            known.reward,
            known.group,
            virtual_count=virtual.count if virtual else 0,
            virtual_value=virtual.value if virtual else 0.0,
        )
        centred = self.baseline.centre(known, moments)
        reward = centred.reward
        if self.scale.level == "sample":
            reward = self.scale.scale(reward, centred, moments)
        advantage, returns = self.credit.assign(reward.nan_to_num(nan=0.0), centred)
        if self.scale.level == "token":
            spread = advantage if advantage.dim() == 2 else advantage.unsqueeze(1).expand_as(batch.mask)
            advantage = self.scale.scale(spread, centred, moments)
        return replace(batch, advantage=advantage, returns=returns)

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """None: independent of the policy."""
        return None
