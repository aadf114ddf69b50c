"""Rewards written for other hosts, and reward servers, as assay sources."""
