"""The conformance suite finds each way in which a source can break its rules, and passes one that keeps them."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay import Candidate, ConfigError, Evidence, Rollout, Task, Verdict, verifier
from assay.cli import main
from assay.component import BuildContext, Component, Options
from assay.contracts import Limits
from assay.protocols import RewardSource
from assay.testing import (
    Case,
    CheckResult,
    LowerBound,
    UpperBound,
    hostile_texts,
    read_cases,
    reward_suite,
    run_reward_suite,
)

CASES = [
    Case(text="yes", expect="accept", reference="yes", kind="gold"),
    Case(text="no", expect="reject", reference="yes", kind="cheat"),
    Case(text="?", expect="abstain", reference="yes", reason="unreadable", fault="candidate"),
]


def honest(task: Task, rollout: Rollout) -> Verdict:
    text = rollout.text.strip()
    if not text or text == "?":
        return Verdict.abstain("unreadable")
    return Verdict.score(float(text == task.reference), evidence="compared")


def results_of(function: Callable[[Task, Rollout], Verdict], **settings: Any) -> dict[str, CheckResult]:
    component = verifier("toy", isolation="inline", timeout_s=settings.pop("timeout_s", 30.0))(function)
    return run_component(component, **settings)


def run_component(component: Component[Any, RewardSource], **settings: Any) -> dict[str, CheckResult]:
    found = run_reward_suite("toy", component=component, cases=settings.pop("cases", CASES), huge=1000, **settings)
    return {result.check: result for result in found}


def failed(results: dict[str, CheckResult]) -> set[str]:
    return {name for name, result in results.items() if result.status == "failed"}


def test_an_honest_source_passes_and_what_cannot_be_checked_is_skipped() -> None:
    results = results_of(honest)
    assert not failed(results)
    assert results["same in another process"].status == "skipped"
    assert results["gives listed values"].status == "skipped"
    assert results["bears hostile text"].status == "passed"


def test_whatever_a_source_raises_or_returns_is_a_finding_and_no_traceback() -> None:
    class Stop(BaseException):
        """What no `except Exception` sees."""

    def raises(task: Task, rollout: Rollout) -> Verdict:
        raise Stop("always")

    def reads_the_last_line(task: Task, rollout: Rollout) -> Verdict:
        return honest(task, rollout) if rollout.text.splitlines()[-1] else Verdict.abstain("unreadable")

    def only_in_the_main_thread(task: Task, rollout: Rollout) -> Verdict:
        if threading.current_thread() is not threading.main_thread():
            raise Stop("elsewhere")
        return honest(task, rollout)

    def a_number(task: Task, rollout: Rollout) -> Verdict:
        return 1.0  # pyright: ignore[reportReturnType] # what the suite is to find

    def a_text(task: Task, rollout: Rollout) -> Verdict:
        return Verdict.model_construct(status="scored", value="1", steps=(), evidence=())  # pyright: ignore[reportArgumentType]

    assert results_of(raises)["judges its cases"].detail == "raised Stop: always"
    found = results_of(reads_the_last_line)["abstains on blank text"]
    assert (found.status, found.detail) == ("failed", "raised IndexError: list index out of range")
    assert "raised Stop in another thread" in results_of(only_in_the_main_thread)["same again and in a thread"].detail
    assert results_of(a_number)["judges its cases"].detail == "returned a float instead of a verdict"
    assert results_of(a_text)["judges its cases"].detail == "its value '1' is not a finite number"


def test_each_broken_rule_is_found_by_its_check() -> None:
    def lenient(task: Task, rollout: Rollout) -> Verdict:
        return Verdict.score(1.0, evidence="fine")

    def strict(task: Task, rollout: Rollout) -> Verdict:
        return Verdict.abstain("unreadable")

    def silent(task: Task, rollout: Rollout) -> Verdict:
        verdict = honest(task, rollout)
        return verdict.model_copy(update={"evidence": ()})

    def outside(task: Task, rollout: Rollout) -> Verdict:
        verdict = honest(task, rollout)
        return verdict if verdict.value is None else Verdict.score(7 * verdict.value, evidence="more is better")

    def moody(task: Task, rollout: Rollout) -> Verdict:
        verdict = honest(task, rollout)
        mood = Evidence(summary=str(random.random()))
        return verdict.model_copy(update={"evidence": (mood,)})

    def main_thread_only(task: Task, rollout: Rollout) -> Verdict:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal only works in main thread")
        return honest(task, rollout)

    def brittle(task: Task, rollout: Rollout) -> Verdict:
        rollout.text.encode("ascii")
        return honest(task, rollout)

    def blames_us(task: Task, rollout: Rollout) -> Verdict:
        return honest(task, rollout) if rollout.text.strip() else Verdict.abstain("empty", fault="ours")

    assert failed(results_of(lenient)) == {"rejects cheats", "abstains where listed", "abstains on blank text"}
    assert failed(results_of(strict)) == {"accepts golds"}
    assert failed(results_of(silent)) == {"gives evidence"}
    assert failed(results_of(outside)) == {"values are in range", "accepts golds"}
    assert failed(results_of(moody)) == {"same again and in a thread"}
    assert failed(results_of(main_thread_only)) == {"same again and in a thread", "bears hostile text"}
    assert failed(results_of(brittle)) == {"bears hostile text"}
    assert failed(results_of(blames_us)) == {"abstains on blank text"}


def test_a_source_that_raises_on_its_own_cases_is_one_finding() -> None:
    def broken(task: Task, rollout: Rollout) -> Verdict:
        raise KeyError("legal")

    assert list(results_of(broken).values()) == [CheckResult("judges its cases", "failed", "raised KeyError: 'legal'")]


def test_a_hang_is_found_within_the_limit() -> None:
    def hangs(task: Task, rollout: Rollout) -> Verdict:
        if "\x00" in rollout.text:
            time.sleep(30)
        return honest(task, rollout)

    detail = results_of(hangs, timeout_s=1.0)["bears hostile text"].detail
    assert detail == "nul bytes: not done after 1.5 s"


class Shuffled:
    """A batch source that mixes up its answers."""

    limits = Limits(max_batch=8)

    def __init__(self, mistake: Callable[[list[Verdict]], list[Verdict]]) -> None:
        self.mistake = mistake

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        return self.mistake([honest(candidate.task, candidate.rollout) for candidate in batch])

    async def aclose(self) -> None: ...


def backwards(verdicts: list[Verdict]) -> list[Verdict]:
    return verdicts[::-1]


def too_few(verdicts: list[Verdict]) -> list[Verdict]:
    return verdicts[:1]


def too_many(verdicts: list[Verdict]) -> list[Verdict]:
    return [*verdicts, Verdict.score(1.0)] if len(verdicts) != 1 else verdicts


@pytest.mark.parametrize("mistake", [backwards, too_few, too_many])
def test_a_batch_out_of_order_or_of_the_wrong_length_is_found(
    mistake: Callable[[list[Verdict]], list[Verdict]],
) -> None:
    def build(options: Options, context: BuildContext) -> RewardSource:
        return Shuffled(mistake)

    component: Component[Any, RewardSource] = Component("toy", Options, build, isolation="inline")
    assert failed(run_component(component)) == {"keeps order and length"}


def test_values_and_bounds_are_checked() -> None:
    def share(task: Task, rollout: Rollout) -> Verdict:
        if not rollout.text.strip():
            return Verdict.abstain("empty")
        return Verdict.score(min(1.0, len(rollout.text) / 4), evidence="length")

    good = [Case(text="ab", expect=0.5), Case(text="a", expect=UpperBound(at_most=0.3))]
    assert not failed(results_of(share, cases=good))
    bad = [Case(text="ab", expect=0.6), Case(text="abc", expect=UpperBound(at_most=0.3))]
    assert failed(results_of(share, cases=bad)) == {"gives listed values", "rejects cheats"}


def test_bounds_from_below_and_masked_abstentions_are_checked() -> None:
    def judge(task: Task, rollout: Rollout) -> Verdict:
        if rollout.text == "order":
            return Verdict.abstain("judge_unreadable", fault="ours")
        return honest(task, rollout) if not rollout.text.strip() else Verdict.score(0.8, evidence="graded")

    at_least, at_most = LowerBound(at_least=0.7), UpperBound(at_most=0.2, or_masked=True)
    assert not failed(results_of(judge, cases=[Case(text="a", expect=at_least), Case(text="order", expect=at_most)]))
    bad = [Case(text="order", expect=at_least), Case(text="order", expect=UpperBound(at_most=0.2))]
    results = results_of(judge, cases=[*bad, Case(text="a", expect=at_most)])
    assert failed(results) == {"gives listed values", "rejects cheats"}
    assert "expected at most 0.2, or an abstention" in results["rejects cheats"].detail


def test_a_function_of_a_file_is_checked_by_its_path_and_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text(
        "from assay import Verdict\n"
        "def same(task, rollout):\n"
        "    text = rollout.text.strip()\n"
        "    if not text or text == '?':\n"
        "        return Verdict.abstain('unreadable')\n"
        "    return Verdict.score(float(text == task.reference), evidence='compared')\n",
        "utf-8",
    )
    (tmp_path / "cases.jsonl").write_text("".join(case.model_dump_json() + "\n" for case in CASES), "utf-8")
    assert main(["check", "reward.py:same", "--cases", "cases.jsonl"]) == 0
    assert "0 failed" in capsys.readouterr().out
    assert main(["check", "reward.py:sane", "--cases", "cases.jsonl"]) == 2
    assert "it has same" in capsys.readouterr().err.replace("Verdict, ", "")
    assert main(["check", "python", "--cases", "cases.jsonl"]) == 2
    assert "'path' is missing" in capsys.readouterr().err


test_format_by_its_name = reward_suite("format", other_process=False, huge=1000)


def test_a_relative_path_of_cases_is_found_near_the_test_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = verifier("toy", isolation="inline")(honest)
    (tmp_path / "tests").mkdir()
    (tmp_path / "toy_cases.jsonl").write_text("".join(case.model_dump_json() + "\n" for case in CASES), "utf-8")
    source = (
        "from assay.testing import reward_suite\n"
        "def make(**settings): return reward_suite('toy', cases='toy_cases.jsonl', **settings)\n"
    )
    file = tmp_path / "tests" / "test_toy.py"
    file.write_text(source, "utf-8")
    names: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), names)
    names["make"](component=component, huge=1000)()
    with pytest.raises(AssertionError, match=r"toy: .*accepts golds"):
        names["make"](component=verifier("toy")(lambda task, rollout: Verdict.abstain("no")), huge=1000)()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"cases\.jsonl:1: not JSON"),
        ('{"text": "x"}', r"cases\.jsonl:1: expect: Field required"),
        ('{"text": "x", "expect": "accept", "gold": 1}', r"cases\.jsonl:1: gold: Extra inputs"),
        ("", "no cases; found no line"),
    ],
)
def test_a_bad_case_file_is_one_sentence(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "cases.jsonl").write_text(line + "\n", "utf-8")
    with pytest.raises(ConfigError, match=message):
        read_cases(tmp_path / "cases.jsonl")
    with pytest.raises(ConfigError, match="the cases cannot be read"):
        read_cases(tmp_path / "none.jsonl")


def test_hostile_texts_are_many_and_evidence_that_cannot_be_stored_is_found() -> None:
    assert len(dict(hostile_texts(huge=1000))) >= 30

    def copies(task: Task, rollout: Rollout) -> Verdict:
        found = json.loads(rollout.text)["answer"] if rollout.text.startswith('{"answer') else "compared"
        return honest(task, rollout).model_copy(update={"evidence": (Evidence.model_construct(summary=found),)})

    detail = results_of(copies)["bears hostile text"].detail
    assert detail.startswith("escaped surrogates: the verdict cannot be stored")


def test_check_prints_a_table_and_writes_a_page_and_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    arguments = ["check", "length", "--no-other-process", "--report", str(page), "--junit", str(junit)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "rejects cheats" in printed
    assert "0 failed" in printed
    assert "rejects cheats" in page.read_text("utf-8")
    assert 'failures="0"' in junit.read_text("utf-8")


def test_check_tells_what_fails_with_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"text": "red", "expect": "accept", "reference": "blue", "kind": "<b>gold</b>"}\n', "utf-8")
    page = tmp_path / "page.html"
    arguments = ["check", "exact", "--cases", str(cases), "--json", "--no-other-process", "--report", str(page)]
    assert main(arguments) == 3
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["check"], first["status"]) == ("accepts golds", "failed")
    assert "scored 0, expected accept" in first["detail"]
    assert "<b>" not in page.read_text("utf-8")
    assert main(["check", "exakt"]) == 2
    assert "Did you mean 'exact'?" in capsys.readouterr().err


def test_a_source_in_another_process_with_another_hash_seed_says_the_same() -> None:
    found = {result.check: result for result in run_reward_suite("json-schema", huge=1000)}
    assert found["same in another process"].status == "passed"
    assert os.environ.get("PYTHONHASHSEED") != "1"
