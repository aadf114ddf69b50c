"""What plugin authors test with: the strategies, the fixtures, the scripted service."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from hypothesis import given

from assay import Candidate, Verdict
from assay.registry import Registry, component_from
from assay.testing import scripted_endpoint
from assay.testing.cases import judge_text
from assay.testing.strategies import candidates, verdicts


@given(candidates(), verdicts(-1.0, 0.0))
def test_what_the_strategies_draw_survives_json(candidate: Candidate, verdict: Verdict) -> None:
    assert Candidate.model_validate_json(candidate.model_dump_json()) == candidate
    assert candidate.rollout.task_id == candidate.task.id
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert verdict.value is None or -1.0 <= verdict.value <= 0.0


@given(candidates())
def test_a_rule_bears_any_candidate(candidate: Candidate) -> None:
    component = component_from("assay_rules", "reward_source", "exact")
    verdict = judge_text(component, candidate.rollout.text, reference=candidate.task.reference)
    assert verdict.value in (None, 0.0, 1.0)


def test_the_fixtures_reach_installed_sources(assay_verdict: Callable[..., Verdict], assay_registry: Registry) -> None:
    assert assay_verdict("exact", "blue", reference="blue").value == 1.0
    assert "exact" in assay_registry.names("reward_source")


def test_the_scripted_service_answers_by_its_script_and_keeps_what_it_was_asked() -> None:
    def post(address: str) -> dict[str, object]:
        data = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
        with urllib.request.urlopen(urllib.request.Request(address, data=data), timeout=60) as answer:
            return json.load(answer)

    with scripted_endpoint(lambda body: body["messages"][0]["content"].upper()) as endpoint:
        answer = post(f"{endpoint.base_url}/chat/completions")
        assert answer["choices"][0]["message"]["content"] == "HI"  # pyright: ignore[reportIndexIssue]  # JSON
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            post(f"{endpoint.base_url}/other")
        refused.value.close()
    assert [body["messages"][0]["content"] for body in endpoint.requests] == ["hi", "hi"]
