"""Rewards that were written for other hosts, and rewards of a server, as reward sources."""

from assay_bridge.plugin import assay_reward_sources

__all__ = ["assay_reward_sources"]
