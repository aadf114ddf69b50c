"""Judges: a model grades, compares or checks answers; to be asked where no rule can decide."""

from assay_judge.plugin import assay_reward_sources

__all__ = ["assay_reward_sources"]
