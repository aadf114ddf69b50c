"""The head of a reward model: last hidden states after a token to one or two numbers."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from assay.contracts.tensors import TrainBatch

NAME = "reward"
"""The sidecar's name: its output stands in `Forward.extra["head_reward"]`, its tensors under `reward.` in the file."""


class ScoreHead:
    """states (n, H) to (n,) or (n, outputs) float32; linear, or with one hidden layer and ReLU; starts at 0."""

    def __init__(
        self, outputs: int = 1, hidden: int = 0, *, seed: int = 0, name: str = NAME, learning_rate: float | None = None
    ) -> None:
        """A head without parameters yet; `bind` or `of` makes them. `outputs` is 1 (a logit) or 2 (bad, good)."""
        self.name = name
        self.outputs = outputs
        self.hidden = hidden
        self.seed = seed
        self.learning_rate = learning_rate
        self.layers: nn.Sequential | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, where: str) -> ScoreHead:
        """The head that these tensors are: `weight`, or `0.weight` and `2.weight` around a ReLU, biases optional.

        Raises:
            ConfigError: they are neither.
        """
        named = {f"0.{key}" if key in ("weight", "bias") else key: value.float() for key, value in tensors.items()}
        weights = [named[key] for key in ("0.weight", "2.weight") if key in named]
        known = {"0.weight", "0.bias", "2.weight", "2.bias"}
        if not weights or "0.weight" not in named or set(named) - known or any(w.ndim != 2 for w in weights):
            raise ConfigError(
                f"{where}: no reward head is made of the tensors {', '.join(sorted(tensors)) or '(none)'}; "
                "a linear layer, or two around a ReLU, are read"
            )
        head = cls(weights[-1].shape[0], weights[0].shape[0] if len(weights) == 2 else 0)
        head.bind(weights[0].shape[1])
        state = dict(head.module.state_dict())
        head.module.load_state_dict({key: named.get(key, torch.zeros_like(value)) for key, value in state.items()})
        head.module.requires_grad_(False)
        return head

    @property
    def module(self) -> nn.Sequential:
        """The layers; raises `TrainingError` before `bind`."""
        if self.layers is None:
            raise TrainingError(
                f"head {self.name!r}: its parameters are not made; the trainer must call `bind(hidden_size)` first"
            )
        return self.layers

    @property
    def width(self) -> int:
        """H, the model's hidden size."""
        first = self.module[0]
        assert isinstance(first, nn.Linear)
        return first.in_features

    def bind(self, hidden_size: int) -> None:
        """Make the layers for a model of this width, the same for the same seed; a second call changes nothing."""
        if self.layers is not None:
            return
        last = nn.Linear(self.hidden or hidden_size, self.outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if not self.hidden:
            self.layers = nn.Sequential(last)
            return
        first = nn.Linear(hidden_size, self.hidden)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            first.weight.normal_(0.0, hidden_size**-0.5, generator=generator)
            first.bias.zero_()
        self.layers = nn.Sequential(first, nn.ReLU(), last)

    def read(self, hidden: Tensor) -> Tensor:
        """(n,) for one output, (n, outputs) for more; float32 whatever the model's type."""
        out: Tensor = self.module.to(hidden.device)(hidden.float())
        return out.squeeze(-1) if self.outputs == 1 else out

    def parameters(self) -> Iterable[nn.Parameter]:
        """The layers' parameters."""
        return tuple(self.module.parameters())

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing moves."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """The layers' tensors."""
        return dict(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.module.load_state_dict(dict(state))
