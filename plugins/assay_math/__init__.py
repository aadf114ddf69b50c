"""Mathematical answers: finding them in a response and deciding whether they equal the gold."""

from assay_math.options import MathPolicy
from assay_math.plugin import assay_reward_sources

__all__ = ["MathPolicy", "assay_reward_sources"]
