"""Every rule verifier passes the conformance suite with its own cases: golds, cheats, abstentions, hostile text."""

from pathlib import Path

import pytest

import assay_rules
from assay.registry import Registry
from assay.testing import judge_text, read_cases, run_reward_suite

CASES = sorted(Path(assay_rules.__file__).parent.glob("cases/*.jsonl"))
NAMES = [path.stem for path in CASES]
ATTACKED = {"many candidates", "only in reasoning", "gold from the prompt", "look-alike", "hidden characters"}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


def test_every_rule_has_cases(registry: Registry) -> None:
    ours = {
        name
        for name in registry.names("reward_source")
        if registry.origin("reward_source", name).module == "assay_rules"
    }
    assert ours - {"python"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_suite(name: str, registry: Registry) -> None:
    results = run_reward_suite(name, registry=registry, other_process=False, huge=100_000)
    assert not [result for result in results if result.status == "failed"]
    assert sum(result.status == "passed" for result in results) >= 7


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_suite_in_another_process_and_with_a_megabyte(name: str, registry: Registry) -> None:
    results = run_reward_suite(name, registry=registry)
    assert not [result for result in results if result.status == "failed"]


def test_the_cheats_cover_the_kinds_of_attack() -> None:
    kinds = {case.kind for path in CASES for case in read_cases(path)}
    assert kinds >= ATTACKED


def test_every_gold_rule_rejects_an_answer_that_is_only_in_its_reasoning() -> None:
    with_gold = {"exact", "numeric", "choice", "json-schema", "tool-call", "state-match", "token-f1", "edit-distance"}
    covered = {path.stem for path in CASES if any(case.kind == "only in reasoning" for case in read_cases(path))}
    assert covered >= with_gold


@pytest.mark.parametrize("name", NAMES)
def test_ten_megabytes_are_abstained_on(name: str, registry: Registry) -> None:
    component = registry.component("reward_source", name)
    verdict = judge_text(component, "x" * 10_000_000, options={"pattern": "x*"} if name == "pattern" else None)
    assert (verdict.reason, verdict.fault) == ("response_too_long", "candidate")
