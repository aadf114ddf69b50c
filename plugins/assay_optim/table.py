"""Cells of the composition table, made from a preset's own data and the needs of its parts."""

from __future__ import annotations

from assay.protocols import Needs
from assay_optim.compose import needs_of
from assay_optim.options import CompositionOptions, PartSpec
from assay_optim.presets import Preset
from assay_optim.shaping import DpoTokenReward

COLUMNS = (
    "advantage",
    "ratio",
    "trust region",
    "masking",
    "aggregation",
    "KL",
    "batch rule",
    "models resident",
    "reward model",
    "critic",
    "online sampling",
    "source",
)
MASKING = {"clip": "clipped tokens", "divergence_mask": "far tokens"}
KL_PARTS = {"kl", "squared_hinge_kl"}


def cells(preset: Preset, options: CompositionOptions) -> dict[str, str]:
    """Column to text for one preset."""
    needs = needs_of(options)
    rules = [_name(rule) for rule in options.batch_rules]
    if options.task_sampler is not None:
        rules.append(_name(options.task_sampler))
    rules += [_name(shaper) for shaper in options.shaping if shaper.use != "kl_in_reward"]
    masking = [MASKING[options.trust_region.use]] if options.trust_region.use in MASKING else []
    masking += ["truncated" for rule in options.batch_rules if rule.use == "mask_truncated"]
    return {
        "advantage": _advantage(options),
        "ratio": _ratio(options),
        "trust region": _name(options.trust_region),
        "masking": ", ".join(masking) or "-",
        "aggregation": _name(options.aggregation),
        "KL": _kl(options),
        "batch rule": ", ".join(rules) or "-",
        "models resident": _models(needs, options),
        "reward model": preset.reward_model or ("process rewards" if needs.token_reward else "-"),
        "critic": "yes" if needs.values else "no",
        "online sampling": "yes",
        "source": preset.source,
    }


def _advantage(options: CompositionOptions) -> str:
    if options.estimator is not None:
        return _name(options.estimator)
    virtual = "+virtual" if options.virtual_samples else ""
    names = [
        spec.use if spec else default
        for spec, default in ((options.baseline, "none"), (options.scale, "none"), (options.credit, "broadcast"))
    ]
    return f"{names[0]}{virtual} / {names[1]} / {names[2]}"


def _ratio(options: CompositionOptions) -> str:
    if options.ratio.use == "none":
        return "none"
    return f"{options.ratio.use}:{options.ratio.options.get('denominator', 'old')}"


def _kl(options: CompositionOptions) -> str:
    found = [_name(spec) for spec in options.regularisers if spec.use in KL_PARTS]
    found += [
        f"k1 in reward {spec.options.get('beta', '')}".strip() for spec in options.shaping if spec.use == "kl_in_reward"
    ]
    found += [
        f"k1 in reward {DpoTokenReward(**spec.options).b2:g}"
        for spec in options.shaping
        if spec.use == "dpo_token_reward"
    ]
    found += ["in the advantage"] if options.estimator is not None and options.estimator.use == "kimi" else []
    return ", ".join(found) or "-"


def _models(needs: Needs, options: CompositionOptions) -> str:
    models = ["policy"]
    models += ["reference"] if needs.logp_ref else []
    models += ["critic"] if needs.values else []
    models += ["cost critic"] if options.estimator is not None and options.estimator.use == "rectified" else []
    return ", ".join([*models, *needs.models])


def _name(spec: PartSpec) -> str:
    values = [f"{value:g}" if isinstance(value, float) else str(value) for value in spec.options.values()]
    return " ".join([spec.use, *values])
