"""What commands print: results on stdout, everything for a person on stderr, colour only on a terminal."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.errors import ConfigError
from assay.reports.text import visible


def target_file(target: Path, data: str, *, flag: str) -> Path:
    """`target`, which `flag` names, once a file can be written there and it is not the data that the command reads.

    Raises:
        ConfigError: it cannot, or it is.
    """
    if target.is_dir():
        raise ConfigError(f"{flag} {target}: that is a folder; name a file")
    if target.exists() and Path(data).exists() and target.samefile(data):
        raise ConfigError(f"{flag} {target}: that is the data file itself; name another file")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"{flag} {target}: the folder {target.parent} does not exist; make it first")
    return target


def console() -> Console:
    """A console on stdout that uses neither colour nor cursor control unless stdout is a terminal."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def say(line: str = "") -> None:
    """One line of result on stdout, without control characters."""
    sys.stdout.write(visible(line) + "\n")


def note(line: str) -> None:
    """One line for a person on stderr, without control characters."""
    sys.stderr.write(visible(line) + "\n")
    sys.stderr.flush()


def complain(line: str) -> None:
    """An error for a person on stderr."""
    note(f"assay: {line}" if not line.startswith(("assay", "Traceback")) else line)


def emit(event: Mapping[str, Any]) -> None:
    """One JSON object on stdout, for programs."""
    sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table on stdout; cells are shown literally, without control characters."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(visible(str(cell))) for cell in row))
    if sys.stdout.isatty():
        console().print(grid)
        return
    wide = Console(highlight=False, width=400)
    with wide.capture() as capture:
        wide.print(grid)
    for line in capture.get().splitlines():
        say(line.rstrip())
