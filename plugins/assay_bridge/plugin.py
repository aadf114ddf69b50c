"""What this plugin offers; neither a host nor httpx is imported until a source is built or asked."""

from typing import Any

from assay.component import Component
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource
from assay_bridge.http import HttpOptions, build_http
from assay_bridge.trl import TrlOptions, build_trl
from assay_bridge.verifiers import VerifiersOptions, build_verifiers
from assay_bridge.verl import VerlOptions, build_verl


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer the bridges."""
    return [
        Component("trl-reward", TrlOptions, build_trl, "a reward function written for TRL"),
        Component("verl-reward", VerlOptions, build_verl, "a compute_score written for verl"),
        Component(
            "verifiers-rubric", VerifiersOptions, build_verifiers, "a reward function or task written for verifiers"
        ),
        Component("http", HttpOptions, build_http, "an assay server, or one with its answers", "judge", "remote"),
    ]
