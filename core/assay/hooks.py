"""Names the component hooks by kind, and asks one plugin module or all of them."""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pluggy

from assay import hookspecs
from assay.component import Component, Part
from assay.errors import PluginError

COMPONENT_HOOKS = {
    "reward_source": "assay_reward_sources",
    "policy_optimizer": "assay_policy_optimizers",
    "objective": "assay_objectives",
    "rollout_engine": "assay_rollout_engines",
    "sandbox": "assay_sandboxes",
    "task_source": "assay_task_sources",
    "tracker": "assay_trackers",
}
"""Kind of component to the hook that offers it."""

PART_HOOK = "assay_optimizer_parts"
OBSERVER_HOOKS = frozenset({"assay_run_started", "assay_judged", "assay_updated", "assay_run_finished"})


def plugin_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows assay's hook specifications and has no plugin yet."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def single_plugin(module: ModuleType) -> pluggy.PluginManager:
    """A manager with one plugin; raises `PluginError` for a hook that does not exist."""
    manager = plugin_manager()
    manager.register(module)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{module.__name__}: {error}") from error
    return manager


def collect(manager: pluggy.PluginManager, kind: str) -> list[Any]:
    """All components (or parts, for the kind `optimizer_part`) that the manager's plugins offer.

    Raises `PluginError` when a hook returns something that is neither.
    """
    hook = PART_HOOK if kind == "optimizer_part" else COMPONENT_HOOKS[kind]
    wanted = Part if kind == "optimizer_part" else Component
    found: list[Any] = []
    answers: list[Iterable[Any] | None] = getattr(manager.hook, hook)()
    for answer in answers:
        for item in answer or ():
            if not isinstance(item, wanted):
                raise PluginError(f"{hook}: expected {wanted.__name__}; found {type(item).__name__} {item!r}"[:300])
            found.append(item)
    return found
