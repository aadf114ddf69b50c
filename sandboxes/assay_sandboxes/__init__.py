"""Sandboxes for programs that nobody trusts: bubblewrap, docker, landlock, and plain processes for development."""

from assay_sandboxes.plugin import assay_sandboxes

__all__ = ["assay_sandboxes"]
