"""Terms added to the loss: KL to the reference, entropy, likelihood, a KL constraint, the critic's loss.

KL samples with d = logp - logp_ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1 (Schulman, "Approximating KL
divergence"). As a *loss* k3's gradient is biased for the reverse KL and k1's has expectation 0; k2's is right
on-policy, and `k3+` has the value of k3 with the gradient of k2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from assay.component import Options
from assay.contracts.tensors import LossReport
from assay.protocols import Needs, Sidecar
from assay_optim.masked import masked_sum, needed, with_extra, zero_where_masked
from assay_optim.sidecars.scalars import AdaptiveKL

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import Forward, TrainBatch

KLSample = Literal["k1", "k2", "k3", "k3+"]
LOGP_FLOOR = -100.0
"""Log-probs below this (a masked vocabulary) count as this in a KL."""
KL_NOISE = 1e-5
"""Log-ratios up to this are rounding: a policy that equals its reference is pulled nowhere, not by an AdamW step of
noise where the batch has no other gradient."""


class Term(Options):
    """A regulariser that needs nothing of the whole batch."""

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """The batch itself."""
        return batch

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """The batch itself."""
        return batch


class AdaptiveOptions(Options):
    """A controller that keeps the KL near a target (Ziegler et al., arXiv 1909.08593)."""

    target: float = Field(default=6.0, gt=0.0)
    """KL per response that is aimed at."""
    horizon: float = Field(default=10000.0, gt=0.0)
    """Responses over which the coefficient adapts."""


class KLOptions(Options):
    """KL to the reference as a term of the loss, inside the same average as the policy loss."""

    sample: KLSample = "k3"
    """Which estimate."""
    beta: float = Field(default=0.04, ge=0.0)
    """Weight (DeepSeekMath 0.04)."""
    corrected: bool = False
    """Multiply by the token's ratio to `logp_old`, which makes the gradient that of the reverse KL (DeepSeek-V3.2,
    arXiv 2512.02556; TRL's default since 1.x)."""
    adaptive: AdaptiveOptions | None = None
    """Let beta follow a target; None keeps it."""

    @property
    def needs(self) -> Needs:
        """The reference's log-probs, unless beta is 0 for good."""
        return Needs(logp_old=self.corrected, logp_ref=self.beta > 0)


@dataclass
class KL:
    """beta x Agg[k(logp, logp_ref)]."""

    name: ClassVar[str] = "kl"
    sample: KLSample
    beta: float
    corrected: bool = False
    controller: AdaptiveKL | None = None

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """The controller, where there is one."""
        return () if self.controller is None else (self.controller,)

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """The batch itself."""
        return batch

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """The batch itself."""
        return batch

    def penalty(self, batch: TrainBatch, forward: Forward, weights: Tensor) -> LossReport:
        """This slice's share."""
        beta = self.beta if self.controller is None else self.controller.beta
        if beta == 0:
            return LossReport(masked_sum(forward.logp, batch.mask) * 0.0)
        reference = needed(batch.logp_ref, "logp_ref", "kl")
        samples = kl_sample(forward.logp, reference, batch.mask, self.sample)
        if self.corrected:
            old = forward.logp.detach() if batch.logp_old is None else batch.logp_old
            drift = zero_where_masked(forward.logp, batch.mask) - zero_where_masked(old, batch.mask)
            samples = samples * drift.clamp(-20.0, 20.0).exp()
        loss = masked_sum(weights * samples, batch.mask)
        return LossReport(beta * loss, {"kl_loss": float(loss.detach())})


def build_kl(options: KLOptions) -> KL:
    """The KL term, with a fresh controller where asked for."""
    adaptive = options.adaptive
    controller = AdaptiveKL("kl", options.beta, adaptive.target, adaptive.horizon) if adaptive else None
    return KL(options.sample, options.beta, options.corrected, controller)


def kl_sample(logp: Tensor, reference: Tensor, mask: Tensor, sample: KLSample) -> Tensor:
    """(N, T) one-sample estimates of KL(policy || reference), 0 where masked.

    check: d = 0.1 gives k1 0.1, k2 0.005, k3 0.004837; d = -0.2 gives -0.2, 0.02, 0.021403.
    """
    floor = logp.new_full((), LOGP_FLOOR)
    d = zero_where_masked(logp.maximum(floor), mask) - zero_where_masked(reference.maximum(floor), mask)
    if sample == "k1":
        return d
    d = d.where(d.abs() > KL_NOISE, 0.0)
    if sample == "k2":
        return d.square() / 2
    k3 = (-d).clamp(-20.0, 20.0).exp() + d - 1
    if sample == "k3":
        return k3
    k2 = d.square() / 2
    return k2 + (k3 - k2).detach()


class Entropy(Term):
    """-coefficient x Agg[entropy]: a bonus for undecided tokens."""

    name: ClassVar[str] = "entropy"
    coefficient: float = Field(default=0.001)
    """Weight of the bonus; negative for a penalty."""

    @property
    def needs(self) -> Needs:
        """Entropy with graph."""
        return Needs(logp_old=False, entropy_grad=True)

    def penalty(self, batch: TrainBatch, forward: Forward, weights: Tensor) -> LossReport:
        """This slice's share."""
        bonus = masked_sum(weights * forward.entropy, batch.mask)
        return LossReport(-self.coefficient * bonus, {"entropy_bonus": float(bonus.detach())})


class LikelihoodTerm(Term):
    """-beta x log-likelihood of good sequences (ExPO, arXiv 2507.02834; PPO-ptx; self-imitation).

    `extra`: texts that are no members of a group (explanations drawn with the answer shown, pretraining text), namely
    rollouts whose reward has the channel `nll` at 1; `set_apart` marks their tokens in `extra["nll_mask"]` (N, T).
    `correct`: the batch's own rows whose reward reaches `threshold`. check: mean logp -2, beta 0.04 gives 0.08.
    """

    name: ClassVar[str] = "nll_term"
    beta: float = Field(default=0.04, ge=0.0)
    """Weight (ExPO 0.04)."""
    rows: Literal["extra", "correct"] = "extra"
    """Which sequences."""
    threshold: float = 1.0
    """Least reward of a correct row, before shaping."""
    reduce: Literal["token_mean", "sequence_sum"] = "token_mean"
    """Mean over tokens, or sum over a sequence and mean over sequences (the paper does not say which)."""

    @property
    def needs(self) -> Needs:
        """Texts beside the groups, unless the batch's own rows serve."""
        return Needs(logp_old=False, set_apart=self.rows == "extra")

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """The batch with a weight (N, T) per likelihood token, global denominators inside."""
        if self.rows == "correct":
            marked = batch.mask * (batch.extra["raw_reward"] >= self.threshold).unsqueeze(1)
        else:
            marked = batch.extra.get("nll_mask", batch.mask * 0.0)
        count = marked.sum() if self.reduce == "token_mean" else (marked.sum(dim=1) > 0).sum()
        return with_extra(batch, nll_weight=marked / count.clamp(min=1))

    def penalty(self, batch: TrainBatch, forward: Forward, weights: Tensor) -> LossReport:
        """This slice's share."""
        share = needed(batch.extra.get("nll_weight"), "nll_weight", "nll_term")
        loss = -masked_sum(share * forward.logp, (share > 0).to(share.dtype))
        return LossReport(self.beta * loss, {"nll": float(loss.detach())})


class SquaredHingeKL(Term):
    """(beta / 2) max(KL(old, policy) - delta, 0)^2, the constraint of DisCO (arXiv 2505.12366).

    KL is the token mean over the whole batch of -x (`k1`) or -x + e^x - 1 (`k3`), x = logp - logp_old. The paper prints
    beta [.]^2; the authors' gradient is half of that, which this form has for beta = 1e3.
    check: KL 3e-4 gives 2e-5 and slope 0.2.
    """

    name: ClassVar[str] = "squared_hinge_kl"
    beta: float = Field(default=1e3, ge=0.0)
    """Weight."""
    delta: float = Field(default=1e-4, ge=0.0)
    """KL that costs nothing."""
    sample: Literal["k1", "k3"] = "k1"
    """Which estimate."""

    @property
    def needs(self) -> Needs:
        """Old log-probs, and the current ones of the whole batch."""
        return Needs(logp_old=True, batch_logp=True)

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """The batch with its KL, the same number in every row (N,)."""
        total = masked_sum(self._kl(batch, logp), batch.mask) / max(batch.denominators.tokens, 1.0)
        return with_extra(batch, constraint_kl=total.detach().expand(len(batch.mask)))

    def penalty(self, batch: TrainBatch, forward: Forward, weights: Tensor) -> LossReport:
        """This slice's share: slope x its part of the KL, shifted so that the shares add up to the penalty."""
        kl = needed(batch.extra.get("constraint_kl"), "the batch's KL (rescore)", self.name)[:1].sum()
        excess = (kl - self.delta).clamp(min=0)
        tokens = max(batch.denominators.tokens, 1.0)
        part = masked_sum(self._kl(batch, forward.logp), batch.mask) / tokens
        value = self.beta / 2 * excess.square() * (batch.mask.sum() / tokens)
        linear = self.beta * excess * part
        share = float(batch.mask.sum()) / tokens
        return LossReport(linear - linear.detach() + value, {"constraint_kl": float(kl) * share})

    def _kl(self, batch: TrainBatch, logp: Tensor) -> Tensor:
        old = logp.detach() if batch.logp_old is None else batch.logp_old
        x = zero_where_masked(logp, batch.mask) - zero_where_masked(old, batch.mask)
        return -x if self.sample == "k1" else -x + x.clamp(-20.0, 20.0).exp() - 1


class ValueLoss(Term):
    """c x 0.5 mean_t max((V - R)^2, (clip(V, V_old +- eps) - R)^2), token mean (PPO)."""

    name: ClassVar[str] = "value_loss"
    coefficient: float = Field(default=0.1, ge=0.0)
    """c."""
    clip: float | None = Field(default=0.2, gt=0.0)
    """eps; None for no clipping."""
    critic: str = "critic"
    """Which critic, by the name of its sidecar."""

    def penalty(self, batch: TrainBatch, forward: Forward, weights: Tensor) -> LossReport:
        """This slice's share."""
        first = self.critic == "critic"
        key = f"values_{self.critic}"
        new = needed(forward.values if first else forward.extra.get(key), "values", self.critic)
        old = needed(batch.values if first else batch.extra.get(key), "old values", self.critic)
        target = needed(batch.returns if first else batch.extra.get(f"returns_{self.critic}"), "returns", self.critic)
        error = (new - target).square()
        if self.clip is not None:
            near = old + (new - old).clamp(-self.clip, self.clip)
            error = error.maximum((near - target).square())
        loss = 0.5 * masked_sum(error, batch.mask) / max(batch.denominators.tokens, 1.0)
        return LossReport(self.coefficient * loss, {f"{self.critic}_loss": float(loss.detach())})
