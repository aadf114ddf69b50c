"""What this package offers to assay; a tracker's library is imported only when the tracker is built."""

from __future__ import annotations

from typing import Any

from assay.component import Component
from assay.hookspecs import hookimpl
from assay.protocols import Tracker
from assay_trackers.local import TensorBoardOptions, build_tensorboard
from assay_trackers.services import TrackioOptions, WandbOptions, build_trackio, build_wandb


@hookimpl
def assay_trackers() -> list[Component[Any, Tracker]]:
    """Offer the trackers."""
    return [
        Component(
            "tensorboard",
            TensorBoardOptions,
            build_tensorboard,
            summary="metrics as TensorBoard event files in the run folder",
            extra="tensorboard",
        ),
        Component(
            "wandb",
            WandbOptions,
            build_wandb,
            summary="metrics to Weights & Biases, in a local folder unless told otherwise",
            extra="wandb",
        ),
        Component(
            "trackio",
            TrackioOptions,
            build_trackio,
            summary="metrics to trackio's local database",
            extra="trackio",
        ),
    ]
