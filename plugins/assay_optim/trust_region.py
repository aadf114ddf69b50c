"""Trust regions: what the ratio may do to the gradient. Each gives A x S with graph and the detached weight w.

The gradient of every form is A w grad logp (algorithms of one table differ only in w). For sequence ratios w is per
token of its own response: the aggregation divides by the length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.component import Options
from assay.protocols import Needs, Ratios, Surrogate
from assay_optim.masked import needed

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import Forward, TrainBatch

PROBABILITY_GAP = 1e-8
"""Added to 1 - p where it is divided by (the authors' constant)."""
REST_FLOOR = 1e-12
"""Least mass of the bucket of all tokens beyond the top k."""


class NoTrustRegion(Options):
    """Plain importance sampling, A rho; A logp where the ratio is `none` (REINFORCE, RLOO, Kimi)."""

    def surrogate(self, advantage: Tensor, ratios: Ratios, batch: TrainBatch, forward: Forward) -> Surrogate:
        """Nothing is cut."""
        value = advantage * (ratios.logp if ratios.plain else ratios.rho)
        return Surrogate(value, ratios.rho.detach(), batch.mask < 0)


class Clip(Options):
    """min(A rho, A clip(rho, 1 - low, 1 + high)) (PPO, arXiv 1707.06347; clip-higher: DAPO, 2503.14476)."""

    low: float = Field(default=0.2, ge=0.0)
    """How far below 1 the ratio counts."""
    high: float = Field(default=0.2, ge=0.0)
    """How far above 1 the ratio counts."""
    dual: float | None = Field(default=None, gt=1.0)
    """Dual clip c: where A < 0 the surrogate is at least c A (arXiv 1912.09729; usual value 3); None for off."""

    def surrogate(self, advantage: Tensor, ratios: Ratios, batch: TrainBatch, forward: Forward) -> Surrogate:
        """The pessimistic bound; no gradient where the ratio left the region in the advantage's direction."""
        rho = ratios.rho
        value = (advantage * rho).minimum(advantage * rho.clamp(1 - self.low, 1 + self.high))
        clipped = ((advantage > 0) & (rho > 1 + self.high)) | ((advantage < 0) & (rho < 1 - self.low))
        if self.dual is not None:
            far = (advantage < 0) & (rho > self.dual)
            value = value.maximum(self.dual * advantage).where(advantage < 0, value)
            clipped = clipped | far
        return Surrogate(value, rho.detach().where(clipped.logical_not(), 0.0), clipped)


class Truncate(Options):
    """A sg(min(rho, cap)) logp: the weight is cut, and every token keeps its gradient (CISPO, arXiv 2506.13585).

    `cap` is absolute (TRL's `epsilon_high`; verl and slime use 1 + epsilon_high). MiniMax does not print its value;
    ScaleRL (2510.13786) uses 5 and finds 4 to 8 equal.
    """

    cap: float = Field(default=5.0, gt=0.0)
    """Largest weight."""

    def surrogate(self, advantage: Tensor, ratios: Ratios, batch: TrainBatch, forward: Forward) -> Surrogate:
        """The weighted log-prob."""
        weight = ratios.rho.detach().clamp(max=self.cap)
        return Surrogate(advantage * weight * ratios.logp, weight, ratios.rho.detach() > self.cap)


class DivergenceMask(Options):
    """A sg(min(rho, cap)) M logp, M = 0 where p has moved too far from q in A's direction (DPPO, arXiv 2602.04879).

    p = exp(logp), q = exp(denominator), by the recipe the sampler's. Binary: of the event "this token". Top-k: of the
    sampler's k likeliest tokens and one bucket for the rest. Dropped is what is strictly beyond `delta`.
    """

    divergence: Literal["tv", "kl"] = "tv"
    """Total variation, or KL(q, p) (binary) and KL(P, Q) with P the current policy (top-k), as in the authors' code."""
    delta: float | None = Field(default=None, gt=0.0)
    """Largest divergence; None for 0.15 (tv) and 0.05 (kl)."""
    cap: float = Field(default=20.0, gt=0.0)
    """Largest weight (verl 20, authors 10)."""
    topk: int = Field(default=0, ge=0)
    """k of the top-k form (about 20, not confirmed); 0 for the binary form."""

    @property
    def needs(self) -> Needs:
        """The sampler's top-k log-probs where k > 0."""
        return Needs(logp_old=False, topk=self.topk)

    def surrogate(self, advantage: Tensor, ratios: Ratios, batch: TrainBatch, forward: Forward) -> Surrogate:
        """The weighted log-prob of the tokens that are kept."""
        p, q = ratios.logp.detach().exp(), ratios.denominator.exp()
        limit = self.delta if self.delta is not None else (0.15 if self.divergence == "tv" else 0.05)
        away = ((advantage > 0) & (p > q)) | ((advantage <= 0) & (p < q))
        dropped = away & (self._divergence(p, q, batch, forward) > limit)
        weight = ratios.rho.detach().clamp(max=self.cap).where(dropped.logical_not(), 0.0)
        return Surrogate(advantage * weight * ratios.logp, weight, dropped)

    def _divergence(self, p: Tensor, q: Tensor, batch: TrainBatch, forward: Forward) -> Tensor:
        if self.topk:
            current = needed(forward.topk, "topk", "divergence_mask").detach().exp()
            sampler = needed(batch.topk_gen, "topk_gen", "divergence_mask").exp()
            return topk_divergence(current, sampler, self.divergence)
        return binary_divergence(p, q, self.divergence)


def binary_divergence(p: Tensor, q: Tensor, kind: Literal["tv", "kl"]) -> Tensor:
    """|p - q|, or q log(q / p) + (1 - q) log((1 - q + 1e-8) / (1 - p + 1e-8)), elementwise on probabilities."""
    if kind == "tv":
        return (p - q).abs()
    rest = (1 - q) * ((1 - q + PROBABILITY_GAP) / (1 - p + PROBABILITY_GAP)).log()
    return q * (q.clamp(min=REST_FLOOR) / p.clamp(min=REST_FLOOR)).log() + rest


def topk_divergence(p: Tensor, q: Tensor, kind: Literal["tv", "kl"]) -> Tensor:
    """0.5 sum |P - Q|, or sum P log(P / Q), over k tokens (last dimension) and one bucket for all others."""
    rest_p = (1 - p.sum(dim=-1)).clamp(min=REST_FLOOR)
    rest_q = (1 - q.sum(dim=-1)).clamp(min=REST_FLOOR)
    if kind == "tv":
        return 0.5 * ((p - q).abs().sum(dim=-1) + (rest_p - rest_q).abs())
    inside = p * (p.clamp(min=REST_FLOOR) / q.clamp(min=REST_FLOOR)).log()
    return inside.sum(dim=-1) + rest_p * (rest_p / rest_q).log()
