"""A value head on the policy's last hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.errors import TrainingError

if TYPE_CHECKING:
    from assay.contracts.tensors import TrainBatch


class ValueHead:
    """V = head(hidden), one value per state; starts at V = 0 (the last layer is zero).

    With `shared` the value loss also trains the policy's trunk. Off by default: hidden states enter detached, so the
    policy's gradient is exactly that of the policy loss.
    """

    def __init__(
        self, name: str, hidden: int, *, shared: bool = False, learning_rate: float | None = None, seed: int = 0
    ) -> None:
        """A head with one hidden layer of width `hidden` (0: linear); `bind` makes it."""
        self.name = name
        self.hidden = hidden
        self.shared = shared
        self.learning_rate = learning_rate
        self.seed = seed
        self.head: nn.Module | None = None

    def bind(self, hidden_size: int) -> None:
        """Make the head for a policy of this width, the same for the same seed; a second call changes nothing."""
        if self.head is not None:
            return
        last = nn.Linear(self.hidden or hidden_size, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if not self.hidden:
            self.head = last
            return
        first = nn.Linear(hidden_size, self.hidden)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            first.weight.normal_(0.0, hidden_size**-0.5, generator=generator)
            first.bias.zero_()
        self.head = nn.Sequential(nn.LayerNorm(hidden_size), first, nn.GELU(), last)

    def values(self, hidden: Tensor) -> Tensor:
        """Values (...) of hidden states (..., H), in float32."""
        states = hidden if self.shared else hidden.detach()
        return self._module().to(states.device)(states.float()).squeeze(-1)

    def parameters(self) -> Iterable[nn.Parameter]:
        """The head's parameters."""
        return tuple(self._module().parameters())

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing moves."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """The head's tensors."""
        return dict(self._module().state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._module().load_state_dict(dict(state))

    def _module(self) -> nn.Module:
        if self.head is None:
            raise TrainingError(
                f"critic {self.name!r}: its parameters are not made; the trainer must call `bind(hidden_size)` first"
            )
        return self.head
