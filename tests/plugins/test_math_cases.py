"""The math sources against the specification's labelled cases, real golds and responses, and their own suites."""

import json
from pathlib import Path
from typing import Any

import pytest

import assay_math
from assay.contracts import Message, Task, Verdict
from assay.testing import read_cases, run_reward_suite
from assay_math.extract import extract
from assay_math.found import Extraction
from assay_math.options import MathPolicy
from assay_math.rewrites import REWRITES
from assay_math.verify import BadGold, Gold, read_gold, verify

CASES = Path(assay_math.__file__).parent / "cases"
ATTACKS = {"attack_listing", "attack_range", "attack_injection", "think_only", "gold_from_prompt", "truncated_latex"}
READ_ALL = MathPolicy(equal_strings=False)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def judged(row: dict[str, Any]) -> Verdict:
    facts = {"options": row["options"]} if row.get("options") else {}
    message = Message(role="user", content=row.get("prompt") or "?")
    gold = read_gold(row["gold"], task=Task(id=row["id"], messages=(message,), reference=row["gold"], facts=facts))
    assert isinstance(gold, Gold), gold
    return verify(gold, row["prediction"])


def test_labelled_cases_reach_the_targets(shared: Path) -> None:
    table = [row for row in rows(shared / "cases" / "math_cases.jsonl") if not row.get("debatable")]
    verdicts = [(row, judged(row)) for row in table]
    wrong = [row["id"] for row, verdict in verdicts if (verdict.value == 1.0) != row["expected"]]
    false_positives = [row for row, verdict in verdicts if verdict.value == 1.0 and not row["expected"]]
    abstained = [row for row, verdict in verdicts if verdict.value is None and not row.get("abstain_ok")]
    assert len(table) == 202
    assert len(wrong) <= 0.03 * len(table), wrong
    assert len(false_positives) <= 1, false_positives
    assert not [row for row in false_positives if row["kind"] in ATTACKS]
    assert len(abstained) <= 0.05 * len(table)
    assert all(verdict.fault == "candidate" for _, verdict in verdicts if verdict.value is None)


def test_unreadable_golds_are_ours_and_named(shared: Path) -> None:
    table = [row for row in rows(shared / "cases" / "other_cases.jsonl") if row["kind"] == "must_abstain"]
    ours = [row for row in table if row["verifier"] == "math"]
    assert len(ours) == 3
    for row in ours:
        gold = read_gold(row["gold"])
        assert isinstance(gold, BadGold)
        assert gold.reason == row["reason"]


def test_golds_are_read_and_their_rewrites_accepted(shared: Path) -> None:
    boxed = MathPolicy(rules=("boxed",))
    solutions = [extract(row["solution"], boxed) for row in rows(shared / "data" / "math" / "test.jsonl")[::5]]
    golds = [row["answer"] for row in rows(shared / "data" / "math" / "math500.jsonl")]
    golds += [found.text for found in solutions if isinstance(found, Extraction)]
    assert len(golds) == 1_500
    for place, answer in enumerate(golds):
        gold = read_gold(answer, READ_ALL)
        assert isinstance(gold, Gold), (answer, gold)
        for written in (answer, *(rewrite(answer) for rewrite in REWRITES.values())):
            if written is not None:
                verdict = verify(gold, f"Hence \\boxed{{{written}}}.")
                assert verdict.value == 1.0, (answer, written, verdict.evidence)
        following = golds[(place + 1) % len(golds)]
        other = read_gold(following, READ_ALL)
        assert isinstance(other, Gold)
        verdict = verify(gold, f"Hence \\boxed{{{following}}}.")
        # Equality has no direction: what is accepted one way is accepted the other way.
        assert (verdict.value == 1.0) == (verify(other, f"\\boxed{{{answer}}}").value == 1.0), (answer, following)


def test_labelled_responses_agree_but_for_the_one_wrong_label(shared: Path) -> None:
    others: list[str] = []
    for row in rows(shared / "data" / "bon_math100" / "math_cot_100.jsonl"):
        gold = read_gold(row["answer"])
        assert isinstance(gold, Gold)
        for text, label in zip(row["responses"], row["correct"], strict=True):
            if (verify(gold, text).value == 1.0) != label:
                others.append(row["answer"])
    assert others == ["10{,}000"]


def test_the_suite_of_math() -> None:
    results = run_reward_suite("math", other_process=False, huge=100_000)
    assert not [result for result in results if result.status == "failed"]
    kinds = {case.kind for case in read_cases(CASES / "math.jsonl")}
    listed = {"many candidates", "only in reasoning", "gold from the prompt", "injection", "look-alike", "format only"}
    assert listed | {"hidden characters", "towers", "truncated"} <= kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["math", "math-verify"])
def test_the_suites_in_another_process_and_with_a_megabyte(name: str) -> None:
    results = run_reward_suite(name, options={"wall_s": 1.0} if name == "math-verify" else None)
    assert not [result for result in results if result.status == "failed"]
