"""Aggregations: how token losses become one number. loss = sum(weights x mask x l), n = rows with tokens.

All denominators are global numbers that come with the batch, so that any split into slices gives the same loss.
check: l = [[1, 2, 3], [4]] gives 2.5, 3.0, 5.0, and 0.625 for constant(8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from assay.component import Options
from assay.protocols import Needs, Sidecar
from assay_optim.masked import group_moments, group_table, needed, with_extra

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch
    from assay_optim.sidecars.learnable import LearnableScalar


class TokenMean(Options):
    """sum(l mask) / sum(mask), over the whole batch (DAPO); a mean per micro-batch is another estimator."""

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, 1): 1 / tokens."""
        return _column(batch, 1.0 / max(batch.denominators.tokens, 1.0))


class SequenceMeanTokenMean(Options):
    """Mean over the n rows of each row's mean (GRPO)."""

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, 1): 1 / (n len_i)."""
        lengths = batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
        return 1.0 / (lengths * max(batch.denominators.rows, 1.0))


class SequenceMeanTokenSum(Options):
    """sum(l mask) / n (REINFORCE, RLOO)."""

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, 1): 1 / n."""
        return _column(batch, 1.0 / max(batch.denominators.rows, 1.0))


class Constant(Options):
    """sum(l mask) / (n L) with a fixed L, never the padded length of the batch (Dr. GRPO, arXiv 2503.20783)."""

    length: int | None = Field(default=None, ge=1)
    """L; None for the length limit of a response."""

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, 1): 1 / (n L)."""
        length = self.length if self.length is not None else batch.denominators.max_tokens
        return _column(batch, 1.0 / (max(batch.denominators.rows, 1.0) * max(length, 1)))


class PromptMean(Options):
    """Mean over prompts of sum(l mask over its rows) / sum(mask over its rows) (ScaleRL; DAPO's printed objective)."""

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, 1): 1 / (prompts x tokens of the row's prompt)."""
        tokens = batch.denominators.group_tokens.clamp(min=1).unsqueeze(1)
        return 1.0 / (tokens * max(batch.denominators.groups, 1.0))


class LengthSoftmaxOptions(Options):
    """lambda-GRPO (arXiv 2510.06870): a learned preference over the lengths of a group's responses."""

    slope: float = Field(default=1.0 / 9.0, ge=0.0)
    """r in h = max(1 + r z, 1e-6) (1/9 by a third party's account)."""
    start: float = 0.0
    """lambda before training; 0 is DAPO's token mean, above it favours long responses."""
    learning_rate: float | None = Field(default=0.1, gt=0.0)
    """Learning rate of lambda (about 0.1, not confirmed); None for that of the policy."""

    @property
    def needs(self) -> Needs:
        """Groups of two at least."""
        return Needs(logp_old=False, group_size_min=2)


@dataclass
class LengthSoftmax:
    """loss = sum_i f_i sum_t l_it / sum_i len_i with f = G softmax_g(h^lambda), h = max(1 + r z, 1e-6).

    z_i = (len_i - mean_g) / std_g with the population's deviation; equal lengths give f = 1. The gradient of lambda
    flows through f only. (1 / len^lambda, found under the same name, is another method.)
    """

    slope: float
    exponent: LearnableScalar

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """Lambda."""
        return (self.exponent,)

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """The batch with h of the own row (N,) and of the row's group (N, 1, K), -1 where there is no response."""
        lengths = batch.mask.sum(dim=1)
        filled = lengths > 0
        nan = lengths.new_full((), float("nan"))
        moments = group_moments(lengths.where(filled, nan), batch.group)
        population = moments.std * ((moments.count - 1).clamp(min=0) / moments.count.clamp(min=1)).sqrt()
        z = ((lengths - moments.mean) / population.where(population > 0, 1.0)).where(population > 0, 0.0)
        height = (1 + self.slope * z).clamp(min=1e-6).to(lengths.dtype).where(filled, -1.0)
        heights = group_table(height, batch.group, fill=-1.0).unsqueeze(1)
        return with_extra(batch, length_height=height, length_heights=heights)

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, 1): f_i / tokens, with the graph of lambda."""
        table = needed(batch.extra.get("length_heights"), "length_heights", "length_softmax").squeeze(1)
        own = needed(batch.extra.get("length_height"), "length_height", "length_softmax")
        exponent = self.exponent.value.to(table.device)
        present = table > 0
        powers = (table.where(present, 1.0) ** exponent).where(present, -float("inf"))
        size = present.sum(dim=1).clamp(min=1)
        share = (own.clamp(min=1e-6) ** exponent - powers.logsumexp(dim=1)).exp().where(own > 0, 0.0)
        return (size * share / max(batch.denominators.tokens, 1.0)).unsqueeze(1)


def build_length_softmax(options: LengthSoftmaxOptions) -> LengthSoftmax:
    """The aggregation with a fresh lambda."""
    from assay_optim.sidecars.learnable import LearnableScalar

    exponent = LearnableScalar("length_lambda", options.start, learning_rate=options.learning_rate)
    return LengthSoftmax(options.slope, exponent)


def _column(batch: TrainBatch, value: float) -> Tensor:
    return batch.mask.new_full((len(batch.mask), 1), value)
