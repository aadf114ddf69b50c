"""What a trainer asks of the processes that train together.

`Ranks` itself is the answer of one process alone. `assay.training.sharding.ShardedRanks` gives it for several: each
holds a part of every weight and computes a part of every batch, and all of them come to the same numbers.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from assay.contracts.tensors import Forward
from assay.errors import TrainingError


class Slice(NamedTuple):
    """One micro-batch as this process meets it."""

    members: list[int]
    counts: bool
    """Whether its numbers count here; otherwise it only keeps this process in step with the others."""


class Ranks:
    """One process alone."""

    rank: int = 0
    size: int = 1

    def shard(self, model: Any) -> None:
        """Divide the weights of `model` among the processes, in place; before an optimizer sees them."""

    def budget(self, tokens: int, of: int) -> int:
        """Tokens of a micro-batch, at most `tokens`, with which every process has something to do in a batch `of`."""
        return tokens

    def share(self, plan: Sequence[list[int]]) -> list[Slice]:
        """The micro-batches of this process: as many on every one, each counted on exactly one."""
        return [Slice(members, counts=True) for members in plan]

    def scale(self, loss: Tensor, forward: Forward, *, counts: bool) -> Tensor:
        """The loss to call backward on, so that gradients are those of all counted slices together."""
        return loss

    def add(self, *values: Tensor | None) -> None:
        """Replace each tensor by its sum over the processes."""

    def agreed(self, flag: bool) -> bool:
        """Whether `flag` holds on every process."""
        return flag

    def shares(self, metrics: Sequence[dict[str, float]]) -> list[dict[str, float]]:
        """The metrics of every process's slices, in the same order everywhere."""
        return list(metrics)

    def clip(self, parameters: Sequence[Tensor], limit: float | None) -> float:
        """Scale the gradients down to the norm `limit`; their norm before."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit))

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every tensor whole and contiguous, on rank 0; empty elsewhere."""
        return {name: value.detach().contiguous() for name, value in tensors.items()}

    @contextmanager
    def leading(self, command: dict[str, Any]) -> Generator[None]:
        """On rank 0: let every other process hear `command`, and do the same inside.

        One command at a time: another thread waits, so that all processes meet the same exchanges in the same order.
        """
        yield

    def hear(self) -> dict[str, Any]:
        """On the others: the next command of rank 0."""
        raise TrainingError("trainer: one process alone has nobody to hear from")

    def fill(self, target: Tensor, value: Tensor) -> None:
        """Write the whole tensor `value` into `target`, which may be divided."""
        target.copy_(value)

    def like(self, target: Tensor, value: Tensor) -> Tensor:
        """The whole tensor `value` divided as `target` is, where the shapes agree."""
        return value
