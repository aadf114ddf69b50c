# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""A stored run as JSON lines or Parquet: one row per rollout with its reward and its judgements."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.errors import StoreError
from assay.store.sqlite import RunStore, StoredRollout


def export_jsonl(store: RunStore, target: str | Path) -> int:
    """Number of rows written to `target`, one JSON object a line."""
    count = 0
    with Path(target).open("w", encoding="utf-8") as file:
        for row in rows(store):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def export_parquet(store: RunStore, target: str | Path) -> int:
    """Number of rows written to `target`; raises `StoreError` where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{target}: Parquet needs the package 'pyarrow', which is not installed; "
            "install it with: python -m pip install pyarrow, or export jsonl"
        ) from error
    listing: list[dict[str, Any]] = [
        {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in row.items()}
        for row in rows(store)
    ]
    pq.write_table(pa.Table.from_pylist(listing), str(target))
    return len(listing)


def rows(store: RunStore) -> Iterator[dict[str, Any]]:
    """The rows of an export."""
    marks = {mark.group_id: mark for mark in store.marks()}
    for entry in store.rollouts():
        yield _row(entry, marks.get(entry.rollout.group_id))


def _row(entry: StoredRollout, mark: Any) -> dict[str, Any]:
    reward = None if entry.reward is None else entry.reward.model_dump(mode="json")
    return {
        "id": entry.rollout.id,
        "step": entry.step,
        "group": entry.rollout.group_id,
        "task_id": entry.task.id,
        "prompt": entry.task.prompt,
        "response": entry.rollout.text,
        "finish": entry.rollout.finish,
        "reference": entry.task.reference,
        "reward": None if entry.reward is None else entry.reward.value,
        "masked_because": None if entry.reward is None else entry.reward.reason,
        "decision": None if mark is None else mark.action,
        "decision_reason": None if mark is None else mark.reason,
        "trained_at": mark.step if mark is not None and mark.action == "keep" else None,
        "reward_parts": [] if reward is None else reward["parts"],
        "judgements": [judgement.model_dump(mode="json") for judgement in entry.judgements],
        "task": entry.task.model_dump(mode="json"),
        "rollout": entry.rollout.model_dump(mode="json"),
    }
