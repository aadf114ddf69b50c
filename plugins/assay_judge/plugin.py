"""What this plugin offers; httpx is imported when a judge is first asked."""

from typing import Any

from assay.component import Component
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource
from assay_judge.comparisons import ListwiseOptions, PairwiseOptions, build_listwise, build_pairwise
from assay_judge.criteria import PrinciplesOptions, RubricOptions, build_principles, build_rubric
from assay_judge.first_error import FirstErrorOptions, build_first_error
from assay_judge.judge import JudgeOptions, build_judge


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer the judges."""
    return [
        Component("judge", JudgeOptions, build_judge, "a model grades an answer", "judge", "remote"),
        Component(
            "judge-pairwise",
            PairwiseOptions,
            build_pairwise,
            "a model compares the answers of a group in pairs, places swapped",
            "judge",
            "remote",
        ),
        Component(
            "judge-listwise",
            ListwiseOptions,
            build_listwise,
            "a model ranks the answers of a group, in several orders",
            "judge",
            "remote",
        ),
        Component(
            "judge-first-error",
            FirstErrorOptions,
            build_first_error,
            "a model names the first wrong step of a wrong answer",
            "judge",
            "remote",
        ),
        Component("rubric", RubricOptions, build_rubric, "a model checks weighted criteria", "judge", "remote"),
        Component(
            "principles",
            PrinciplesOptions,
            build_principles,
            "how far written principles are violated, one by one (a cost)",
            "judge",
            "remote",
        ),
    ]
