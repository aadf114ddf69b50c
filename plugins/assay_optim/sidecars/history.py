"""Task samplers: which tasks are drawn next, from the success rates seen so far. Their state is checkpointed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from assay.component import Options

if TYPE_CHECKING:
    from torch.nn import Parameter

    from assay.contracts.batch import ScoredGroup
    from assay.contracts.tensors import TrainBatch


class PassRateOptions(Options):
    """What the samplers have in common."""

    correct: float = 1.0
    """Least reward of a correct response."""
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """0 pools all responses seen; above it old rates fade by this factor at each visit."""


class CurriculumOptions(PassRateOptions):
    """Draw tasks in proportion to 1 - success rate (Kimi k1.5, arXiv 2501.12599)."""

    floor: float = Field(default=0.05, ge=0.0, le=1.0)
    """Least weight, so that a solved task is still looked at sometimes."""


class NoPositiveResamplingOptions(PassRateOptions):
    """Never again draw a task whose past success rate reaches `threshold` (ScaleRL, arXiv 2510.13786)."""

    threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """The success rate."""


class BandOptions(PassRateOptions):
    """Draw only tasks whose success rate lies in [low, high], and unseen ones (PRIME)."""

    low: float = Field(default=0.2, ge=0.0, le=1.0)
    """Least rate."""
    high: float = Field(default=0.8, ge=0.0, le=1.0)
    """Largest rate."""

    @model_validator(mode="after")
    def _ordered(self) -> BandOptions:
        if self.high < self.low:
            raise ValueError(f"high is below low: {self.low:g}..{self.high:g}")
        return self


@dataclass
class PassRates:
    """Correct and judged responses per task id; a masked reward is not a response."""

    correct: float
    momentum: float
    counts: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Task id to (correct, judged)."""

    def observe(self, groups: Sequence[ScoredGroup]) -> None:
        """Take in judged groups."""
        for group in groups:
            values = [value for value in group.values if value is not None]
            if not values:
                continue
            keep = 1.0 if self.momentum == 0 else self.momentum
            right, seen = self.counts.get(group.task.id, (0.0, 0.0))
            wins = sum(value >= self.correct for value in values)
            self.counts[group.task.id] = (keep * right + wins, keep * seen + len(values))

    def rate(self, task_id: str) -> float | None:
        """Share of correct responses, None for a task that was never judged."""
        right, seen = self.counts.get(task_id, (0.0, 0.0))
        return right / seen if seen else None


class PassRateSampler:
    """A task sampler by success rate; the kind of options says how a rate becomes a weight."""

    def __init__(self, options: PassRateOptions) -> None:
        """Start without history: every task weighs 1."""
        self.name = "task_sampler"
        self.options = options
        self.rates = PassRates(options.correct, options.momentum)

    def weights(self, task_ids: Sequence[str]) -> Sequence[float]:
        """One weight in [0, 1] per task; unseen tasks weigh 1."""
        return [self._weight(self.rates.rate(task_id)) for task_id in task_ids]

    def observe(self, groups: Sequence[ScoredGroup]) -> None:
        """Take in judged groups."""
        self.rates.observe(groups)

    def parameters(self) -> Iterable[Parameter]:
        """None."""
        return ()

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """How many tasks were seen, and how many of them are retired."""
        weights = self.weights(list(self.rates.counts))
        return {"tasks_seen": float(len(weights)), "tasks_retired": float(sum(weight == 0 for weight in weights))}

    def state_dict(self) -> Mapping[str, Any]:
        """The counts as JSON values."""
        return {"counts": {task: list(pair) for task, pair in self.rates.counts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        counts: Mapping[str, Sequence[float]] = state["counts"]
        self.rates.counts = {task: (float(right), float(seen)) for task, (right, seen) in counts.items()}

    def _weight(self, rate: float | None) -> float:
        if rate is None:
            return 1.0
        options = self.options
        if isinstance(options, CurriculumOptions):
            return max(1.0 - rate, options.floor)
        if isinstance(options, NoPositiveResamplingOptions):
            return 0.0 if rate >= options.threshold else 1.0
        if isinstance(options, BandOptions):
            return 1.0 if options.low <= rate <= options.high else 0.0
        return 1.0


def build_curriculum(options: CurriculumOptions) -> PassRateSampler:
    """A curriculum without history."""
    return PassRateSampler(options)


def build_no_positive_resampling(options: NoPositiveResamplingOptions) -> PassRateSampler:
    """No-positive-resampling without history."""
    return PassRateSampler(options)


def build_band(options: BandOptions) -> PassRateSampler:
    """An accuracy band without history."""
    return PassRateSampler(options)
