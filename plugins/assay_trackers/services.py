"""Weights & Biases and trackio. Nothing leaves this machine unless the config says `mode = "online"`."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts import RunInfo


class WandbOptions(Options):
    """Options of the tracker `wandb`."""

    project: str = Field(default="assay", min_length=1)
    """Project that the run belongs to."""
    mode: Literal["offline", "online"] = "offline"
    """`offline` writes `wandb/` in the run folder, which `wandb sync` uploads later; `online` uploads at once with the
    key that wandb reads from `WANDB_API_KEY`."""


class TrackioOptions(Options):
    """Options of the tracker `trackio`."""

    project: str = Field(default="assay", min_length=1)
    """Project that the run belongs to; its database lies where `TRACKIO_DIR` says."""


class WandbTracker:
    """One wandb run per assay run, under the same id; begun with the first step that is logged."""

    def __init__(self, options: WandbOptions, run: RunInfo | None, base_dir: Path, wandb: Any) -> None:
        """Log by the module `wandb`."""
        self._options = options
        self._run = run
        self._folder = Path(run.folder) if run is not None else base_dir
        self._wandb = wandb
        self._open: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step; wandb ignores a step that it already has."""
        if self._open is None:
            self._open = self._wandb.init(
                project=self._options.project,
                id=self._run.id if self._run is not None else None,
                name=self._run.id if self._run is not None else None,
                dir=str(self._folder),
                mode=self._options.mode,
                resume="allow" if self._options.mode == "online" else None,
                # wandb would wrap stdout, which is for results, and collect facts about the machine.
                settings=self._wandb.Settings(
                    console="off", disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True
                ),
            )
        self._open.log(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and let go."""
        if self._open is not None:
            self._open.finish()


class TrackioTracker:
    """One trackio run per assay run, under the same name; begun with the first step that is logged."""

    def __init__(self, options: TrackioOptions, run: RunInfo | None, trackio: Any) -> None:
        """Log by the module `trackio`."""
        self._options = options
        self._run = run
        self._trackio = trackio
        self._open: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""
        if self._open is None:
            name = self._run.id if self._run is not None else None
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                self._open = self._trackio.init(
                    project=self._options.project, name=name, resume="allow", embed=False, auto_log_cpu=False
                )
        self._open.log(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and let go."""
        if self._open is not None:
            with contextlib.redirect_stdout(sys.stderr):
                self._open.finish()


def build_wandb(options: WandbOptions, context: BuildContext) -> WandbTracker:
    """The tracker; raises `ModuleNotFoundError` where wandb is not installed."""
    return WandbTracker(options, context.run, context.base_dir, importlib.import_module("wandb"))


def build_trackio(options: TrackioOptions, context: BuildContext) -> TrackioTracker:
    """The tracker; raises `ModuleNotFoundError` where trackio is not installed."""
    return TrackioTracker(options, context.run, importlib.import_module("trackio"))
