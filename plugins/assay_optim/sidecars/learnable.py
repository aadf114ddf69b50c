"""A trainable scalar (the lambda of lambda-GRPO)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

if TYPE_CHECKING:
    from assay.contracts.tensors import TrainBatch


class LearnableScalar:
    """One parameter, in an optimizer group of its own with `learning_rate` (None: that of the policy)."""

    def __init__(self, name: str, start: float, *, learning_rate: float | None = None) -> None:
        """Start at `start`."""
        self.name = name
        self.learning_rate = learning_rate
        self.value = Parameter(torch.tensor(float(start)))

    def parameters(self) -> Iterable[Parameter]:
        """The scalar."""
        return (self.value,)

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Its value, to be logged."""
        return {self.name: float(self.value.detach())}

    def state_dict(self) -> Mapping[str, Any]:
        """Its value."""
        return {"value": float(self.value.detach())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        with torch.no_grad():
            self.value.fill_(float(state["value"]))
