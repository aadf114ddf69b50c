"""Step labels by Monte Carlo continuation: what `assay label` does, on any engine and any verdict source."""

from assay.labels.cost import Cost
from assay.labels.labeller import Audit, Labelled, Labeller, LabelReport, LabelSettings
from assay.labels.log import CompletionLog
from assay.labels.nodes import Solution
from assay.labels.plans import Mode
from assay.labels.rows import Columns, labelled_row, outcome_rows, read_solutions, solutions_of_run, trl_row, write_rows

__all__ = [
    "Audit",
    "Columns",
    "CompletionLog",
    "Cost",
    "LabelReport",
    "LabelSettings",
    "Labelled",
    "Labeller",
    "Mode",
    "Solution",
    "labelled_row",
    "outcome_rows",
    "read_solutions",
    "solutions_of_run",
    "trl_row",
    "write_rows",
]
