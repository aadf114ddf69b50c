"""What this package offers: the reward source `code` and the task sources `humaneval` and `mbpp`."""

from collections.abc import Iterable
from typing import Any

from assay.component import Component
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource, TaskSource
from assay_code.datasets import DatasetOptions, build_humaneval, build_mbpp
from assay_code.verify import CodeOptions, build


@hookimpl
def assay_reward_sources() -> Iterable[Component[Any, RewardSource]]:
    """Offer `code`; it runs in the event loop, and what it judges runs in a sandbox."""
    return [
        Component(
            "code",
            CodeOptions,
            build,
            summary="runs the answer's program against the task's tests in a sandbox",
            isolation="inline",
            spreads=True,
        )
    ]


@hookimpl
def assay_task_sources() -> Iterable[Component[Any, TaskSource]]:
    """Offer the two data sets."""
    return [
        Component("humaneval", DatasetOptions, build_humaneval, summary="HumanEval, from its published file"),
        Component("mbpp", DatasetOptions, build_mbpp, summary="MBPP, from its published file"),
    ]
