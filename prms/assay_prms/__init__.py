"""Reward models: outcome, process, implicit and generative ones, and their training."""
