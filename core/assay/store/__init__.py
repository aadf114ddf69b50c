"""The store: an append-only log of tasks, rollouts, judgements, rewards and what became of each group."""

from assay.store.export import export_jsonl, export_parquet
from assay.store.resume import unfinished_groups, unjudged, used_at
from assay.store.sqlite import Mark, RunStore, StoredRollout

__all__ = [
    "Mark",
    "RunStore",
    "StoredRollout",
    "export_jsonl",
    "export_parquet",
    "unfinished_groups",
    "unjudged",
    "used_at",
]
