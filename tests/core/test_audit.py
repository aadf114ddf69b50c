"""The audit finds what is wrong with a verifier, with golds, with labels, and with a run."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import BuildContext, Message, Reward, Rollout, Task, Turn, Verdict
from assay.cli import main
from assay.config.rewards import SourceEntry
from assay.contracts import Judgement, RunInfo
from assay.registry import Registry
from assay.reports.audit import (
    Bench,
    as_label,
    audit_against,
    audit_data,
    audit_labels,
    confusion_row,
    neighbours,
)
from assay.reports.differences import Answer, Outcome, gold_text
from assay.reports.page import Page, Section, write_page
from assay.reports.suspects import Judged, drift, find_suspects, suspect_sections
from assay.store import RunStore


def task(name: str, reference: str | None, prompt: str = "Which colour has the sky at noon?") -> Task:
    return Task(id=name, messages=(Message(role="user", content=prompt),), reference=reference)


def bench(name: str, tmp_path: Path, **options: object) -> Bench:
    entry = SourceEntry.model_validate({"use": name, **options})
    return Bench(entry, registry=Registry.load(), context=BuildContext(base_dir=tmp_path))


def sections_of(tasks: Sequence[Task], name: str, tmp_path: Path, **options: object) -> dict[str, Section]:
    async def run() -> list[Section]:
        async with bench(name, tmp_path, **options) as opened:
            return await audit_data(opened, tasks)

    return {section.title: section for section in asyncio.run(run())}


def test_a_right_verifier_holds_everywhere(tmp_path: Path) -> None:
    found = sections_of([task("1", "blue"), task("2", "red"), task("3", "Red ")], "exact", tmp_path)
    assert {title: section.good for title, section in found.items()} == {
        "golds can be read": True,
        "the gold is accepted": True,
        "an empty answer is not accepted": True,
        "the question sent back is not accepted": True,
        "another row's gold is not accepted": True,
        "three runs agree": True,
    }
    assert "3 of 3 golds are accepted" in found["the gold is accepted"].notes[0]


def test_golds_that_cannot_be_read_are_listed_by_row_and_left_out(tmp_path: Path) -> None:
    found = sections_of([task("1", "12"), task("2", "a dozen"), task("3", "13")], "numeric", tmp_path)
    unreadable = found["golds can be read"]
    assert not unreadable.good
    assert [row[0] for row in unreadable.rows] == ["2"]
    assert "2 of 2 golds" in found["the gold is accepted"].notes[0]


def test_rows_that_share_a_name_are_tried_one_by_one(tmp_path: Path) -> None:
    found = sections_of([task("a", "5"), task("a", "a dozen"), task("a", "7")], "numeric", tmp_path)
    assert found["golds can be read"].notes[0].startswith("1 of 3 golds cannot be read")
    assert "2 of 2 golds are accepted" in found["the gold is accepted"].notes[0]


def test_a_lenient_verifier_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "lenient.py").write_text(
        "import os\n"
        "from assay import Verdict\n"
        "def contains(task, rollout):\n"
        "    return Verdict.score(float(str(task.reference) in rollout.text or len(rollout.text) < 5))\n"
        "def moody(task, rollout):\n"
        # One count for all worker processes: every third call scores, so no two answers can agree in three runs.
        "    file = os.open(__file__ + '.calls', os.O_APPEND | os.O_CREAT | os.O_RDWR)\n"
        "    os.write(file, b'.')\n"
        "    return Verdict.score(float(os.lseek(file, 0, os.SEEK_CUR) % 3 == 0))\n",
        "utf-8",
    )
    tasks = [task("1", "blue", "Is it blue or green?"), task("2", "red", "Is it red?")]
    found = sections_of(tasks, "python", tmp_path, path="lenient.py:contains")
    assert {title for title, section in found.items() if section.good is False} == {
        "an empty answer is not accepted",
        "the question sent back is not accepted",
        "another row's gold is not accepted",
    }
    assert found["the question sent back is not accepted"].rows[0][:2] == ("1", "blue")
    assert not sections_of(tasks, "python", tmp_path, path="lenient.py:moody", deterministic=False)[
        "three runs agree"
    ].good


def test_labels_give_a_confusion_by_kind_and_list_the_errors(tmp_path: Path) -> None:
    answers = [
        Answer(task("1", "blue"), "blue", True, "a"),
        Answer(task("2", "blue"), "Blue", True, "a"),
        Answer(task("3", "blue"), "red", False, "b"),
        Answer(task("4", "blue"), "<think>blue", False, "b"),
        Answer(task("5", "blue"), "blue", False, "b"),
        Answer(task("6", None), "blue", False, "b"),
    ]

    async def run() -> list[Section]:
        async with bench("exact", tmp_path) as opened:
            return await audit_labels(opened, answers)

    table, errors = asyncio.run(run())
    everything = dict(zip(table.columns, table.rows[0], strict=True))
    assert (everything["right accepted"], everything["right rejected"], everything["not judged"]) == ("1", "1", "1")
    assert (everything["wrong accepted"], everything["wrong rejected"], everything["wrong abstained"]) == (
        "1",
        "1",
        "1",
    )
    assert everything["false positives"].startswith("33.3 %")
    assert everything["false negatives"].startswith("50.0 %")
    assert [row[0] for row in table.rows] == ["all", "a", "b"]
    assert [row[0] for row in errors.rows] == ["5", "2"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["scored 1", "scored 0", "candidate", "ours"])), max_size=30))
def test_a_confusion_row_counts_every_answer_once(rows: list[tuple[bool, str]]) -> None:
    outcomes = {
        "scored 1": Outcome("scored", 1.0, None, None, ""),
        "scored 0": Outcome("scored", 0.0, None, None, ""),
        "candidate": Outcome("abstained", None, "no_answer", "candidate", ""),
        "ours": Outcome("failed", None, "timed out", "ours", ""),
    }
    pairs = [(Answer(task(str(i), "x"), "x", label), outcomes[said]) for i, (label, said) in enumerate(rows)]
    row = confusion_row("all", pairs, 0.5)
    assert int(row[1]) == len(rows) == sum(int(cell) for cell in row[2:9])
    accepted = sum(label and said == "scored 1" for label, said in rows)
    assert int(row[2]) == accepted
    judged = sum(label and said != "ours" for label, said in rows)
    assert row[10] == "no right answers" if not judged else row[10].startswith(f"{100 * (1 - accepted / judged):.1f} %")


def test_two_verifiers_are_compared_the_largest_difference_first(tmp_path: Path) -> None:
    answers = [Answer(task("1", "blue"), "blue"), Answer(task("2", "blue"), "blues"), Answer(task("3", "blue"), "Blue")]

    async def run() -> list[Section]:
        async with bench("exact", tmp_path) as first, bench("edit-distance", tmp_path) as second:
            return await audit_against(first, second, answers)

    table, largest = asyncio.run(run())
    assert dict(zip(table.columns, table.rows[0], strict=True))["accepted"] == "1"
    assert dict(zip(table.columns, table.rows[1], strict=True))["accepted"] == "2"
    assert [row[0] for row in largest.rows] == ["2", "3"]
    assert "agree on 1" in table.notes[0]


@given(st.lists(st.sampled_from(["5", "x=5", "6", "blue", "Blue ", "the blue", "[]", "{}"]), min_size=1, max_size=8))
def test_a_neighbours_gold_is_always_another_answer(golds: list[str]) -> None:
    tasks = [task(str(index), gold) for index, gold in enumerate(golds)]
    found = neighbours(tasks)
    same = {"x=5": "5", "Blue ": "blue"}
    different = len({same.get(gold, gold) for gold in golds}) > 1
    assert len(found) == (len(tasks) if different else 0)
    assert all(same.get(gold_text(own), gold_text(own)) != same.get(other, other) for own, other in found)


def test_labels_are_read_in_their_usual_forms() -> None:
    assert [as_label(value) for value in (True, 1, 1.0, "True", "correct", "yes")] == [True] * 6
    assert [as_label(value) for value in (False, 0, "wrong", "0", "No")] == [False] * 5
    assert [as_label(value) for value in (None, 2, "maybe", 0.5)] == [None] * 4


def judged(step: int, name: str, text: str, value: float | None, *, prompt: str = "?", group: str = "g") -> Judged:
    rollout = Rollout(id=name, task_id=name, group_id=group, turns=(Turn(text=text),))
    return Judged(step, task(name, "4242", prompt), rollout, Reward(rollout_id=name, value=value))


def test_suspects_are_named_by_their_rule_and_only_where_the_reward_is_high() -> None:
    question = "Tom has four apples and buys three more apples at the market; how many apples has he now?"
    loop = "the answer is four " * 30
    entries = [
        judged(1, "empty", " 4 ", 1.0),
        judged(1, "echo", question, 1.0, prompt=question),
        judged(1, "loop", loop, 1.0),
        judged(1, "hidden", "4242\u200b", 1.0),
        judged(1, "plain", "It is 4242, since four and three make seven.", 1.0),
        judged(1, "poor loop", loop, 0.0),
        judged(1, "masked", loop, None),
    ]
    found = {(suspect.judged.rollout.id, suspect.rule) for suspect in find_suspects(entries)}
    assert found == {
        ("empty", "almost empty"),
        ("echo", "question sent back"),
        ("loop", "repeats itself"),
        ("hidden", "hidden characters"),
    }
    copies = [judged(1, f"c{index}", "Exactly the same long answer in every rollout of it.", 1.0) for index in range(4)]
    assert {s.rule for s in find_suspects([*copies, judged(1, "other", "x y", 0.0, group="h")])} == {
        "one text in a group"
    }
    assert not find_suspects([])


def test_drift_tells_of_lengths_and_of_a_held_out_source_that_falls() -> None:
    entries = [judged(step, f"r{step}", "word " * (5 + 5 * step), step / 10) for step in range(10)]
    evaluations = [
        {"step": 0, "accuracy": {"interval": [0.5, 0.4, 0.6]}},
        {"step": 9, "accuracy": {"interval": [0.3, 0.2, 0.4]}},
    ]
    lengthened, fell = drift(entries, evaluations)
    assert "characters in the mean" in lengthened
    assert "held-out 'accuracy' fell from 50.0% to 30.0%" in fell
    assert not drift(entries[:3], evaluations)
    assert suspect_sections([], [])[1].notes == ("none",)


def test_audit_of_a_file_prints_tables_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "a", "question": "1 + 1?", "answer": "2", "response": "2", "correct": True, "kind": "sum"},
        {"id": "b", "question": "1 + 2?", "answer": "3", "response": "4", "correct": True, "kind": "sum"},
        {"id": "c", "question": "1 + 3?", "answer": "4", "response": "<script>", "correct": False, "kind": "<b>"},
    ]
    data = tmp_path / "answers.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert main(["audit", str(data), "-r", "numeric", "--against", "exact"]) == 0
    printed = capsys.readouterr().out
    assert "the gold is accepted: holds" in printed
    assert "numeric (down) and exact (across)" in printed
    page = (tmp_path / "answers.audit.html").read_text("utf-8")
    assert "against the labels" in page
    assert "<script>" not in page
    assert main(["audit", str(data), "-r", "exact", "--sample", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["facts"]["rows"] == "2"


def test_audit_of_golds_alone_fails_with_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "golds.jsonl"
    data.write_text('{"question": "?", "answer": "many"}\n{"question": "?", "answer": "2"}\n', "utf-8")
    assert main(["audit", str(data), "-r", "numeric"]) == 3
    assert "golds can be read: DOES NOT HOLD" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ("{}\n", ["-r", "exact"], "no column holds a gold or a response"),
        ('{"answer": "x"}\n', [], "no reward source is named"),
        ('{"answer": "x"}\n', ["-r", "exakt"], "Did you mean 'exact'?"),
        (
            '{"answer": "x", "ok": "perhaps"}\n',
            ["-r", "exact", "--label", "ok"],
            "golds.jsonl:1: column 'ok' is no label",
        ),
        ("[]\n", ["-r", "exact"], "golds.jsonl:1"),
        ('{"answer": "x"}\n', ["-r", "exact", "--sample", "0"], "--sample 0: at least one row"),
        ('{"answer": "x"}\n', ["-r", "exact", "--sample", "-1"], "--sample -1: at least one row"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, arguments: list[str], message: str
) -> None:
    data = tmp_path / "golds.jsonl"
    data.write_text(rows, "utf-8")
    assert main(["audit", str(data), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_audit_of_a_run_lists_suspects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "toy-1a2b"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('kind = "rlvr"\n', "utf-8")
    info = RunInfo(id="toy-1a2b", name="toy", kind="rlvr", folder=str(folder), seed=0)
    with RunStore.create(folder, info) as store:
        for index, (text, value) in enumerate([("the answer is four " * 30, 1.0), ("four", 0.0)]):
            entry = judged(1, f"r{index}", text, value)
            store.add_rollout(entry.rollout, step=1, task=entry.task)
            assert entry.reward is not None
            store.add_reward(entry.reward, step=1, group_id="g")
    assert main(["audit", str(folder)]) == 0
    assert "repeats itself" in capsys.readouterr().out
    assert "repeats itself" in (folder / "audit.html").read_text("utf-8")


def run_of_two_sources(folder: Path) -> None:
    """A run whose source `exact` is right and whose source `graded` differs from it by more and less."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('kind = "rlvr"\n', "utf-8")
    with RunStore.create(folder, RunInfo(id=folder.name, name="two", kind="rlvr", folder=str(folder), seed=0)) as store:
        rows = [("blue", 1.0, 1.0), ("red", 0.0, 0.25), ("sky blue", 0.0, 1.0), ("azure", 0.0, 0.5), ("", 0.0, None)]
        for index, (text, right, graded) in enumerate(rows):
            entry = judged(1, f"r{index}", text, right)
            rollout = entry.rollout
            store.add_rollout(rollout, step=1, task=task(rollout.task_id, "blue"))
            verdicts = {"exact": Verdict.score(right), "length": Verdict.score(-0.5 - index)}
            verdicts["graded"] = Verdict.abstain("silent", fault="ours") if graded is None else Verdict.score(graded)
            for source, verdict in verdicts.items():
                store.add_judgement(
                    Judgement(
                        source=source,
                        version="1",
                        options_hash="o",
                        input_hash=f"i{index}",
                        rollout_id=rollout.id,
                        task_id=rollout.task_id,
                        verdict=verdict,
                        started_at=datetime.now(UTC),
                        latency_s=0.0,
                    )
                )


def test_audit_of_a_run_with_two_sources_lists_the_largest_difference_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of_two_sources(tmp_path / "runs" / "two-1a2b")
    assert main(["audit", str(tmp_path / "runs" / "two-1a2b"), "--json"]) == 0
    sections = {section["title"]: section for section in json.loads(capsys.readouterr().out)["sections"]}
    table = sections["exact (down) and graded (across)"]
    assert {first: rest for first, *rest in (row.values() for row in table["rows"])} == {
        "accepted": ["1", "0", "0", "0"],
        "rejected": ["2", "1", "0", "1"],
        "abstained": ["0", "0", "0", "0"],
        "not judged": ["0", "0", "0", "0"],
    }
    assert "of 4 answers that both scored, they agree on 2" in table["notes"][0]
    assert [[*row.values()][:3] for row in sections["the largest differences"]["rows"]] == [
        ["r2", "0", "1"],
        ["r3", "0", "0.5"],
        ["r1", "0", "0.25"],
    ]
    assert sections["not compared"]["notes"] == ["on another scale than 0 to 1: length"]


def test_audit_of_a_run_asks_a_named_source_and_a_second_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "two-1a2b"
    run_of_two_sources(run)
    assert main(["audit", str(run), "-r", "exact", "--against", "token-f1"]) == 0
    printed = capsys.readouterr().out
    assert "the gold is accepted: holds" in printed
    assert "exact (down) and token-f1 (across)" in printed
    assert main(["audit", str(run), "-r", "exakt"]) == 2
    assert "Did you mean 'exact'?" in capsys.readouterr().err
    assert main(["audit", str(run), "--against", "exact"]) == 2
    assert "needs a first source" in capsys.readouterr().err


def test_a_page_escapes_what_a_model_wrote(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\u202e"
    page = Page("t", (Section(hostile, ("a",), ((hostile,),), (hostile,), good=False),), {"b": hostile})
    text = write_page(page, tmp_path / "deep" / "page.html").read_text("utf-8")
    assert "<script>" not in text
    assert "\u202e" not in text
    assert not page.good
    assert page.to_dict()["good"] is False
