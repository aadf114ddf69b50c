"""The judge of the first wrong step: shares, spans, votes, and the update that it guides."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay import Verdict
from assay.registry import component_from
from assay.testing import judge_text, scripted_endpoint

Body = Mapping[str, Any]
ANSWER = "two and two is 4\n\n4 times 2 is 9\n\n\n\n  9 minus 1 is 8 \n\nso 8"


def ask(text: str, *votes: object, **options: Any) -> Verdict:
    """The verdict where the judge's votes name these steps: a vote's seed says which it is, in any order of arrival."""

    def script(body: Body) -> str:
        mark = re.findall(r'"key": "([0-9a-f]{12})"', body["messages"][-1]["content"])[-1]
        return json.dumps({"reason": "because", "first_wrong_step": votes[body["seed"]], "key": mark})

    component = component_from("assay_judge", "reward_source", "judge-first-error")
    with scripted_endpoint(script) as endpoint:
        given = {"base_url": endpoint.base_url, "model": "scripted", "concurrency": 1, **options}
        return judge_text(component, text, options=given)


@pytest.mark.parametrize(("step", "value"), [(1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75), (0, 0.75)])
def test_the_value_is_the_share_before_the_first_wrong_step(step: int, value: float):
    assert ask(ANSWER, step).value == value


def test_step_scores_carry_spans_up_to_the_first_wrong_step():
    verdict = ask(ANSWER, 3)
    cut = [(ANSWER[score.span.start : score.span.end], score.value) for score in verdict.steps]
    assert cut == [("two and two is 4", 1.0), ("4 times 2 is 9", 1.0), ("9 minus 1 is 8", 0.0)]
    assert [score.value for score in ask(ANSWER, 0).steps] == [1.0] * 4
    assert ask("one step alone", 0).value == 0.0


def test_the_median_vote_counts_and_none_stands_behind_all():
    verdict = ask(ANSWER, 0, 2, 3, votes=3, temperature=1.0)
    assert verdict.value == 0.5
    assert verdict.confidence == pytest.approx(1 / 3)
    assert [item.data for item in verdict.evidence[:3]] == [{"first_error": n} for n in (None, 1, 2)]


@pytest.mark.parametrize("step", [5, -1, 1.5, "2", True, None])
def test_an_unreadable_vote_is_masked_as_ours(step: object):
    verdict = ask(ANSWER, step)
    assert (verdict.status, verdict.reason, verdict.fault) == ("abstained", "judge_unreadable", "ours")


def test_too_many_steps_and_no_step_are_the_candidates_doing():
    assert ask(ANSWER, max_steps=3).reason == "too_many_steps"
    assert ask(" \n\n ").reason == "empty_response"


CONFIG = """
kind = "rlvr"
name = "guided"
steps = 1
policy = {{ model = "model" }}
tasks = {{ use = "jsonl", path = "tasks.jsonl", columns = {{ prompt = "question", reference = "answer" }} }}
engine = {{ use = "transformers", group_size = 6, max_new_tokens = 12, template = "plain" }}
rewards = [
    {{ use = "math" }},
    {{ use = "judge-first-error", base_url = "{url}", model = "m", splitter = {{ separator = "1" }}, channel = "rts" }},
]
optimizer = {{ use = "{optimizer}", learning_rate = 1e-4 }}
loop = {{ groups_per_step = 2 }}
"""


@pytest.mark.parametrize(("optimizer", "learns"), [("sgpo", True), ("dr_grpo", False)])
def test_a_group_that_is_wrong_as_a_whole_is_guided_by_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, learns: bool
):
    from assay.api import load_config, train
    from assay.training.tiny import make_tiny_model

    def last_step(body: Body) -> str:
        content = body["messages"][-1]["content"]
        mark = re.findall(r'"key": "([0-9a-f]{12})"', content)[-1]
        count = int(re.findall(r"from 1 to (\d+)", content)[-1])
        return json.dumps({"reason": "", "first_wrong_step": count, "key": mark})

    make_tiny_model(tmp_path / "model", hidden_size=32, layers=1)
    rows = [{"question": f"{n}+1=", "answer": "123456"} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with scripted_endpoint(last_step) as endpoint:
        (tmp_path / "run.toml").write_text(CONFIG.format(url=endpoint.base_url, optimizer=optimizer), encoding="utf-8")
        run = train(load_config(tmp_path / "run.toml"), base_dir=tmp_path)
    (line,) = run.metrics
    assert line["reward"] == 0.0
    assert (line.get("grad_norm", 0.0) > 0) == learns
