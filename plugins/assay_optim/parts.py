"""The table of built-in parts: axis and name to options and builder. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from assay.component import Axis, Part
from assay_optim import (
    aggregation,
    baselines,
    batch_rules,
    credit,
    estimators,
    ratio,
    regularisers,
    scales,
    shaping,
    trust_region,
)
from assay_optim.sidecars import history


def _itself(options: Any) -> Any:
    return options


def _part(axis: Axis, name: str, config: type[Any], build: Callable[[Any], Any] = _itself) -> Part:
    return Part(axis, name, config, build, summary=(config.__doc__ or "").partition("\n")[0])


PARTS: tuple[Part, ...] = (
    _part("shaper", "overlong", shaping.Overlong),
    _part("shaper", "kl_in_reward", shaping.KLRewardOptions, shaping.build_kl_reward),
    _part("shaper", "reward_clip", shaping.RewardClip),
    _part("shaper", "eos_penalty", shaping.EosPenalty),
    _part("shaper", "length_reward", shaping.LengthRewardOptions, shaping.build_length_reward),
    _part("shaper", "recolour", shaping.Recolour),
    _part("shaper", "dpo_token_reward", shaping.DpoTokenReward),
    _part("shaper", "process_reward", shaping.ProcessReward),
    _part("batch_rule", "zero_variance", batch_rules.ZeroVariance),
    _part("batch_rule", "all_correct", batch_rules.AllCorrect),
    _part("batch_rule", "accuracy_band", batch_rules.AccuracyBand),
    _part("batch_rule", "staleness", batch_rules.Staleness),
    _part("batch_rule", "mask_truncated", batch_rules.MaskTruncated),
    _part("task_sampler", "curriculum", history.CurriculumOptions, history.build_curriculum),
    _part(
        "task_sampler",
        "no_positive_resampling",
        history.NoPositiveResamplingOptions,
        history.build_no_positive_resampling,
    ),
    _part("task_sampler", "accuracy_band", history.BandOptions, history.build_band),
    _part("baseline", "none", baselines.NoBaseline),
    _part("baseline", "batch_mean", baselines.BatchMeanOptions, baselines.build_batch_mean),
    _part("baseline", "ema", baselines.EmaOptions, baselines.build_ema),
    _part("baseline", "group_mean", baselines.GroupMean),
    _part("baseline", "group_loo", baselines.GroupLeaveOneOut),
    _part("baseline", "group_loo_per_source", baselines.LeaveOneOutPerSource),
    _part("baseline", "critic", baselines.CriticOptions, baselines.build_critic),
    _part("scale", "none", scales.NoScale),
    _part("scale", "group_std", scales.GroupStd),
    _part("scale", "batch_std", scales.BatchStd),
    _part("scale", "group_mean", scales.GroupMeanOptions, scales.build_group_mean),
    _part("scale", "whiten_sample", scales.WhitenSample),
    _part("scale", "whiten_token", scales.WhitenToken),
    _part("credit", "broadcast", credit.Broadcast),
    _part("credit", "return_to_go", credit.ReturnToGo),
    _part("credit", "gae", credit.Gae),
    _part("estimator", "maclaurin", estimators.Maclaurin),
    _part("estimator", "kimi", estimators.Kimi),
    _part("estimator", "disco", estimators.Disco),
    _part("estimator", "best_worst", estimators.BestWorst),
    _part("estimator", "rectified", estimators.RectifiedOptions, estimators.build_rectified),
    _part("ratio", "none", ratio.NoRatio),
    _part("ratio", "token", ratio.TokenRatio),
    _part("ratio", "sequence", ratio.SequenceRatio),
    _part("ratio", "sequence_token", ratio.SequenceTokenRatio),
    _part("ratio", "sequence_sum", ratio.SequenceSumRatio),
    _part("trust_region", "none", trust_region.NoTrustRegion),
    _part("trust_region", "clip", trust_region.Clip),
    _part("trust_region", "truncate", trust_region.Truncate),
    _part("trust_region", "divergence_mask", trust_region.DivergenceMask),
    _part("aggregation", "token_mean", aggregation.TokenMean),
    _part("aggregation", "seq_mean_token_mean", aggregation.SequenceMeanTokenMean),
    _part("aggregation", "seq_mean_token_sum", aggregation.SequenceMeanTokenSum),
    _part("aggregation", "constant", aggregation.Constant),
    _part("aggregation", "prompt_mean", aggregation.PromptMean),
    _part("aggregation", "length_softmax", aggregation.LengthSoftmaxOptions, aggregation.build_length_softmax),
    _part("regulariser", "kl", regularisers.KLOptions, regularisers.build_kl),
    _part("regulariser", "entropy", regularisers.Entropy),
    _part("regulariser", "nll_term", regularisers.LikelihoodTerm),
    _part("regulariser", "squared_hinge_kl", regularisers.SquaredHingeKL),
)
"""Every built-in part."""


def indexed(parts: Iterable[Part]) -> dict[tuple[str, str], Part]:
    """(axis, name) to part."""
    return {(part.axis, part.name): part for part in parts}
