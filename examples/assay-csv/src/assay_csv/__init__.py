"""Tasks from a CSV file with a header; every mistake is one sentence with file, line and column."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from assay import BuildContext, Component, ConfigError, Message, Options, Task, TaskSource, hookimpl


class CsvOptions(Options):
    """Options of the task source `csv`."""

    path: str = Field(min_length=1)
    """CSV file in UTF-8, relative to the config."""
    prompt: str = "question"
    """Column of the question."""
    reference: str = "answer"
    """Column of the gold answer."""


class CsvTasks:
    """The tasks of one file, read and checked as a whole on first use."""

    def __init__(self, options: CsvOptions, base_dir: Path) -> None:
        """Tasks of the file that `options` name."""
        self.options = options
        self.path = base_dir / options.path
        self._tasks: list[Task] | None = None

    def __len__(self) -> int:
        """Number of tasks; reads the file."""
        return len(self.tasks())

    def tasks(self) -> list[Task]:
        """All tasks in the file's order; a bad row raises `ConfigError`."""
        if self._tasks is None:
            try:
                with self.path.open(encoding="utf-8-sig", newline="") as file:
                    self._tasks = list(self._read(csv.DictReader(file, strict=True)))
            except (OSError, UnicodeDecodeError, csv.Error) as error:
                raise ConfigError(f"{self.options.path}: cannot be read: {error}") from error
        return self._tasks

    def _read(self, rows: "csv.DictReader[str]") -> Iterator[Task]:
        wanted = (self.options.prompt, self.options.reference)
        missing = [name for name in wanted if name not in (rows.fieldnames or ())]
        if missing:
            have = ", ".join(rows.fieldnames or ()) or "nothing"
            raise ConfigError(f"{self.options.path}:1: column {missing[0]!r} is missing; the header has {have}")
        for row in rows:
            for name in wanted:
                if not (row[name] or "").strip():
                    raise ConfigError(f"{self.options.path}:{rows.line_num}: column {name!r} is empty; fill it in")
            question = Message(role="user", content=row[self.options.prompt])
            yield Task(id=str(rows.line_num), messages=(question,), reference=row[self.options.reference])


def build(options: CsvOptions, context: BuildContext) -> TaskSource:
    """The tasks of a file whose path is relative to the config's folder."""
    return CsvTasks(options, context.base_dir)


@hookimpl
def assay_task_sources() -> list[Component[Any, TaskSource]]:
    """Offer the task source."""
    return [Component("csv", CsvOptions, build, summary="tasks from a CSV file with a header")]
