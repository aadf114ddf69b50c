"""Rewards from running code: answers are programs, and a program is judged by its tests in a sandbox."""

from assay_code.plugin import assay_reward_sources, assay_task_sources

__all__ = ["assay_reward_sources", "assay_task_sources"]
