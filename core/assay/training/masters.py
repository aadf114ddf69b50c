"""Float32 copies of narrow weights: a step of 1e-6 would otherwise be rounded away.

A bfloat16 weight of 1 cannot move by less than 0.4 %. Where the policy is narrow, AdamW therefore works on float32
masters; gradients of micro-batches are added up in float32, and the weights are rounded from the masters after a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Masters:
    """The masters of one optimizer; empty, and without any cost, for a float32 policy."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Masters of the narrow parameters in AdamW's `groups`, which from now on hold the masters instead."""
        self._pairs: list[tuple[Tensor, Tensor]] = []
        for group in groups:
            group["params"] = [self._own(parameter) for parameter in group["params"]]

    @property
    def tensors(self) -> list[Tensor]:
        """The masters, in the optimizer's order, for checkpoints."""
        return [master for _, master in self._pairs]

    def collect(self) -> None:
        """Move the gradients of the weights into the masters', adding to what is there."""
        for weight, master in self._pairs:
            if weight.grad is not None:
                grad = weight.grad.float()
                master.grad = grad if master.grad is None else master.grad.add_(grad)
                weight.grad = None

    @torch.no_grad()
    def round(self) -> None:
        """Give the weights the masters' values."""
        for weight, master in self._pairs:
            weight.copy_(master)

    def _own(self, parameter: Tensor) -> Tensor:
        if parameter.dtype == torch.float32:
            return parameter
        master = parameter.detach().float().clone().requires_grad_()
        self._pairs.append((parameter, master))
        return master
