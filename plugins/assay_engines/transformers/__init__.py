"""The engine that samples in the trainer's own process from a transformers model."""
