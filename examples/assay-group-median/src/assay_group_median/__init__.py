# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A baseline for graded rewards with outliers: the median of the group instead of its mean."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from assay import Options, Part, hookimpl
from assay.protocols import GroupMoments, Needs

if TYPE_CHECKING:
    from assay.contracts.tensors import TrainBatch


class GroupMedian(Options):
    """A_i = r_i - median of the group's rewards; the mean of the middle two where their number is even.

    Advantages of a group do not sum to zero: one outlier moves its own advantage and nobody else's.
    """

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(group_size_min=2)

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """The batch with rewards (N,) minus the median of the scored rewards of their group; masked ones stay NaN."""
        centred = batch.reward.clone()
        counts = batch.reward.isnan().logical_not() & (batch.mask.sum(dim=1) > 0)
        for group in batch.group.unique():
            rows = batch.group == group
            rewards = batch.reward[rows & counts]
            if len(rewards):
                centred[rows] -= rewards.double().quantile(0.5).to(rewards.dtype)
        return replace(batch, reward=centred)


def itself(options: GroupMedian) -> GroupMedian:
    """The part is its own options: it keeps no state."""
    return options


@hookimpl
def assay_optimizer_parts() -> list[Part]:
    """Offer this package's parts."""
    return [Part("baseline", "group_median", GroupMedian, itself, summary="the median of the group's rewards")]
