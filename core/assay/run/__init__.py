"""The composition root: a checked config becomes objects, the objects a pipeline, and the pipeline a run folder.

`start` checks everything and opens the run, `session` is one run while it goes on, `doors` are the learner and the
journal as the pipeline sees them.
"""

from assay.run.start import atrain, train

__all__ = ["atrain", "train"]
