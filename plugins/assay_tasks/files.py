"""Tasks from one file of JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from assay.component import BuildContext
from assay.errors import ConfigError
from assay.rows import BadRowError, Row, read_rows
from assay_tasks.table import TableOptions, TableTasks


class JsonlOptions(TableOptions):
    """Options of the task source `jsonl`."""

    path: str = Field(min_length=1)
    """File of JSON lines (`.jsonl`, or `.jsonl.gz`), relative to the config."""


class ParquetOptions(TableOptions):
    """Options of the task source `parquet`."""

    path: str = Field(min_length=1, pattern=r"\.parquet$")
    """Parquet file (`.parquet`), relative to the config."""


def build_jsonl(options: JsonlOptions, context: BuildContext) -> TableTasks:
    """The tasks of a file whose path is relative to the config's folder."""
    return _file_tasks(options, options.path, context, "a file of JSON lines")


def build_parquet(options: ParquetOptions, context: BuildContext) -> TableTasks:
    """The tasks of a Parquet file; raises `ModuleNotFoundError` where pyarrow is not installed."""
    import pyarrow  # noqa: F401  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport] - told before reading

    return _file_tasks(options, options.path, context, "a Parquet file")


def _file_tasks(options: TableOptions, typed: str, context: BuildContext, what: str) -> TableTasks:
    path = context.base_dir / Path(typed).expanduser()
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "there is no such file"
        raise ConfigError(f"tasks.path: {typed}: {found} (looked at {path}); name {what}")

    def rows() -> Iterator[Row | BadRowError]:
        for row in read_rows(path):
            yield _as_typed(row, path, typed) if isinstance(row, BadRowError) else row

    return TableTasks(options, typed, rows)


def _as_typed(error: BadRowError, path: Path, typed: str) -> BadRowError:
    """The same error with the path as the user wrote it."""
    return BadRowError(str(error).replace(str(path), typed, 1), error.line)
