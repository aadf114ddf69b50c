"""Step labels by Monte Carlo continuation."""
