"""Tasks of a stored run, to draw for or train on again what that run asked."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts import Task
from assay.errors import ConfigError


class StoredOptions(Options):
    """Options of the task source `stored`."""

    path: str = Field(min_length=1)
    """The run: a folder relative to the config, a name in `runs`, or `latest`."""


class StoredTasks:
    """The distinct tasks of a run in the order in which they were first asked."""

    def __init__(self, tasks: dict[str, Task]) -> None:
        """Offer `tasks`, by id."""
        self._tasks = tasks

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    def tasks(self) -> Iterator[Task]:
        """All tasks."""
        yield from self._tasks.values()


def build_stored(options: StoredOptions, context: BuildContext) -> StoredTasks:
    """The tasks of a run; raises `ConfigError` where there is no such run."""
    if context.read_run is None:
        raise ConfigError("tasks 'stored': stored runs cannot be read here; use it as the tasks of a training run")
    return StoredTasks({task.id: task for task, _ in context.read_run(options.path)})
