"""One optimizer for every method: rewards to gradient through one part per axis.

    loss = Agg[-(A x S)] + sum(regularisers)

Pure except for its sidecars. `prepare` sees the whole batch once; `loss` sees any slice of its rows, and the losses of
the slices add up to that of the batch, because every denominator comes with the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from assay.contracts.batch import APART
from assay.contracts.tensors import Forward, LossReport
from assay.errors import TrainingError
from assay.protocols import (
    Aggregation,
    BatchRule,
    Decision,
    Estimator,
    Needs,
    Ratio,
    Regulariser,
    RewardShaper,
    Selection,
    Sidecar,
    TaskSampler,
    TrustRegion,
)
from assay_optim import metrics
from assay_optim.batch_rules import combined
from assay_optim.masked import masked_sum, recounted, with_extra, zero_where_masked

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.batch import ScoredGroup
    from assay.contracts.tensors import TrainBatch

log = logging.getLogger("assay")


def set_apart(batch: TrainBatch) -> TrainBatch:
    """The batch with rows of the channel `nll` taken out of rewards and mask, their tokens in `extra["nll_mask"]`."""
    channel = batch.channels.get(APART)
    if channel is None:
        return batch
    apart = channel > 0
    batch = with_extra(batch, nll_mask=batch.mask.where(apart.unsqueeze(1), 0.0))
    return replace(batch, reward=batch.reward.where(apart.logical_not(), float("nan")))


def _spread(batch: TrainBatch, advantage: Tensor) -> Tensor:
    """(N, T) of advantages (N,) or (N, T)."""
    return advantage if advantage.dim() == 2 else advantage.unsqueeze(1).expand_as(batch.mask)


def _weighed(batch: TrainBatch, advantage: Tensor) -> Tensor:
    """Advantages of the current policy, which take the place of weighed ones, with the same weight."""
    weight = batch.extra.get("importance")
    return advantage if weight is None else _spread(batch, advantage) * weight


@dataclass
class Composition:
    """A policy optimizer made of parts; see `assay.protocols.PolicyOptimizer`."""

    name: str
    estimator: Estimator
    ratio: Ratio
    trust_region: TrustRegion
    aggregation: Aggregation
    needs: Needs
    shapers: Sequence[RewardShaper] = ()
    rules: Sequence[BatchRule] = ()
    regularisers: Sequence[Regulariser] = ()
    sidecars: Sequence[Sidecar] = ()
    _warned: set[str] = field(default_factory=set[str])

    @property
    def task_sampler(self) -> TaskSampler | None:
        """The sidecar that chooses tasks, where there is one."""
        return next((sidecar for sidecar in self.sidecars if isinstance(sidecar, TaskSampler)), None)

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """The first decision of the batch rules against each group; a wholly masked group is never kept."""
        if (sampler := self.task_sampler) is not None:
            sampler.observe(groups)
        decisions = combined(self.rules, groups)
        return [
            Decision("drop", "masked")
            if decision.action == "keep" and all(value is None for value in group.values)
            else decision
            for decision, group in zip(decisions, groups, strict=True)
        ]

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """Masks, shaped rewards and advantages of the whole batch; call it once per batch (sidecars may move)."""
        batch = set_apart(batch)
        raw = batch.reward
        valid = raw.isnan().logical_not()
        batch = replace(batch, mask=batch.mask.where(valid.unsqueeze(1), 0.0))
        batch = with_extra(batch, raw_reward=raw)
        for shaper in self.shapers:
            batch = shaper.shape(batch)
        for rule in self.rules:
            batch = rule.apply(batch)
        batch = self.estimator.advantages(recounted(batch, batch.mask))
        for part in (self.aggregation, *self.regularisers):
            prepare = getattr(part, "prepare", None)
            if prepare is not None:
                batch = prepare(batch)
        found = metrics.of_batch(batch, raw)
        self._warn(found)
        return replace(batch, metrics={**batch.metrics, **found})

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """What depends on the current policy and on more than one row, from log-probs (N, T) of the whole batch."""
        if not self.needs.batch_logp:
            return batch
        current = zero_where_masked(logp.detach(), batch.mask)
        ratios = self.ratio.ratios(batch, Forward(current, current))
        advantage = self.estimator.at_policy(batch, current, ratios.rho.detach())
        if advantage is not None:
            batch = replace(batch, advantage=_weighed(batch, advantage))
        for regulariser in self.regularisers:
            batch = regulariser.rescore(batch, current)
        return with_extra(batch, rescored=batch.reward * 0.0)

    def loss(self, batch: TrainBatch, forward: Forward) -> LossReport:
        """The share of these rows in the loss of the batch, and its metrics."""
        if self.needs.batch_logp and "rescored" not in batch.extra:
            batch = self._rescored_whole(batch, forward)
        ratios = self.ratio.ratios(batch, forward)
        advantage = self._advantage(batch, ratios.logp.detach(), ratios.rho.detach())
        surrogate = self.trust_region.surrogate(advantage, ratios, batch, forward)
        weights = self.aggregation.weights(batch)
        policy_loss = -masked_sum(weights * surrogate.value, batch.mask)
        total = policy_loss
        found = {"policy_loss": float(policy_loss.detach())}
        found.update(metrics.of_slice(batch, ratios, surrogate, advantage, forward))
        for regulariser in self.regularisers:
            report = regulariser.penalty(batch, forward, weights)
            total = total + report.loss
            found.update(report.metrics)
        found["loss"] = float(total.detach())
        return LossReport(total, found)

    def _advantage(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor:
        advantage = batch.advantage
        if not self.needs.batch_logp:
            current = self.estimator.at_policy(batch, logp, ratio)
            advantage = advantage if current is None else _weighed(batch, current)
        if advantage is None:
            raise TrainingError(f"optimizer {self.name!r}: the batch has no advantages; call `prepare` on it first")
        return zero_where_masked(_spread(batch, advantage), batch.mask)

    def _rescored_whole(self, batch: TrainBatch, forward: Forward) -> TrainBatch:
        here = float((batch.mask.sum(dim=1) > 0).sum())
        if here != batch.denominators.rows:
            raise TrainingError(
                f"optimizer {self.name!r}: its loss depends on the whole batch; this slice has {here:g} of "
                f"{batch.denominators.rows:g} rows; call `rescore` on the batch before it is split"
            )
        return self.rescore(batch, forward.logp.detach())

    def _warn(self, found: dict[str, float]) -> None:
        if found["groups_of_one"] and self.needs.group_size_min > 1 and "one" not in self._warned:
            self._warned.add("one")
            log.warning(
                "optimizer %r: %d groups shrank to one scored response, which has no other to be compared with",
                self.name,
                int(found["groups_of_one"]),
            )
