"""A trained reward model's folder as an entry of `rewards`: what it says of itself, and where a run keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from assay import runs
from assay.errors import ConfigError

REWARD_MODEL = "reward_model.json"
"""What a reward model is, beside its weights; `kind = "prm"` writes it."""


def reward_model_folder(path: Path) -> Path | None:
    """The folder with `reward_model.json` that `path` is, or that a run folder holds; None for anything else."""
    if (path / REWARD_MODEL).is_file():
        return path
    if not (path / runs.CONFIG).is_file():
        return None
    checkpoints = path / runs.CHECKPOINTS
    newest = sorted(checkpoints.glob("[0-9]*"), reverse=True) if checkpoints.is_dir() else []
    return next((folder for folder in (path / runs.MODEL, *newest) if (folder / REWARD_MODEL).is_file()), None)


def reward_model_entry(folder: Path) -> dict[str, Any]:
    """The entry by which the reward model in `folder` is asked: the source that it names, its options and its path.

    Raises:
        ConfigError: the description cannot be read.
    """
    described = read_description(folder)
    use: Any = described.get("use")
    options: Any = described.get("options") or {}
    if not isinstance(use, str) or not isinstance(options, dict):
        raise ConfigError(f"{folder / REWARD_MODEL}: it names no reward source under 'use'; restore the file")
    return {"use": use, **cast("dict[str, Any]", options), "path": str(folder.absolute())}


def save_threshold(folder: Path, threshold: float) -> None:
    """Keep a fitted threshold in the description, for the sources that have one.

    Raises:
        ConfigError: the model's description has no threshold, or it cannot be written.
    """
    described = read_description(folder)
    model = described.get("model")
    if not isinstance(model, dict) or "threshold" not in model:
        raise ConfigError(f"{folder / REWARD_MODEL}: its model has no 'threshold' to keep; use the printed one instead")
    cast("dict[str, Any]", model)["threshold"] = threshold
    scratch = folder / f".{REWARD_MODEL}.part"
    try:
        scratch.write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")
        scratch.replace(folder / REWARD_MODEL)
    except OSError as error:
        raise ConfigError(f"{folder / REWARD_MODEL}: cannot be written: {error.strerror}") from error


def read_description(folder: Path) -> dict[str, Any]:
    """The object in `reward_model.json`; raises `ConfigError` for a damaged one."""
    file = folder / REWARD_MODEL
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: an object is expected; found {type(found).__name__}")
    return cast("dict[str, Any]", found)
