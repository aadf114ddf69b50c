"""Tasks from the library `datasets`: a saved data set, a folder of its files, or a name on the Hugging Face hub."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# datasets is only partly annotated.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from assay.component import BuildContext
from assay.errors import ConfigError, did_you_mean
from assay.rows import BadRowError, Row, arrow_rows
from assay_tasks.table import TableOptions, TableTasks

SAVED = ("dataset_dict.json", "state.json")
"""Files by which a folder written by `save_to_disk` is known."""


class DatasetsOptions(TableOptions):
    """Options of the task source `datasets`."""

    path: str = Field(min_length=1)
    """A folder written by `save_to_disk`, an `.arrow` file, a folder of data files (relative to the config), or a name
    on the hub, which is then downloaded by the library unless its cache has it."""
    name: str | None = None
    """Which configuration of a data set that has several."""
    split: str | None = None
    """Which split; may be left out where there is one."""
    revision: str | None = None
    """Commit, tag or branch of a data set on the hub; name a commit for a run that can be repeated."""


def build_datasets(options: DatasetsOptions, context: BuildContext) -> TableTasks:
    """The tasks of a data set; raises `ModuleNotFoundError` where the library is not installed."""
    import datasets

    where = options.path if options.split is None else f"{options.path}[{options.split}]"

    def rows() -> Iterator[Row | BadRowError]:
        table: Any = _one_split(_load(datasets, options, context.base_dir), options)
        yield from arrow_rows(table.with_format("arrow").iter(batch_size=1024), where)

    return TableTasks(options, where, rows)


def _load(datasets: Any, options: DatasetsOptions, base_dir: Path) -> Any:
    path = base_dir / Path(options.path).expanduser()
    if not path.exists() and (Path(options.path).is_absolute() or options.path.startswith((".", "~"))):
        raise ConfigError(f"tasks.path: {options.path}: there is no such file or folder (looked at {path})")
    datasets.disable_progress_bars()
    try:
        if path.is_file() and path.suffix == ".arrow":
            return datasets.Dataset.from_file(str(path))
        if any((path / name).is_file() for name in SAVED):
            return datasets.load_from_disk(str(path))
        place = str(path) if path.exists() else options.path
        return datasets.load_dataset(place, options.name, revision=options.revision)
    # The library raises whatever its readers and its network raise; each is the user's path, named with the cause.
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"tasks.path: {options.path}: cannot be loaded: {type(error).__name__}: {said}") from error


def _one_split(loaded: Any, options: DatasetsOptions) -> Any:
    """The data set itself, or the chosen split of several."""
    if not isinstance(loaded, dict):
        if options.split is not None and str(loaded.split or options.split) != options.split:
            raise ConfigError(f"tasks.split: {options.path} is the split {str(loaded.split)!r} alone; leave it out")
        return loaded
    known = list(loaded)
    if options.split is None and len(known) == 1:
        return loaded[known[0]]
    if options.split not in loaded:
        asked = "several splits" if options.split is None else f"no split {options.split!r}"
        hint = "" if options.split is None else did_you_mean(options.split, known)
        raise ConfigError(f"tasks.split: {options.path} has {asked}; choose one of: {', '.join(known)}.{hint}")
    return loaded[options.split]
