"""Rule verifiers: text, format, length, schema, tool calls, instructions, and a function in a local file."""

from assay_rules.plugin import assay_reward_sources

__all__ = ["assay_reward_sources"]
