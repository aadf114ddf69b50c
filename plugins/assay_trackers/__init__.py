"""Trackers that copy a run's metrics to other tools."""
