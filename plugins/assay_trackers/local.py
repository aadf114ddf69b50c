"""TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from assay.component import BuildContext, Options


class TensorBoardOptions(Options):
    """Options of the tracker `tensorboard`."""

    folder: str = Field(default="tensorboard", min_length=1)
    """Where the event files go, relative to the run folder (outside a run: to the config's folder)."""


class TensorBoardTracker:
    """Writes every metric as a scalar; the file is begun with the first step that is logged.

    A resumed run begins another file that purges what a killed one wrote from that step on, so no step shows twice.
    """

    def __init__(self, folder: Path, writer: Any) -> None:
        """Write under `folder` by `writer`, the class `SummaryWriter`."""
        self.folder = folder
        self._make = writer
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""
        if self._writer is None:
            self._writer = self._make(log_dir=str(self.folder), purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and let go."""
        if self._writer is not None:
            self._writer.close()


def build_tensorboard(options: TensorBoardOptions, context: BuildContext) -> TensorBoardTracker:
    """The tracker; raises `ModuleNotFoundError` where tensorboard is not installed."""
    from torch.utils.tensorboard.writer import SummaryWriter

    root = Path(context.run.folder) if context.run is not None else context.base_dir
    return TensorBoardTracker(root / options.folder, SummaryWriter)
