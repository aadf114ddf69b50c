"""What this package offers to assay; reasoning_gym is imported only when a source of it is built."""

from __future__ import annotations

from typing import Any

from assay.component import Component
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource, TaskSource
from assay_tasks.files import JsonlOptions, build_jsonl
from assay_tasks.gym import GymOptions, build_gym
from assay_tasks.gym_scorer import GymScorerOptions, build_scorer


@hookimpl
def assay_task_sources() -> list[Component[Any, TaskSource]]:
    """Offer the task sources."""
    return [
        Component("jsonl", JsonlOptions, build_jsonl, summary="tasks from a file of JSON lines"),
        Component(
            "reasoning_gym",
            GymOptions,
            build_gym,
            summary="tasks from about a hundred generators of the library reasoning_gym",
            extra="gym",
        ),
    ]


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer the generators' own scorers."""
    return [
        Component(
            "reasoning-gym",
            GymScorerOptions,
            build_scorer,
            summary="reasoning_gym's own scorers, where they are safe",
            extra="gym",
            isolation="process",
            facts={"check_task": "inline"},
        )
    ]
