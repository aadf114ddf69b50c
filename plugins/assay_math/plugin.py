"""What this package offers to assay; nothing heavy is imported until a source is built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from assay.component import BuildContext, Component
from assay.hookspecs import hookimpl
from assay_math.options import MathPolicy

if TYPE_CHECKING:
    from assay.protocols import RewardSource


def _build_math(options: Any, context: BuildContext) -> RewardSource:
    from assay_math.verify import MathSource

    return MathSource(options, context)


@hookimpl
def assay_reward_sources() -> Iterable[Component[Any, RewardSource]]:
    """The sources `math` and `math-verify`."""
    from assay_math.second import MathVerifyOptions, MathVerifySource

    def build_second(options: Any, context: BuildContext) -> RewardSource:
        return MathVerifySource(options, context)

    return (
        Component(
            "math",
            MathPolicy,
            _build_math,
            summary="Finds the final answer and decides exactly whether it equals the gold.",
            isolation="inline",
        ),
        Component(
            "math-verify",
            MathVerifyOptions,
            build_second,
            summary="A second opinion: the math-verify library's own verdict, in a killable worker.",
            isolation="inline",
        ),
    )
