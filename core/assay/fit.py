"""Training on examples: supervised, preference and reward-model objectives."""
