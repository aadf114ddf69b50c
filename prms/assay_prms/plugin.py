"""What this plugin offers; listing it imports no torch."""

from __future__ import annotations

from typing import Any

from assay.component import BuildContext, Component
from assay.errors import ConfigError, did_you_mean
from assay.hookspecs import hookimpl
from assay.protocols import RewardObjective, RewardSource
from assay_prms.offers import objectives, sources


@hookimpl
def assay_objectives() -> list[Component[Any, RewardObjective]]:
    """Offer the reward-model objectives."""
    return objectives()


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer trained reward models, generative verifiers and the online process reward model."""
    return sources()


def objective(name: str, **options: Any) -> RewardObjective:
    """The objective of that name with options replaced, built as a config's `objective` table builds it."""
    found = {component.name: component for component in objectives()}
    if name not in found:
        raise ConfigError(
            f"objective.use: no objective named {name!r}; known: {', '.join(found)}.{did_you_mean(name, found)}"
        )
    return found[name].build(found[name].config(**options), BuildContext())
