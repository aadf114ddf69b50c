"""Every hook that a plugin may implement. Hooks return values; they register nothing themselves.

An implementation names only the arguments that it wants. Arguments may be added in later versions, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.component import Component, Part
    from assay.contracts.batch import Candidate, RunInfo, RunOutcome, UpdateReport
    from assay.contracts.verdict import Judgement
    from assay.protocols import (
        Objective,
        PolicyOptimizer,
        RewardSource,
        RolloutEngine,
        Sandbox,
        TaskSource,
        Tracker,
    )

    F = TypeVar("F", bound=Callable[..., Any])

PROJECT = "assay"
ENTRY_POINTS = "assay.plugins"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin module as the implementation of the hook of the same name."""


# ---- Components: called once, when the registry is built; each returns an iterable ----------------------------------


@hookspec
def assay_reward_sources() -> Iterable[Component[Any, RewardSource]]:
    """Offer reward sources."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_policy_optimizers() -> Iterable[Component[Any, PolicyOptimizer]]:
    """Offer policy optimizers (presets or wholly own ones)."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_optimizer_parts() -> Iterable[Part]:
    """Offer parts of the optimizer composition, one value of one axis each."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_objectives() -> Iterable[Component[Any, Objective]]:
    """Offer objectives for the training kinds `sft`, `preference` and `prm`."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_rollout_engines() -> Iterable[Component[Any, RolloutEngine]]:
    """Offer rollout engines."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_sandboxes() -> Iterable[Component[Any, Sandbox]]:
    """Offer sandboxes."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_task_sources() -> Iterable[Component[Any, TaskSource]]:
    """Offer task sources."""
    raise AssertionError("a specification is never called")


@hookspec
def assay_trackers() -> Iterable[Component[Any, Tracker]]:
    """Offer trackers."""
    raise AssertionError("a specification is never called")


# ---- The command line: called when it starts ------------------------------------------------------------------------


@hookspec
def assay_commands(commands: Any) -> None:
    """Add subcommands to `commands`, the cyclopts application."""


# ---- Observers: an observer that raises is logged with its plugin's name and counted; the run goes on ---------------


@hookspec
def assay_run_started(run: RunInfo) -> None:
    """Called before the first rollout."""


@hookspec
def assay_judged(candidate: Candidate, judgement: Judgement) -> None:
    """Called after each verdict is stored."""


@hookspec
def assay_updated(update: UpdateReport) -> None:
    """Called after each optimizer step."""


@hookspec
def assay_run_finished(run: RunInfo, outcome: RunOutcome) -> None:
    """Called at the end, also after a failure."""
