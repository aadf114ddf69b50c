"""Sidecars that are a few plain numbers: a moving average, an adaptive KL coefficient, a counter, a dual variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Parameter

    from assay.contracts.tensors import TrainBatch


class Numbers:
    """A sidecar without parameters whose state is the plain attributes named in `fields`."""

    name: str
    fields: tuple[str, ...] = ()

    def parameters(self) -> Iterable[Parameter]:
        """None."""
        return ()

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing moves."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """The numbers as JSON values."""
        return {field: getattr(self, field) for field in self.fields}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for field in self.fields:
            setattr(self, field, state[field])


class MovingAverage(Numbers):
    """b <- m b + (1 - m) x after each use."""

    fields = ("value",)

    def __init__(self, momentum: float, start: float | None, name: str = "ema") -> None:
        """Start at `start`, or at the first number seen where that is None."""
        self.name = name
        self.momentum = momentum
        self.value = start

    def use_then_move(self, new: float) -> float:
        """The average before `new` is taken in."""
        before = new if self.value is None else self.value
        self.value = self.momentum * before + (1 - self.momentum) * new
        return before


class AdaptiveKL(Numbers):
    """beta <- beta (1 + clip(kl / target - 1, -0.2, 0.2) n / horizon) after each step (Ziegler et al., 1909.08593).

    `kl` is the mean KL of a whole *sequence* to the reference, n the responses of the step.
    """

    fields = ("beta",)

    def __init__(self, name: str, beta: float, target: float, horizon: float) -> None:
        """Start at `beta`."""
        self.name = name
        self.beta = beta
        self.target = target
        self.horizon = horizon

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Move beta by the step's `kl_ref_sequence`."""
        if "kl_ref_sequence" in metrics:
            self.move(metrics["kl_ref_sequence"], batch.denominators.rows)
        return {f"{self.name}_beta": self.beta}

    def move(self, kl: float, rows: float) -> None:
        """One step of the controller."""
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.beta *= 1.0 + error * rows / self.horizon


class Counter(Numbers):
    """How many batches were seen."""

    fields = ("count",)

    def __init__(self, name: str) -> None:
        """Start at 0."""
        self.name = name
        self.count = 0


class Dual(Numbers):
    """A Lagrange multiplier that rises by ascent: lambda <- clamp(lambda + rate x violation, 0, ceiling)."""

    fields = ("value",)

    def __init__(self, name: str, start: float, rate: float, ceiling: float) -> None:
        """Start at `start`."""
        self.name = name
        self.value = start
        self.rate = rate
        self.ceiling = ceiling

    def use_then_move(self, violation: float) -> float:
        """The multiplier before this batch's violation is taken in."""
        before = self.value
        self.value = min(max(before + self.rate * violation, 0.0), self.ceiling)
        return before
