"""The specification's rows of the rule verifiers come out as labelled, in the main thread and in another."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from assay import Verdict
from assay.registry import component_from
from assay.testing import judge_text

KINDS = {"mcq": 9, "json_schema": 7, "tool_call": 7, "ifeval": 14, "format_think_answer": 13}


def rows(shared: Path, kind: str) -> list[dict[str, Any]]:
    lines = (shared / "cases/other_cases.jsonl").read_text("utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def judged(row: dict[str, Any]) -> Verdict:
    """The verdict on one row of the case file."""
    facts: dict[str, Any]
    match row["kind"]:
        case "mcq":
            name, text, facts = "choice", row["response"], {"reference": row["gold"], "options": row["options"]}
        case "json_schema":
            name, text, facts = "json-schema", row["response"], {"reference": None, "schema": row["schema"]}
        case "tool_call":
            facts = {"reference": row["gold_calls"], "order": row["order"]}
            name, text = "tool-call", json.dumps(row["response_calls"])
        case "ifeval":
            given = [{"id": row["instruction"], "kwargs": row["kwargs"]}]
            name, text, facts = "instructions", row["response"], {"reference": None, "instructions": given}
        case _:
            name, text, facts = "format", row["response"], {"reference": None}
    component = component_from("assay_rules", "reward_source", name)
    return judge_text(component, text, reference=facts.pop("reference"), facts=facts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_as_labelled(shared: Path, kind: str) -> None:
    found = rows(shared, kind)
    assert len(found) == KINDS[kind]
    here = [judged(row) for row in found]
    wrong = [row["id"] for row, verdict in zip(found, here, strict=True) if verdict.value != float(row["expected"])]
    assert not wrong
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(judged, found)) == here


def test_an_invalid_schema_abstains_with_its_reason(shared: Path) -> None:
    (row,) = (row for row in rows(shared, "must_abstain") if row["verifier"] == "json_schema")
    component = component_from("assay_rules", "reward_source", "json-schema")
    verdict = judge_text(component, row["response"], facts={"schema": row["schema"]})
    assert (verdict.status, verdict.reason, verdict.fault) == (row["expected_verdict"], row["reason"], "ours")


def test_every_instruction_of_the_ifeval_data_is_known_with_its_arguments(shared: Path) -> None:
    component = component_from("assay_rules", "reward_source", "instructions")
    lines = (shared / "data/ifeval/input_data.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 540
    for line in lines:
        row = json.loads(line)
        facts = {"instruction_id_list": row["instruction_id_list"], "kwargs": row["kwargs"]}
        verdict = judge_text(component, "A short answer.", facts=facts, options={"score": "share"})
        assert verdict.status == "scored", (row["key"], verdict)
        assert len(verdict.evidence) == len(row["kwargs"])
