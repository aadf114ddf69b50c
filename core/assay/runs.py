"""Run folders: how they are named, found again and read."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, did_you_mean

CONFIG, METRICS, EVALUATIONS, REPORT, CHECKPOINTS, OUTCOME = (
    "config.toml",
    "metrics.jsonl",
    "evaluations.jsonl",
    "report.html",
    "checkpoints",
    "outcome.json",
)
"""What lies in a run folder beside the store."""
DATA = "data.json"
"""What a run of a kind that learns from examples was trained on: counts, and a hash of every example."""
MODEL = "model"
"""Folder with the whole model where checkpoints hold an adapter only; written at the end."""
WEIGHTS = "weights"
"""Published weights, where an engine reads them from files that several processes write."""


def new_run_folder(runs_dir: Path, name: str) -> Path:
    """A fresh folder `NAME-xxxx`, made now; raises `ConfigError` when it cannot be."""
    for _ in range(20):
        folder = runs_dir / f"{name}-{secrets.token_hex(2)}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"{runs_dir}: a run folder cannot be made here: {error}") from error
        return folder
    raise ConfigError(f"{runs_dir}: no free name for a run {name!r}; use another name or runs_dir")


def write_config(folder: Path, text: str) -> None:
    """Write the config, which makes `folder` a run folder: at once, and after its log is whole.

    A process that is killed before has begun no run, so that nothing tries to go on from half of one.
    """
    temporary = folder / f"{CONFIG}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / CONFIG)


def run_folders(runs_dir: Path) -> list[Path]:
    """Run folders, the newest last."""
    if not runs_dir.is_dir():
        return []
    return sorted((p.parent for p in runs_dir.glob(f"*/{CONFIG}")), key=lambda p: (p / CONFIG).stat().st_mtime_ns)


def find_run(name: str, runs_dir: Path = Path("runs")) -> Path:
    """The run named by folder, by folder name, by short id, or `latest`; raises `ConfigError` when there is none."""
    if (Path(name) / CONFIG).is_file():
        return Path(name)
    folders = run_folders(runs_dir)
    if name == "latest" and folders:
        return folders[-1]
    exact = [folder for folder in folders if folder.name == name or folder.name.rpartition("-")[2] == name]
    if exact:
        return exact[-1]
    known = [folder.name for folder in folders]
    raise ConfigError(
        f"no run {name!r} in {runs_dir}; found {', '.join(known[-3:]) or 'none'}.{did_you_mean(name, known)}"
    )


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                return


def keep_steps(path: Path, last_step: int) -> None:
    """Drop the lines of later steps: a resumed run writes them again."""
    kept = [line for line in read_lines(path) if line["step"] <= last_step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    temporary.replace(path)


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append one object as a line of JSON."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")
