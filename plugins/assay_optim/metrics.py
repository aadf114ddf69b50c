"""What an update tells of itself. All numbers are detached; those of slices are shares that add up over a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay_optim.masked import ZERO_STD, group_moments, masked_sum, over_groups
from assay_optim.regularisers import kl_sample

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import Forward, TrainBatch
    from assay.protocols import Ratios, Surrogate

QUANTILES = {"ratio_p01": 0.01, "ratio_p50": 0.5, "ratio_p99": 0.99}


def of_batch(batch: TrainBatch, raw: Tensor) -> dict[str, float]:
    """Numbers of `prepare`, once per batch: rewards before and after shaping, spread, what is masked.

    `zero_variance_share`: share of groups whose rewards are all equal. `advantage_std`: over unmasked tokens.
    """
    valid = raw.isnan().logical_not()
    weight = 1.0 / over_groups(valid.double(), batch.group).clamp(min=1)
    groups = float((weight * valid).sum())
    moments = group_moments(raw, batch.group)
    flat = float((weight * (valid & (moments.std < ZERO_STD))).sum())
    single = float((weight * (valid & (moments.count == 1))).sum())
    tokens = batch.mask > 0
    found = {
        "reward_mean": float(raw.nanmean()) if groups else 0.0,
        "shaped_reward_mean": float(batch.reward.nanmean()) if bool(batch.reward.isnan().logical_not().any()) else 0.0,
        "zero_variance_share": flat / groups if groups else 0.0,
        "groups_of_one": single,
        "masked_rows": float(valid.logical_not().sum()),
        "truncated_share": float(batch.truncated.double().mean()) if len(raw) else 0.0,
        "trained_rows": batch.denominators.rows,
        "trained_tokens": batch.denominators.tokens,
    }
    if batch.advantage is not None:
        dense = batch.advantage if batch.advantage.dim() == 2 else batch.advantage.unsqueeze(1).expand_as(batch.mask)
        values = dense[tokens].double()
        found["advantage_std"] = float(values.std()) if len(values) > 1 else 0.0
        found["advantage_abs_max"] = float(values.abs().max()) if len(values) else 0.0
    return found


def of_slice(
    batch: TrainBatch, ratios: Ratios, surrogate: Surrogate, advantage: Tensor, forward: Forward
) -> dict[str, float]:
    """Numbers of one slice's loss.

    `clip_fraction` (of tokens; `_high` where A > 0, `_low` where A < 0); `reflection_tokens`, the share of tokens that
    begin a reflection word, and `clip_fraction_reflection`, the share that are that and clipped (divide by the former
    for the clip share on them); `kl_old`: k3 estimate of the step against the ratio's denominator; `kl_ref`: k1 and k3
    against the reference per token, and k1 per response; ratio quantiles and `ess`, (sum w)^2 / (n sum w^2), are
    weighted by the slice's tokens.
    """
    mask, tokens = batch.mask, max(batch.denominators.tokens, 1.0)
    here = mask > 0

    def share(values: Tensor) -> float:
        return float(masked_sum(values.to(mask.dtype), mask)) / tokens

    found = {
        "clip_fraction": share(surrogate.clipped),
        "clip_fraction_high": share(surrogate.clipped & (advantage > 0)),
        "clip_fraction_low": share(surrogate.clipped & (advantage < 0)),
        "entropy": share(forward.entropy.detach()),
    }
    if (reflecting := batch.extra.get("reflection")) is not None:
        found["reflection_tokens"] = share(reflecting)
        found["clip_fraction_reflection"] = share(surrogate.clipped * reflecting)
    if not ratios.plain and bool(here.any()):
        found.update(_of_ratios(ratios, here, float(mask.sum()) / tokens))
        found["kl_old"] = share(kl_sample(ratios.logp.detach(), ratios.denominator, mask, "k3"))
        found["ratio_clamped"] = float((ratios.clamped & here).sum())
    if batch.logp_ref is not None:
        k1 = kl_sample(ratios.logp.detach(), batch.logp_ref, mask, "k1")
        found["kl_ref"] = share(kl_sample(ratios.logp.detach(), batch.logp_ref, mask, "k3"))
        found["kl_ref_k1"] = share(k1)
        found["kl_ref_sequence"] = float(masked_sum(k1, mask)) / max(batch.denominators.rows, 1.0)
    return found


def _of_ratios(ratios: Ratios, here: Tensor, part: float) -> dict[str, float]:
    rho = ratios.rho.detach()[here].double()
    found = {name: part * float(rho.quantile(level)) for name, level in QUANTILES.items()}
    found["ratio_max"] = float(rho.max())
    found["ess"] = part * float(rho.sum().square() / (len(rho) * rho.square().sum()))
    return found
