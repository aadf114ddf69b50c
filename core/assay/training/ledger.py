"""Metrics of one batch, gathered over its slices and its optimizer steps.

Losses and objectives report shares: the numbers of a step's slices add up. A name that ends in `_max` or `_min` is
joined by maximum or minimum instead. Over several optimizer steps of one batch, sums become means per step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from assay.contracts.tensors import Forward, TrainBatch


class Ledger:
    """Numbers of one batch."""

    def __init__(self) -> None:
        """An empty ledger."""
        self.facts: dict[str, float] = {}
        """Numbers of the whole batch, reported as they are."""
        self._sums: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._steps = 0

    @property
    def started(self) -> bool:
        """Whether an optimizer step of this batch was made."""
        return self._steps > 0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the shares of one slice."""
        for name, value in metrics.items():
            if name.endswith("_max"):
                self._ends[name] = max(value, self._ends.get(name, value))
            elif name.endswith("_min"):
                self._ends[name] = min(value, self._ends.get(name, value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value

    def close_step(self, *, moved: bool) -> None:
        """End one optimizer step; `moved` tells whether there was a gradient to follow."""
        self._steps += 1
        name = "updates" if moved else "skipped_updates"
        self.facts[name] = self.facts.get(name, 0.0) + 1

    def metrics(self) -> dict[str, float]:
        """Everything so far."""
        means = {name: value / max(self._steps, 1) for name, value in self._sums.items()}
        return {**means, **self._ends, **self.facts}


def token_metrics(piece: TrainBatch, forward: Forward) -> dict[str, float]:
    """A slice's shares of the entropy and of the mean distance |logp_old - logp_gen|, and its largest distance."""
    with torch.no_grad():
        total = piece.denominators.tokens
        if not total:
            return {}
        found = {"entropy": float((forward.entropy * piece.mask).sum()) / total}
        if piece.logp_gen is not None:
            old = forward.logp if piece.logp_old is None else piece.logp_old
            gap = ((old - piece.logp_gen) * piece.mask).abs()
            found["logp_diff_mean"] = float(gap.sum()) / total
            found["logp_diff_max"] = float(gap.max())
        return found
