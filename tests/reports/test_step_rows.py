"""Evaluation files end to end with scripted scorers whose result is known."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.contracts import Candidate, Limits, Span, StepScore, Verdict
from assay.errors import ConfigError
from assay.reports.step_rows import (
    STEP_SPANS,
    StepReport,
    StepRow,
    align,
    as_candidate,
    ask_source,
    evaluate_steps,
    read_step_rows,
)

Scores = Callable[[StepRow], Sequence[float] | None]


class Scripted:
    """A source that scores the steps of known rows by a function."""

    def __init__(self, rows: Sequence[StepRow], scores: Scores) -> None:
        self.limits = Limits(max_batch=32)
        self._rows = {as_candidate(row).task.id: row for row in rows}
        self._scores = scores

    async def judge(self, batch: Sequence[Candidate]) -> list[Verdict]:
        assert len(batch) <= 32
        return [self._verdict(candidate) for candidate in batch]

    def _verdict(self, candidate: Candidate) -> Verdict:
        scores = self._scores(self._rows[candidate.task.id])
        if scores is None:
            return Verdict.abstain("cannot read it")
        pairs: Any = candidate.task.facts[STEP_SPANS]
        spans = [Span(start=start, end=end) for start, end in pairs]
        steps = tuple(StepScore(span=span, value=value) for span, value in zip(spans, scores, strict=True))
        return Verdict.score(min(scores), steps=steps)

    async def aclose(self) -> None:
        """Nothing to let go of."""


def oracle(row: StepRow) -> list[float]:
    wrong = row.wrong if row.wrong is not None else (() if row.first_error is None else (row.first_error,))
    return [0.0 if index in wrong else 1.0 for index in range(len(row.steps))]


def never(row: StepRow) -> list[float]:
    return [1.0] * len(row.steps)


def always_first(row: StepRow) -> list[float]:
    return [0.0] + [1.0] * (len(row.steps) - 1)


def report(rows: Sequence[StepRow], scores: Scores, threshold: float | None = 0.5) -> StepReport:
    return asyncio.run(evaluate_steps(rows, ask_source(Scripted(rows, scores)), threshold=threshold))


FILES = {
    "processbench/gsm8k.jsonl": (207, 193),
    "processbench/math.jsonl": (594, 406),
    "bigbench_mistake/multistep_arithmetic.jsonl": (238, 62),
    "bigbench_mistake/word_sorting.jsonl": (266, 34),
    "prmbench_subset400/target_data.jsonl": (384, 10),
    "mr_gsm8k_subset/mr_gsm8k_subset.jsonl": (590, 0),
}


@pytest.mark.parametrize("name", FILES)
def test_scripted_scorers_on_real_text(shared: Path, name: str):
    rows = read_step_rows(shared / "data" / name)
    wrong, right = FILES[name]
    found = report(rows, oracle)
    assert (found.whole.with_error + found.whole.without_error, found.unscored) == (len(rows), 0)
    if name.startswith("prmbench"):  # some listed steps do not exist: those rows have no error left, or another first
        assert found.whole.with_error <= wrong
        assert found.step_f1 is not None
        assert found.step_f1.prm_score == 1.0
        assert len(found.step_f1_by_domain) == 9
    else:
        assert (found.whole.with_error, found.whole.without_error) == (wrong, right)
    if right == 0:
        assert found.whole.error_accuracy is not None
        assert found.whole.error_accuracy.value == 1.0
        assert found.whole.f1 is None
        return
    assert found.whole.f1 == 1.0
    assert report(rows, never).whole.f1 == 0.0
    first = report(rows, always_first).whole
    assert first.error_accuracy is not None
    share = sum(row.first_error == 0 for row in rows) / found.whole.with_error
    assert first.error_accuracy.value == pytest.approx(share)
    assert first.correct_accuracy is not None
    assert first.correct_accuracy.value == 0.0
    assert first.f1 == (0.0 if share else None)


def test_the_steps_of_prmbench_answer_the_modified_question(shared: Path):
    file = shared / "data/prmbench_subset400/target_data.jsonl"
    data = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert any(row["modified_question"] != row["question"] for row in data)
    assert [row.problem for row in read_step_rows(file)] == [row["modified_question"] for row in data]


def test_right_solutions_of_mr_gsm8k_have_no_first_error_step(tmp_path: Path):
    step = "model_output_solution_first_error_step"
    base = {"question": "p", "model_output_steps": ["a", "b"], "model_output_solution_correctness": "correct"}
    wrong = {**base, step: 2, "model_output_solution_correctness": "wrong"}
    assert [row.first_error for row in read_step_rows(rows_of(tmp_path, {**base, step: "N/A"}, wrong))] == [None, 1]


def test_random_scores_are_far_from_an_oracle_and_the_threshold_is_fitted_on_the_other_half(shared: Path):
    rows = read_step_rows(shared / "data/processbench/gsm8k.jsonl")
    source = random.Random(0)
    chance = report(rows, lambda row: [source.random() for _ in row.steps], threshold=None)
    assert chance.whole.threshold.rows + chance.rows == len(rows)
    assert chance.whole.f1 is not None
    assert chance.whole.f1 < 0.5
    assert chance.whole.step_auc == pytest.approx(0.5, abs=0.08)
    perfect = report(rows, oracle, threshold=None)
    assert perfect.whole.f1 == 1.0
    assert 0 < perfect.whole.threshold.threshold <= 1


def rows_of(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_abstained_rows_are_counted_apart(tmp_path: Path):
    rows = read_step_rows(
        rows_of(
            tmp_path, *[{"id": str(i), "problem": f"p{i}", "steps": ["a", "b"], "label": i % 2 - 1} for i in range(8)]
        )
    )
    found = report(rows, lambda row: None if row.id == "0" else oracle(row))
    assert (found.rows, found.unscored, found.whole.with_error, found.whole.without_error) == (8, 1, 4, 3)
    assert found.whole.f1 == 1.0
    json.dumps(found.to_dict(), allow_nan=False)


def test_scores_that_do_not_fit_the_steps_are_not_used():
    row = StepRow(1, "a", "p", ("one", " two ", "three"), None, None, "")
    pairs = as_candidate(row).task.facts[STEP_SPANS]
    assert pairs == [[0, 3], [6, 9], [12, 17]]
    spans = [Span(start=start, end=end) for start, end in ((0, 3), (6, 9), (12, 17))]
    scores = [StepScore(span=span, value=index / 4) for index, span in enumerate(spans)]
    assert align(scores, spans) == (0.0, 0.25, 0.5)
    assert align(scores[:2], spans) is None
    assert align([*scores[:2], StepScore(span=Span(start=6, end=8), value=1.0)], spans) is None


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"problem": "p", "steps": ["a"], "label": 1},
            "rows.jsonl:1: column 'label' must be the number of a step from 0",
        ),
        ({"problem": "p", "steps": [], "label": -1}, "rows.jsonl:1: column 'steps' must be a list of texts"),
        ({"problem": "p", "text": "a"}, "rows.jsonl:1: no labelled steps; this row has problem, text"),
        ({"steps": ["a"], "label": 0}, "rows.jsonl:1: column 'problem' is missing"),
        ({"question": "p", "modified_process": ["a"], "error_steps": [0]}, "must list step numbers from 1"),
        (
            {
                "question": "p",
                "model_output_steps": ["a"],
                "model_output_solution_first_error_step": "N/A",
                "model_output_solution_correctness": "wrong",
            },
            "rows.jsonl:1: column 'model_output_solution_first_error_step' is 'N/A', although the solution is wrong",
        ),
    ],
)
def test_bad_rows_are_one_sentence(tmp_path: Path, row: object, sentence: str):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_step_rows(rows_of(tmp_path, row))


def test_a_threshold_that_cannot_be_fitted_is_a_mistake_of_the_file(tmp_path: Path):
    rows = read_step_rows(rows_of(tmp_path, {"problem": "p", "steps": ["a"], "label": 0}))
    with pytest.raises(ConfigError, match="no threshold can be fitted"):
        report(rows, oracle, threshold=None)


def test_steps_stand_apart_as_the_source_was_trained_with_them() -> None:
    row = StepRow(1, "a", "p", ("one", "two"), None, None, "")
    assert as_candidate(row).rollout.text == "one\n\ntwo"
    joined = as_candidate(row, "\n")
    assert joined.rollout.text == "one\ntwo"
    assert joined.task.facts[STEP_SPANS] == [[0, 3], [4, 7]]
