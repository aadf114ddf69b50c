"""What this package offers to assay; reasoning_gym is imported only when a source of it is built."""

from __future__ import annotations

from typing import Any

from assay.component import Component
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource, TaskSource
from assay_tasks.files import JsonlOptions, ParquetOptions, build_jsonl, build_parquet
from assay_tasks.gym import GymOptions, build_gym
from assay_tasks.gym_scorer import GymScorerOptions, build_scorer
from assay_tasks.hub import DatasetsOptions, build_datasets
from assay_tasks.stored import StoredOptions, build_stored


@hookimpl
def assay_task_sources() -> list[Component[Any, TaskSource]]:
    """Offer the task sources."""
    return [
        Component("jsonl", JsonlOptions, build_jsonl, summary="tasks from a file of JSON lines"),
        Component("parquet", ParquetOptions, build_parquet, summary="tasks from a Parquet file", extra="data"),
        Component(
            "datasets",
            DatasetsOptions,
            build_datasets,
            summary="tasks from the library datasets: a saved data set, data files, or a name on the hub",
            extra="data",
        ),
        Component(
            "reasoning_gym",
            GymOptions,
            build_gym,
            summary="tasks from about a hundred generators of the library reasoning_gym",
            extra="gym",
        ),
        Component("stored", StoredOptions, build_stored, summary="the tasks of a run that is done"),
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
