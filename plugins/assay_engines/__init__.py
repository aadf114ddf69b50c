"""Rollout engines."""

from assay_engines.plugin import assay_rollout_engines

__all__ = ["assay_rollout_engines"]
