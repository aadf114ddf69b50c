"""Batch rules: which groups, and which rows of the kept ones, are learned from. Groups are judged unshaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from assay.component import Options
from assay.protocols import BatchRule, Decision, Needs, Selection

if TYPE_CHECKING:
    from assay.contracts.batch import ScoredGroup
    from assay.contracts.tensors import TrainBatch

KEEP = Decision("keep", "")
SPREAD = 1e-6
"""Rewards nearer than this are equal."""
Action = Literal["drop", "refill"]


class Rule(Options):
    """A rule that keeps every group and every row."""

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """Keep all."""
        return [KEEP for _ in groups]

    def apply(self, batch: TrainBatch) -> TrainBatch:
        """The batch itself."""
        return batch


class GroupRule(Rule):
    """A rule on the rewards of one group."""

    action: Action = "drop"
    """`drop` the group, or drop it and draw another prompt in its place (`refill`, DAPO's dynamic sampling)."""
    channel: str = "reward"
    """Which reward channel is looked at."""

    @property
    def needs(self) -> Needs:
        """The channel, where it is not the reward itself."""
        return Needs(logp_old=False, channels=() if self.channel == "reward" else (self.channel,))

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """One decision per group."""
        return [self._decide(_values(group, self.channel)) for group in groups]

    def _decide(self, values: Sequence[float]) -> Decision:
        reason = self.reason(values)
        return Decision(self.action, reason) if reason else KEEP

    def reason(self, values: Sequence[float]) -> str:
        """Why a group with these finite rewards is left out; empty to keep it."""
        return ""


class ZeroVariance(GroupRule):
    """Leaves out groups whose rewards are all equal; with `refill` DAPO's dynamic sampling (arXiv 2503.14476)."""

    def reason(self, values: Sequence[float]) -> str:
        """`zero_variance`."""
        return "" if values and max(values) - min(values) >= SPREAD else "zero_variance"


class AllCorrect(GroupRule):
    """Leaves out groups in which every response is correct; all-wrong groups stay (NGRPO)."""

    correct: float = 1.0
    """Least reward of a correct response."""

    def reason(self, values: Sequence[float]) -> str:
        """`all_correct`."""
        return "all_correct" if values and min(values) >= self.correct else ""


class AccuracyBand(GroupRule):
    """Leaves out groups whose share of correct responses is outside [low, high] (PRIME: 0.2 to 0.8)."""

    low: float = Field(default=0.2, ge=0.0, le=1.0)
    """Least share."""
    high: float = Field(default=0.8, ge=0.0, le=1.0)
    """Largest share."""
    correct: float = 1.0
    """Least reward of a correct response."""

    @model_validator(mode="after")
    def _ordered(self) -> AccuracyBand:
        if self.high < self.low:
            raise ValueError(f"high is below low: {self.low:g}..{self.high:g}")
        return self

    def reason(self, values: Sequence[float]) -> str:
        """`accuracy_low` or `accuracy_high`."""
        share = sum(value >= self.correct for value in values) / len(values) if values else 0.0
        if share < self.low - 1e-9:
            return "accuracy_low"
        return "accuracy_high" if share > self.high + 1e-9 else ""


class Staleness(Rule):
    """Leaves out groups with a token more than `window` versions older than the newest of the batch (2505.22257).

    The pipeline's own admission bounds staleness against the trainer's version; this rule bounds it among the groups
    that it is asked about together (within one group where it is asked group by group).
    """

    window: int = Field(default=10, ge=0)
    """v: largest distance in policy versions."""
    action: Action = "drop"
    """What becomes of a stale group."""

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """One decision per group."""
        oldest = [_oldest_version(group) for group in groups]
        newest = max((_newest_version(group) for group in groups), default=0)
        return [Decision(self.action, "stale") if newest - old > self.window else KEEP for old in oldest]


class MaskTruncated(Rule):
    """Truncated responses teach nothing (DAPO's overlong filtering); an option of every method."""

    stats: Literal["keep", "leave_out"] = "keep"
    """Whether their rewards still count in their group's statistics."""

    def apply(self, batch: TrainBatch) -> TrainBatch:
        """Their mask cleared (and their reward NaN where they leave the statistics)."""
        mask = batch.mask.where(batch.truncated.logical_not().unsqueeze(1), 0.0)
        if self.stats == "keep":
            return replace(batch, mask=mask)
        return replace(batch, mask=mask, reward=batch.reward.where(batch.truncated.logical_not(), float("nan")))


def combined(rules: Sequence[BatchRule], groups: Sequence[ScoredGroup]) -> Selection:
    """The first decision against each group over `rules`, else keep."""
    decisions = [KEEP for _ in groups]
    for rule in rules:
        found = rule.select(groups)
        decisions = [old if old.action != "keep" else new for old, new in zip(decisions, found, strict=True)]
    return decisions


def _values(group: ScoredGroup, channel: str) -> list[float]:
    found = group.values if channel == "reward" else tuple(reward.channels.get(channel) for reward in group.rewards)
    return [value for value in found if value is not None]


def _oldest_version(group: ScoredGroup) -> int:
    return min((span.version for rollout in group.rollouts for span in rollout.weight_versions), default=0)


def _newest_version(group: ScoredGroup) -> int:
    return max((span.version for rollout in group.rollouts for span in rollout.weight_versions), default=0)
