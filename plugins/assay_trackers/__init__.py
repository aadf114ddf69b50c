"""Trackers: a run's metrics copied to TensorBoard, Weights & Biases or trackio."""

from assay_trackers.plugin import assay_trackers

__all__ = ["assay_trackers"]
