# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A policy optimizer without any of assay's parts: raise the likelihood of the best answers of each group.

Rejection sampling fine-tuning as one loop: the loss is the mean negative log-prob of the tokens of the chosen answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay import BuildContext, Component, Options, PolicyOptimizer, hookimpl
from assay.protocols import Decision, Needs, Selection, Sidecar

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts import ScoredGroup
    from assay.contracts.tensors import Forward, LossReport, TrainBatch

NEEDS = Needs(logp_old=False, group_size_min=2)
"""No log-probs but the current ones, and groups that can have a best answer."""


class BestOfGroupOptions(Options):
    """Options of the optimizer `best-of-group`."""

    margin: float = Field(default=0.0, ge=0.0)
    """An answer is chosen where its reward is at most this far below the group's best."""


@dataclass(frozen=True)
class BestOfGroup:
    """Chooses, and imitates what it chose; keeps no state."""

    options: BestOfGroupOptions
    needs: Needs = NEEDS
    sidecars: Sequence[Sidecar] = ()

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """Keep a group in which some answers are better than others."""
        return [self._decision([value for value in group.values if value is not None]) for group in groups]

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """The batch with weights (N,) in `advantage`: 1 / (tokens of all chosen answers), or 0."""
        valid = batch.reward.isnan().logical_not() & (batch.mask.sum(dim=1) > 0)
        chosen = valid.clone()
        for group in batch.group.unique():
            rows = (batch.group == group) & valid
            if bool(rows.any()):
                best, worst = batch.reward[rows].max(), batch.reward[rows].min()
                chosen &= ((batch.group != group) | (batch.reward >= best - self.options.margin)) & (
                    (batch.group != group) | (best > worst + self.options.margin)
                )
        lengths = batch.mask.sum(dim=1)
        tokens = lengths[chosen].sum().clamp(min=1.0)
        metrics = {**batch.metrics, "chosen_share": float(chosen.sum()) / max(1, int(valid.sum()))}
        return replace(batch, advantage=chosen.to(lengths.dtype) / tokens, metrics=metrics)

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """Nothing depends on the current policy."""
        return batch

    def loss(self, batch: TrainBatch, forward: Forward) -> LossReport:
        """This slice's share of the mean negative log-prob over the tokens of all chosen answers."""
        from assay.contracts.tensors import LossReport

        assert batch.advantage is not None, "prepare comes first"
        # Padding holds any number, NaN included; `where` keeps it out of the sum and of the gradient.
        logp = forward.logp.where(batch.mask > 0, 0.0)
        loss = -(batch.advantage.unsqueeze(1) * logp).sum()
        return LossReport(loss, {"loss": float(loss.detach())})

    def _decision(self, values: Sequence[float]) -> Decision:
        if len(values) < 2:
            return Decision("drop", "masked")
        differ = max(values) > min(values) + self.options.margin
        return Decision("keep", "") if differ else Decision("refill", "all equal")


def build(options: BestOfGroupOptions, _context: BuildContext) -> PolicyOptimizer:
    """The optimizer."""
    return BestOfGroup(options)


@hookimpl
def assay_policy_optimizers() -> list[Component[Any, PolicyOptimizer]]:
    """Offer the optimizer."""
    facts = {"advantage": "1 for the best of a group, else 0", "loss": "token mean over the chosen"}
    summary = "imitate the best answers of each group"
    return [Component("best-of-group", BestOfGroupOptions, build, summary=summary, facts=facts)]
