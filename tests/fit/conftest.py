"""A tiny model and small files: one-digit sums as texts, pairs, judged responses and ranked lists."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

SUMS = [(a, b) for a in range(5) for b in range(5)]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh tiny model."""
    from assay.training.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden_size=64, layers=1)


@pytest.fixture
def folder(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: `model`, `texts.jsonl`, `pairs.jsonl`, `labels.jsonl`, `lists.jsonl`, `plain.jsonl`."""
    (tmp_path / "model").symlink_to(tiny)
    rows = [(f"{a}+{b}=", str(a + b), str((a + b + 3) % 10), str((a + b + 5) % 10)) for a, b in SUMS]
    write(tmp_path / "texts.jsonl", [{"prompt": q, "response": right} for q, right, _, _ in rows])
    write(tmp_path / "pairs.jsonl", [{"prompt": q, "chosen": right, "rejected": wrong} for q, right, wrong, _ in rows])
    labelled = [
        {"prompt": q, "response": text, "label": label}
        for q, right, wrong, _ in rows
        for text, label in ((right, True), (wrong, False))
    ]
    write(tmp_path / "labels.jsonl", labelled)
    write(tmp_path / "lists.jsonl", [{"prompt": q, "responses": list(texts)} for q, *texts in rows])
    write(tmp_path / "plain.jsonl", [{"text": f"the sum of {a} and {b} is {a + b}"} for a, b in SUMS])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
