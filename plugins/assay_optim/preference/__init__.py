"""Supervised and preference objectives: losses on sequences, readers of data, pairs from a run's own rewards."""
