"""Small real parts for tests: tasks, rollouts, a registry of named modules, workers without processes."""

import importlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from assay.contracts import Message, ResourceLimits, Rollout, Task, Turn
from assay.discovery import Offer, Plugin
from assay.hooks import COMPONENT_HOOKS, collect, single_plugin
from assay.judging.tracked import Answer
from assay.registry import Registry


def make_task(task_id: str = "task", *, prompt: str = "?", reference: JsonValue = None, **fields: Any) -> Task:
    """A task with one user message; `fields` are further fields of `Task`."""
    return Task(id=task_id, messages=(Message(role="user", content=prompt),), reference=reference, **fields)


def make_rollout(text: str, rollout_id: str = "r0", *, task_id: str = "task", group_id: str = "g0") -> Rollout:
    """A rollout with one turn."""
    return Rollout(id=rollout_id, task_id=task_id, group_id=group_id, turns=(Turn(text=text),))


def make_group(texts: Sequence[str], *, task_id: str = "task", group_id: str = "g0") -> list[Rollout]:
    """Rollouts `r0`, `r1`, ... of one group."""
    return [make_rollout(text, f"r{index}", task_id=task_id, group_id=group_id) for index, text in enumerate(texts)]


def registry_of(*modules: str, distribution: str = "assay-tests", version: str = "1.0") -> Registry:
    """A registry of the components that these importable modules offer, without anything being installed."""
    plugins: list[Plugin] = []
    for name in modules:
        manager = single_plugin(importlib.import_module(name))
        offers = tuple(
            Offer(kind=kind, name=component.name, isolation=component.isolation)
            for kind in COMPONENT_HOOKS
            for component in collect(manager, kind)
        )
        plugins.append(Plugin(name=name, module=name, distribution=distribution, version=version, offers=offers))
    return Registry(plugins)


class InProcessWorkers:
    """`Workers` that call the target in this process, with no limit kept: for the tests of what runs in workers."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self.calls: list[tuple[str, JsonValue, ResourceLimits]] = []

    async def call(self, target: str, payload: JsonValue, *, limits: ResourceLimits) -> Answer:
        """The answer of `target`, JSON in and JSON out."""
        self.calls.append((target, payload, limits))
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
        try:
            value = function(json.loads(json.dumps(payload)))
        except Exception as error:  # a worker turns whatever the target raises into an answer
            return Answer("raised", detail=f"{type(error).__name__}: {error}")
        return Answer("ok", json.dumps(value).encode())
