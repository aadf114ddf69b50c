"""Probability ratios: at which level, and against whose log-probs. The exponent is clamped to +-20."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from assay.component import Options
from assay.protocols import Needs, Ratios
from assay_optim.masked import needed, row_sums, zero_where_masked

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import Forward, TrainBatch

EXPONENT_LIMIT = 20.0


class NoRatio(Options):
    """No ratio: the surrogate is A logp, as in REINFORCE."""

    def ratios(self, batch: TrainBatch, forward: Forward) -> Ratios:
        """Ratios of 1."""
        logp = zero_where_masked(forward.logp, batch.mask)
        return Ratios(logp.detach() * 0.0 + 1.0, logp, logp.detach(), plain=True, clamped=batch.mask < 0)


class Denominator(Options):
    """Whose log-probs the current ones are compared with."""

    denominator: Literal["old", "gen"] = "old"
    """`old`: recomputed by the trainer before the first update of the batch; `gen`: reported by the sampler."""

    @property
    def needs(self) -> Needs:
        """The log-probs of the denominator."""
        return Needs(logp_old=self.denominator == "old", logp_gen=self.denominator == "gen")

    def compared(self, batch: TrainBatch, forward: Forward) -> tuple[Tensor, Tensor]:
        """(logp, denominator), both (N, T) and 0 where masked; without `logp_old` the detached current ones serve."""
        logp = zero_where_masked(forward.logp, batch.mask)
        if self.denominator == "gen":
            return logp, zero_where_masked(needed(batch.logp_gen, "logp_gen", "ratio"), batch.mask)
        if batch.logp_old is None:
            return logp, logp.detach()
        return logp, zero_where_masked(batch.logp_old, batch.mask)


class TokenRatio(Denominator):
    """rho_it = exp(logp_it - logp_denominator_it) (PPO, arXiv 1707.06347)."""

    def ratios(self, batch: TrainBatch, forward: Forward) -> Ratios:
        """One ratio per token."""
        logp, below = self.compared(batch, forward)
        return _ratios(logp - below, logp, below)


class SequenceRatio(Denominator):
    """s_i = exp(mean_t (logp - logp_denominator)), the same for all tokens of a response (GSPO, arXiv 2507.18071)."""

    def ratios(self, batch: TrainBatch, forward: Forward) -> Ratios:
        """One ratio per response, repeated over its tokens; an empty response counts one token."""
        logp, below = self.compared(batch, forward)
        return _ratios(_sequence_mean(logp - below, batch.mask), logp, below)


class SequenceTokenRatio(Denominator):
    """s_it = sg(s_i) exp(logp_it - sg(logp_it)) (GSPO-token): GSPO's value, gradients that may differ by token."""

    def ratios(self, batch: TrainBatch, forward: Forward) -> Ratios:
        """The sequence's ratio, with a token's own gradient."""
        logp, below = self.compared(batch, forward)
        mean = _sequence_mean(logp - below, batch.mask).detach()
        return _ratios(mean + logp - logp.detach(), logp, below)


class SequenceSumRatio(Denominator):
    """exp(sum_t (logp - logp_denominator)), the ratio of whole responses (TRL's RLOO loss; not the paper's RLOO)."""

    def ratios(self, batch: TrainBatch, forward: Forward) -> Ratios:
        """One ratio per response, repeated over its tokens."""
        logp, below = self.compared(batch, forward)
        total = row_sums(logp - below, batch.mask).unsqueeze(1).expand_as(logp)
        return _ratios(total, logp, below)


def _sequence_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    mean = row_sums(log_ratio, mask) / mask.sum(dim=1).clamp(min=1)
    return mean.unsqueeze(1).expand_as(log_ratio)


def _ratios(log_ratio: Tensor, logp: Tensor, below: Tensor) -> Ratios:
    limited = log_ratio.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    clamped = log_ratio.detach().abs() > EXPONENT_LIMIT
    return Ratios(limited.exp(), logp, below, plain=False, clamped=clamped)
