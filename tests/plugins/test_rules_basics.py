"""`python`, `exact`, `format`, `length` and `overlong`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assay import BuildContext, Candidate, ConfigError, Message, Rollout, Task, Turn, Verdict
from assay.registry import component_from
from assay_rules.plugin import assay_reward_sources


def judge(name: str, text: str, reference: Any = None, *, base_dir: Path | None = None, **options: Any) -> Verdict:
    """The verdict of the built source `name` on one text."""
    (component,) = (found for found in assay_reward_sources() if found.name == name)
    source = component.build(component.config(**options), BuildContext(base_dir=base_dir or Path()))
    task = Task(id="t", messages=(Message(role="user", content="?"),), reference=reference)
    rollout = Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text=text),))
    (verdict,) = asyncio.run(source.judge([Candidate(task=task, rollout=rollout)]))
    return verdict


def test_format_matches_the_specifications_rows(shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "cases/other_cases.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["kind"] == "format_think_answer"]
    assert len(rows) == 13
    wrong = [row["id"] for row in rows if judge("format", row["response"]).value != float(row["expected"])]
    assert not wrong


@pytest.mark.parametrize(
    ("template", "text", "value"),
    [
        ("Reason: {why}\nAnswer: {what}", "Reason: because\nAnswer: 4", 1.0),
        ("Reason: {why}\nAnswer: {what}", "Reason: because\nAnswer: ", 0.0),
        ("Reason: {why}\nAnswer: {what}", "Answer: 4\nReason: because", 0.0),
        ("Reason: {why}\nAnswer: {what}", "Reason: x\nAnswer: 4\nAnswer: 5", 0.0),
        ("{before}<sep>{after}", "a <sep> b", 1.0),
        ("{before}<sep>{after}", "<sep> b", 0.0),
        ("<a>{x}</a><a>{y}</a>", "<a>1</a> <a>2</a>", 1.0),
        ("<a>{x}</a><a>{y}</a>", "<a>1<a>2</a></a>", 0.0),
    ],
)
def test_format_follows_a_custom_template(template: str, text: str, value: float) -> None:
    assert judge("format", text, template=template).value == value


@given(
    think=st.text(alphabet=st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1),
    answer=st.text(alphabet=st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1),
)
def test_format_accepts_any_filled_template_and_nothing_else(think: str, answer: str) -> None:
    text = f"<think>{think}</think>\n<answer>{answer}</answer>"
    assert judge("format", text).value == float(bool(think.strip() and answer.strip()))
    assert judge("format", text + "x").value == 0.0


@pytest.mark.parametrize("template", ["{a}{b}", "no field", "{a}", "<x>{a}{b}</x>"])
def test_a_template_that_cannot_be_checked_is_refused(template: str) -> None:
    with pytest.raises(ValidationError, match="literal text"):
        judge("format", "x", template=template)


@pytest.mark.parametrize(
    ("options", "characters", "value"),
    [
        ({"max_characters": 10}, 10, 1.0),
        ({"max_characters": 10}, 15, 0.5),
        ({"max_characters": 10}, 20, 0.0),
        ({"max_characters": 10, "slack": 0.5}, 15, 0.0),
        ({"max_characters": 10, "shape": "step"}, 11, 0.0),
        ({"max_characters": 10, "shape": "linear"}, 4, 0.6),
        ({"max_characters": 10, "minimum": 5}, 4, 0.0),
    ],
)
def test_length_has_the_documented_shapes(options: dict[str, Any], characters: int, value: float) -> None:
    assert judge("length", "x" * characters, **options).value == pytest.approx(value)


def test_length_counts_the_engines_tokens_and_says_what_it_counted() -> None:
    (component,) = (found for found in assay_reward_sources() if found.name == "length")
    source = component.build(component.config(max_tokens=2), BuildContext())
    task = Task(id="t", messages=(Message(role="user", content="?"),))
    with_ids = Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text="a b c", token_ids=(1, 2, 3)),))
    without = Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text="a, b"),))
    verdicts = asyncio.run(source.judge([Candidate(task=task, rollout=rollout) for rollout in (with_ids, without)]))
    assert [verdict.value for verdict in verdicts] == [0.5, 0.5]
    assert [verdict.evidence[0].summary.split(";")[0] for verdict in verdicts] == ["3 tokens", "3 words and marks"]


@pytest.mark.parametrize(
    ("tokens", "value"), [(16384, 0.0), (16385, -0.000244140625), (18432, -0.5), (20480, -1.0), (20481, -1.0)]
)
def test_overlong_equals_the_dapo_paper(tokens: int, value: float) -> None:
    # arXiv 2503.14476, equation 13, at L_max 20480 and L_cache 4096.
    assert judge("overlong", "x " * tokens).value == value


@pytest.mark.parametrize(
    ("text", "reference", "options", "value"),
    [
        ("blue", "blue", {}, 1.0),
        ("The answer is **blue**.", "blue", {}, 1.0),
        ("**The answer is blue.**", "blue", {}, 1.0),
        ("**Answer:** blue", "blue", {}, 1.0),
        ("**Answer:**\nblue", "blue", {}, 1.0),
        ("Answer: $blue$.", "blue", {}, 1.0),
        ("Answer: $5", "$5", {}, 1.0),
        ("<think>red</think><answer>blue</answer>", "blue", {}, 1.0),
        ("<think>The answer is blue</think>red", "blue", {}, 0.0),
        (r"So \boxed{\text{blue}}", "blue", {}, 1.0),
        ("#### blue", "blue", {}, 1.0),
        ("Blue", "blue", {}, 0.0),
        ("Blue", "blue", {"ignore_case": True}, 1.0),
        ("the  sky", "sky", {"ignore_article": True}, 1.0),
        ("blue or red", "blue", {}, 0.0),
        ("blue red green", "blue", {}, 0.0),
        ("red", ["blue", "red"], {}, 1.0),
        ("7", 7, {}, 1.0),
        ("b\u200blue", "blue", {}, 0.0),
        ("bl\u0443e", "blye", {}, 0.0),
    ],
)
def test_exact(text: str, reference: Any, options: dict[str, Any], value: float) -> None:
    assert judge("exact", text, reference, **options).value == value


@pytest.mark.parametrize(
    ("text", "reference", "reason", "fault"),
    [
        (" \n", "blue", "empty_response", "candidate"),
        ("<think>blue", "blue", "no_answer", "candidate"),
        (r"\boxed{blue", "blue", "no_answer", "candidate"),
        ("blue", None, "gold_empty", "ours"),
        ("blue", "", "gold_empty", "ours"),
        ("blue", [], "gold_empty", "ours"),
        ("blue", {"a": 1}, "gold_empty", "ours"),
    ],
)
def test_exact_abstains(text: str, reference: Any, reason: str, fault: str) -> None:
    verdict = judge("exact", text, reference)
    assert (verdict.status, verdict.reason, verdict.fault) == ("abstained", reason, fault)


def test_a_megabyte_of_marks_is_read_in_linear_time() -> None:
    for mark in ("$", "**", "\\boxed{", "answer is ", "<answer>", "`", "####", "{", " "):
        assert judge("exact", mark * (1_000_000 // len(mark)), "x").value != 1.0


def test_python_judges_by_a_local_file(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("GOOD = 'yes'\n", "utf-8")
    (tmp_path / "mine.py").write_text(
        "from assay import Verdict, verifier\n"
        "from neighbour import GOOD\n"
        "def score(task, rollout):\n"
        "    return Verdict.score(float(rollout.text == GOOD), evidence='compared')\n"
        "async def later(task, rollout):\n"
        "    return score(task, rollout)\n"
        "named = verifier('named')(score)\n"
        "number = 3\n",
        "utf-8",
    )
    for function in ("score", "later", "named"):
        assert judge("python", "yes", base_dir=tmp_path, path=f"mine.py:{function}").value == 1.0
        assert judge("python", "no", base_dir=tmp_path, path=f"mine.py:{function}").value == 0.0
    with pytest.raises(ConfigError, match=r"mine\.py:scor: mine\.py has no 'scor'; .*Did you mean 'score'\?"):
        judge("python", "yes", base_dir=tmp_path, path="mine.py:scor")
    with pytest.raises(ConfigError, match=r"'number' is a int, not a function"):
        judge("python", "yes", base_dir=tmp_path, path="mine.py:number")
    with pytest.raises(ConfigError, match=r"other\.py:score: no such file"):
        judge("python", "yes", base_dir=tmp_path, path="other.py:score")


def test_python_tells_why_a_file_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module_here\n", "utf-8")
    with pytest.raises(ConfigError, match="cannot be imported: ModuleNotFoundError: No module named"):
        judge("python", "yes", base_dir=tmp_path, path="broken.py:score")
    with pytest.raises(ValidationError, match=r"expected 'file\.py:function', found 'broken'"):
        judge("python", "yes", base_dir=tmp_path, path="broken")


def test_a_changed_file_has_another_fingerprint_so_that_no_old_verdict_is_reused(tmp_path: Path) -> None:
    component = component_from("assay_rules", "reward_source", "python")

    def fingerprint(body: str) -> str:
        (tmp_path / "mine.py").write_text(f"def score(task, rollout):\n    {body}\n", "utf-8")
        source = component.build(component.config(path="mine.py:score"), BuildContext(base_dir=tmp_path))
        return str(getattr(source, "fingerprint"))  # noqa: B009  # not part of the protocol

    first = fingerprint("return None")
    assert first == fingerprint("return None")
    assert first != fingerprint("return 1")
