"""Answers of every kind, fair ones beside broken ones, with labels that follow from the stated conventions.

`math_breakers.jsonl` holds a gold, a response and whether it is right; no value stands in another case file.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from assay.contracts import JsonValue, Message, Task
from assay_math.verify import Gold, read_gold, verify

ROWS = [json.loads(line) for line in Path(__file__).with_name("math_breakers.jsonl").read_text("utf-8").splitlines()]


def wrong(row: dict[str, Any]) -> str | None:
    """What is wrong with the verdict on a row, or None."""
    facts: dict[str, JsonValue] = {"options": ["A", "B", "C", "D"]} if row["kind"] == "choice_letters" else {}
    asked = Task(id="t", messages=(Message(role="user", content="?"),), reference=row["gold"], facts=facts)
    gold = read_gold(row["gold"], task=asked)
    if not isinstance(gold, Gold):
        return f"{row['gold']!r}: {gold}"
    verdict = verify(gold, row["response"])
    if (verdict.value == 1.0) == row["expected"] and verdict.fault in (None, "candidate"):
        return None
    return f"{row['gold']!r} against {row['response']!r}: {verdict.evidence[0].summary}"


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
def test_every_answer_of_a_kind_is_judged_as_labelled(kind: str) -> None:
    assert [found for row in ROWS if row["kind"] == kind and (found := wrong(row))] == []


def test_every_kind_has_both_labels() -> None:
    labels: defaultdict[str, set[bool]] = defaultdict(set)
    for row in ROWS:
        labels[row["kind"]].add(row["expected"])
    assert len(ROWS) > 600
    assert {kind for kind, both in labels.items() if both != {True, False}} == set()
