"""The policy, its forward, its update, its checkpoints; the only part of the core that imports torch."""
