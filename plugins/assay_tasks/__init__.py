"""Task sources."""

from assay_tasks.plugin import assay_reward_sources, assay_task_sources

__all__ = ["assay_reward_sources", "assay_task_sources"]
