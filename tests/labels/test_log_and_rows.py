"""The completions on disk, and the files that go in and come out."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.errors import ConfigError, StoreError
from assay.labels import (
    Columns,
    CompletionLog,
    Labeller,
    LabelReport,
    LabelSettings,
    labelled_row,
    outcome_rows,
    read_solutions,
    trl_row,
    write_rows,
)
from assay.labels.nodes import Completion
from assay.steps import SplitterOptions
from assay.testing.chains import ChainJudge, Chains
from assay.testing.scripted import ScriptedEngine
from assay_prms.formats import read_row

LINES = SplitterOptions(by="line")
ONE = Completion("right", "text", 3, 5, 0)


def written(folder: Path, *rows: Mapping[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_log_gives_back_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = CompletionLog(path, {"seed": 1})
    log.completion("k", 2, ONE)
    log.outcome("s", "wrong")
    log.close()
    again = CompletionLog(path, {"seed": 1})
    assert again.completions == {"k": {2: ONE}}
    assert again.outcomes == {"s": "wrong"}
    assert again.kept == 1
    again.close()


def test_a_line_that_a_kill_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = CompletionLog(path, {})
    log.completion("k", 0, ONE)
    log.completion("k", 1, ONE)
    log.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-cut])
        again = CompletionLog(path, {})
        assert again.completions == {"k": {0: ONE}}
        again.completion("k", 1, ONE)
        again.close()
        assert path.read_bytes() == whole


def test_completions_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    CompletionLog(path, {"seed": 1, "model": "typo"}).close()
    log = CompletionLog(path, {"seed": 1, "model": "a"})  # nothing was drawn: there is nothing to mix with
    log.completion("k", 0, ONE)
    log.close()
    with pytest.raises(ConfigError, match=re.escape(f"{path}: its completions were made with another model; go on")):
        CompletionLog(path, {"seed": 1, "model": "b"})


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    log = CompletionLog(tmp_path / "log.jsonl", {})
    with pytest.raises(ConfigError, match="in use by another process"):
        CompletionLog(tmp_path / "log.jsonl", {})
    log.close()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"settings": {}}\n{"node": 1}\n', encoding="utf-8")
    with pytest.raises(StoreError, match=re.escape(f"{path}:2: not a line of completions")):
        CompletionLog(path, {})


def test_steps_are_taken_or_cut_and_always_tile_the_text(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"id": "cut", "problem": "p", "response": "one\ntwo \n\nthree", "answer": "3", "domain": "d", "extra": 7},
        {"id": "given", "prompt": [{"role": "user", "content": "p"}], "steps": ["one", " two"], "gold": 4},
        {"id": "short", "problem": "p", "response": "one", "finish": "length"},
    )
    first, second, third = read_solutions(path, splitter=LINES)
    assert first.steps == ["one", "two", "three"]
    assert first.prefix(2) == "one\ntwo \n\n"
    assert (first.task.reference, first.domain, first.task.facts["extra"]) == ("3", "d", 7)
    assert second.steps == ["one", "two"]
    assert second.prefix(1) + second.text[second.pieces[0].stop :] == second.text
    assert (second.task.reference, third.truncated, first.truncated) == (4, True, False)
    for each in (first, second):
        assert "".join(each.text[piece.begin : piece.stop] for piece in each.pieces) == each.text


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"problem": "p", "response": "  \n"}, "rows.jsonl:2: the response has no step; it is blank"),
        (
            {"problem": "p", "steps": ["a", ""]},
            "rows.jsonl:2: column 'steps' must be a list of texts that are not blank",
        ),
        ({"problem": "p"}, "rows.jsonl:2: no column holds the solution; this row has problem"),
        ({"response": "a"}, "rows.jsonl:2: column 'problem' is missing"),
        ({"problem": 3, "response": "a"}, "rows.jsonl:2: column 'problem' must be text or a list of messages"),
        ({"problem": [{"role": "assistant", "content": "a"}], "response": "a"}, "must end with a message to answer"),
        ({"id": "first", "problem": "p", "response": "a"}, "rows.jsonl:2: id 'first' was used in line 1"),
    ],
)
def test_bad_rows_are_one_sentence(tmp_path: Path, row: dict[str, Any], sentence: str) -> None:
    path = written(tmp_path, {"id": "first", "problem": "p", "response": "a"}, row)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_solutions(path, splitter=LINES)


def test_columns_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, {"q": "p", "a": "text", "g": "1", "steps": ["other"]})
    (found,) = read_solutions(path, splitter=LINES, columns=Columns("q", "a", "g"))
    assert (found.task.prompt, found.text, found.task.reference) == ("p", "text", "1")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LabelReport:
    folder = tmp_path_factory.mktemp("report")
    chains = Chains(seed=2)
    tasks = [chains.task(number) for number in range(12)]
    path = written(
        folder,
        *(
            {
                "id": f"{task.id}-{k}",
                "problem": task.prompt,
                "response": text,
                "answer": task.reference,
                "domain": "sums",
            }
            for task in tasks
            for k in range(4)
            for text in [chains.continued(task.prompt, "", k)]
        ),
    )
    log = CompletionLog(folder / "log.jsonl", {})
    labeller = Labeller(ScriptedEngine(chains.answer), ChainJudge(), log, LabelSettings(seed=3))
    found = asyncio.run(labeller.label(read_solutions(path, splitter=LINES)))
    log.close()
    return found


def test_labelled_rows_are_read_by_the_reward_models(report: LabelReport) -> None:
    settings = LabelSettings(seed=3)
    for found in report.labelled:
        row = labelled_row(found, settings, ["chain"])
        (read,) = read_row(row)
        assert [step.label for step in read.labels] == list(found.labels)
        assert (read.problem, list(read.steps)) == (found.solution.task.prompt, found.solution.steps)
        assert (read.outcome, read.domain, read.origin) == (found.right, "sums", "monte_carlo")
        assert row["provenance"]["seed"] == 3
    counted = [
        step for found in report.labelled for step in labelled_row(found, settings, [])["steps"] if "attempts" in step
    ]
    assert counted
    assert all(0 <= step["successes"] <= step["attempts"] <= 16 for step in counted)


def test_trl_rows_are_the_labelled_beginning(report: LabelReport) -> None:
    for found in report.labelled:
        row = trl_row(found)
        assert row is not None
        if found.right:
            assert row["labels"] == [True] * len(found.solution.steps)
        else:
            assert row["labels"][-1] is False
            assert row["completions"] == found.solution.steps[: len(row["labels"])]


def test_every_completion_is_offered_with_its_outcome(report: LabelReport, tmp_path: Path) -> None:
    rows = list(outcome_rows(report))
    pairs = [(row["problem_id"], row["response"]) for row in rows]
    assert len(set(pairs)) == len(pairs)
    assert {row["origin"] for row in rows} == {"given", "completion"}
    references = {f.solution.task.prompt: f.solution.task.reference for f in report.labelled}
    for row in rows:
        last = row["response"].rpartition("=")[2]
        assert row["label"] == (last == references[row["prompt"]])
    assert write_rows(tmp_path / "out.jsonl", iter(rows)) == len(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
