"""Reward models: outcome, process, implicit and generative ones, and their training."""

from assay_prms.plugin import assay_objectives, assay_reward_sources, objective

__all__ = ["assay_objectives", "assay_reward_sources", "objective"]
