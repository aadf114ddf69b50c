"""Every on-policy method as data: which part stands on which axis, with the published recipe's numbers.

A value marked *not confirmed* in its part's options is a config field like every other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Table = Mapping[str, Any]

GROUP: Table = {"baseline": "group_mean", "scale": "group_std", "credit": "broadcast"}
CRITIC: Table = {"baseline": "critic", "scale": "whiten_token", "credit": "gae"}
TOKEN_CLIP: Table = {"ratio": "token", "trust_region": {"use": "clip", "low": 0.2, "high": 0.2}}
CLIP_HIGHER: Table = {"ratio": "token", "trust_region": {"use": "clip", "low": 0.2, "high": 0.28}}
GSPO_CLIP: Table = {"use": "clip", "low": 3e-4, "high": 4e-4}
GRPO: Table = {
    **GROUP,
    **TOKEN_CLIP,
    "aggregation": "seq_mean_token_mean",
    "regularisers": [{"use": "kl", "sample": "k3", "beta": 0.04}],
}
REFILL: Table = {"use": "zero_variance", "action": "refill"}
HINGE: Table = {"use": "squared_hinge_kl", "beta": 1e3, "delta": 1e-4}
PPO: Table = {
    **CRITIC,
    **TOKEN_CLIP,
    "aggregation": "token_mean",
    "shaping": [{"use": "kl_in_reward", "beta": 0.05}],
}
DPPO: Table = {
    "baseline": "group_mean",
    "ratio": {"use": "token", "denominator": "gen"},
    "aggregation": "constant",
}


@dataclass(frozen=True)
class Preset:
    """One row of the composition table."""

    name: str
    summary: str
    source: str
    parts: Table
    """Axis to part, in the form of `CompositionOptions`."""
    reward_model: str = ""
    """What judges beside a verifier, for the table: a reward model, a first-error judge."""


PRESETS: tuple[Preset, ...] = (
    Preset(
        "reinforce",
        "REINFORCE with a moving-average baseline",
        "Williams 1992",
        {"baseline": "ema", "aggregation": "seq_mean_token_sum"},
    ),
    Preset(
        "reinforce_batch_mean",
        "REINFORCE with the batch's mean as baseline",
        "Williams 1992",
        {"baseline": "batch_mean", "aggregation": "seq_mean_token_sum"},
    ),
    Preset("ppo", "PPO with a critic, GAE and a KL penalty in the reward", "arXiv 1707.06347", PPO),
    Preset("grpo", "Group-relative advantages, clipped token ratio, k3 KL", "arXiv 2402.03300", GRPO),
    Preset(
        "rloo",
        "REINFORCE with the leave-one-out baseline",
        "arXiv 2402.14740",
        {
            "baseline": "group_loo",
            "aggregation": "seq_mean_token_sum",
            "shaping": [{"use": "kl_in_reward", "beta": 0.05}],
        },
    ),
    Preset(
        "dr_grpo",
        "GRPO without its length and difficulty biases",
        "arXiv 2503.20783",
        {"baseline": "group_mean", **TOKEN_CLIP, "aggregation": "constant"},
    ),
    Preset(
        "dapo",
        "Clip-higher, dynamic sampling by refill, token loss, soft overlong penalty",
        "arXiv 2503.14476",
        {**GROUP, **CLIP_HIGHER, "aggregation": "token_mean", "batch_rules": [REFILL], "shaping": ["overlong"]},
    ),
    Preset(
        "cispo",
        "Truncated importance weights; every token keeps its gradient",
        "arXiv 2506.13585",
        {
            **GROUP,
            "ratio": "token",
            "trust_region": {"use": "truncate", "cap": 5.0},
            "aggregation": "token_mean",
            "batch_rules": [REFILL],
            "shaping": ["overlong"],
        },
    ),
    Preset(
        "gspo",
        "Sequence-level ratio and clip",
        "arXiv 2507.18071",
        {**GROUP, "ratio": "sequence", "trust_region": GSPO_CLIP, "aggregation": "seq_mean_token_mean"},
    ),
    Preset(
        "gspo_token",
        "GSPO whose advantages may vary by token",
        "arXiv 2507.18071",
        {**GROUP, "ratio": "sequence_token", "trust_region": GSPO_CLIP, "aggregation": "seq_mean_token_mean"},
    ),
    Preset(
        "maxrl",
        "Maximum-likelihood gradient: divided by the group's success rate",
        "arXiv 2602.02710",
        {"baseline": "group_mean", "scale": "group_mean", **TOKEN_CLIP, "aggregation": "token_mean"},
    ),
    Preset(
        "maxrl_t",
        "MaxRL's expansion of order T",
        "arXiv 2602.02710",
        {"estimator": {"use": "maclaurin", "order": 8}, **TOKEN_CLIP, "aggregation": "seq_mean_token_sum"},
    ),
    Preset(
        "dppo",
        "Divergence mask, binary total variation, against the sampler",
        "arXiv 2602.04879",
        {**DPPO, "trust_region": {"use": "divergence_mask", "divergence": "tv"}},
    ),
    Preset(
        "dppo_kl",
        "Divergence mask, binary KL",
        "arXiv 2602.04879",
        {**DPPO, "trust_region": {"use": "divergence_mask", "divergence": "kl"}},
    ),
    Preset(
        "dppo_topk",
        "Divergence mask, top-k total variation",
        "arXiv 2602.04879",
        {**DPPO, "trust_region": {"use": "divergence_mask", "divergence": "tv", "topk": 20}},
    ),
    Preset(
        "dppo_topk_kl",
        "Divergence mask, top-k KL",
        "arXiv 2602.04879",
        {**DPPO, "trust_region": {"use": "divergence_mask", "divergence": "kl", "topk": 20}},
    ),
    Preset(
        "scalerl",
        "Batch-level scale, prompt mean, truncated weights against the sampler, solved tasks retired",
        "arXiv 2510.13786",
        {
            "baseline": "group_mean",
            "scale": "batch_std",
            "ratio": {"use": "token", "denominator": "gen"},
            "trust_region": {"use": "truncate", "cap": 5.0},
            "aggregation": "prompt_mean",
            "batch_rules": [{"use": "zero_variance", "action": "drop"}],
            "task_sampler": {"use": "no_positive_resampling", "threshold": 0.9},
        },
    ),
    Preset(
        "lambda_grpo",
        "A learned preference over response lengths",
        "arXiv 2510.06870",
        {**GROUP, **CLIP_HIGHER, "aggregation": "length_softmax"},
    ),
    Preset(
        "reinforce_pp",
        "Returns whitened over the batch, clip, KL in the reward; one response per prompt suffices",
        "arXiv 2501.03262",
        {
            "scale": "whiten_token",
            "credit": "return_to_go",
            **TOKEN_CLIP,
            "aggregation": "token_mean",
            "shaping": [{"use": "kl_in_reward", "beta": 0.01}],
        },
    ),
    Preset(
        "reinforce_pp_baseline",
        "Group mean, then whitened over the batch, k2 KL",
        "arXiv 2501.03262",
        {
            "baseline": "group_mean",
            "scale": "whiten_token",
            **TOKEN_CLIP,
            "aggregation": "token_mean",
            "regularisers": [{"use": "kl", "sample": "k2", "beta": 0.01}],
        },
    ),
    Preset(
        "disco",
        "Discriminative: log-likelihood score, hard negatives, KL constraint",
        "arXiv 2505.12366",
        {
            "estimator": {"use": "disco", "score": "log_likelihood"},
            "aggregation": "seq_mean_token_mean",
            "regularisers": [HINGE],
        },
    ),
    Preset(
        "disco_ratio",
        "Discriminative: likelihood-ratio score, hard negatives, KL constraint",
        "arXiv 2505.12366",
        {
            "estimator": {"use": "disco", "score": "ratio"},
            "ratio": "token",
            "aggregation": "seq_mean_token_mean",
            "regularisers": [HINGE],
        },
    ),
    Preset(
        "sgpo",
        "Stepwise guided: wrong answers graded by their correct prefix",
        "arXiv 2505.11595",
        {**GRPO, "shaping": ["recolour"]},
        reward_model="first-error judge",
    ),
    Preset(
        "ngrpo",
        "A virtual success in every group: all-wrong groups push away",
        "NGRPO (authors' code)",
        {
            **GROUP,
            "virtual_samples": {"count": 1, "value": 1.0},
            "ratio": "token",
            "trust_region": {"use": "clip", "low": 0.16, "high": 0.24},
            "aggregation": "token_mean",
            "batch_rules": ["all_correct"],
        },
    ),
    Preset(
        "off_policy_grpo",
        "GRPO on samples of an older policy",
        "arXiv 2505.22257",
        {
            **GRPO,
            "ratio": {"use": "token", "denominator": "gen"},
            "batch_rules": ["zero_variance", {"use": "staleness", "window": 10}],
        },
    ),
    Preset(
        "expo",
        "GRPO plus the likelihood of answer-conditioned explanations",
        "arXiv 2507.02834",
        {**GRPO, "regularisers": [*GRPO["regularisers"], {"use": "nll_term", "beta": 0.04}]},
    ),
    Preset(
        "kimi",
        "Squared regression on the log-ratio to a reference that moves each iteration",
        "arXiv 2501.12599",
        {
            "estimator": "kimi",
            "aggregation": "seq_mean_token_sum",
            "shaping": [{"use": "length_reward", "warmup_batches": 100}],
            "task_sampler": "curriculum",
        },
    ),
    Preset(
        "online_dpo",
        "DPO on the best and worst response of each group",
        "arXiv 2405.07863",
        {"estimator": "best_worst", "aggregation": "seq_mean_token_sum"},
        reward_model="verifier or reward model",
    ),
    Preset(
        "rto",
        "PPO on token rewards of a DPO model",
        "arXiv 2404.18922",
        {**PPO, "shaping": ["reward_clip", "dpo_token_reward"]},
        reward_model="reward model, DPO model",
    ),
    Preset(
        "prime",
        "Outcome and implicit process rewards, leave-one-out each, returns whitened",
        "arXiv 2502.01456",
        {
            "baseline": "group_loo_per_source",
            "scale": "whiten_token",
            "credit": "return_to_go",
            **TOKEN_CLIP,
            "aggregation": "token_mean",
            "shaping": ["process_reward"],
            "batch_rules": [{"use": "accuracy_band", "low": 0.2, "high": 0.8}],
        },
        reward_model="online implicit process reward model",
    ),
    Preset(
        "repo",
        "PPO under a cost limit for every prompt (rectified)",
        "arXiv 2410.19933",
        {
            "estimator": "rectified",
            **TOKEN_CLIP,
            "aggregation": "token_mean",
            "shaping": [{"use": "kl_in_reward", "beta": 0.05}],
        },
        reward_model="cost model",
    ),
    Preset(
        "tulu3",
        "PPO on verifiable rewards, -10 for a response that does not end",
        "arXiv 2411.15124",
        {**PPO, "shaping": [{"use": "eos_penalty", "value": -10.0}, {"use": "kl_in_reward", "beta": 0.05}]},
    ),
    Preset(
        "tulu3_1",
        "GRPO on verifiable rewards",
        "Tulu 3.1 release notes",
        {
            **GROUP,
            **TOKEN_CLIP,
            "aggregation": "token_mean",
            "regularisers": [{"use": "kl", "sample": "k3", "beta": 0.01}],
        },
    ),
    Preset(
        "rlvr_world",
        "GRPO on prediction metrics of world models",
        "arXiv 2505.13934",
        {
            **GROUP,
            **TOKEN_CLIP,
            "aggregation": "token_mean",
            "regularisers": [{"use": "kl", "sample": "k3", "beta": 0.001}],
        },
    ),
)
"""One preset per row of the composition table, and the variants of a row."""
