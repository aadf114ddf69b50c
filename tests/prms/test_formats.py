"""Readers of step-label formats on genuine rows, the way back, and what a wrong row is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import ConfigError
from assay_prms.fields import FormatOptions
from assay_prms.formats import FORMATS, evaluation_hashes, read_row, refuse_evaluation, write_row
from assay_prms.rows import StepLabel, StepRow, make_row

KEEP = FormatOptions(after_first_error="keep")


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def samples(shared: Path) -> Path:
    return shared / "data" / "prm_format_samples"


def test_math_shepherd_rows_come_back_as_they_were(samples: Path) -> None:
    rows = lines(samples / "samples_math-shepherd.jsonl")
    for row in rows:
        (found,) = read_row(row, KEEP)
        assert write_row(found, "math_shepherd") == row
        assert len(found.steps) == row["input"].count("ки")
        assert [label.label for label in found.labels] == [
            1.0 if sign == "+" else 0.0 for sign in signs(row["input"], row["label"])
        ]
        assert found.origin == "monte_carlo"
    assert len(rows) == 7


def signs(given: str, marked: str) -> list[str]:
    """The characters of `label` where `input` has its tags."""
    found: list[str] = []
    shift = 0
    for at in range(len(given)):
        if given.startswith("ки", at):
            found.append(marked[at - shift])
            shift += 1
    return found


def test_a_plus_at_the_end_of_a_step_is_not_its_sign() -> None:
    row = {"input": "Q? Step 1: 3 + ки\nStep 2: 4 - ки", "label": "Q? Step 1: 3 + -\nStep 2: 4 - +", "task": "x"}
    (found,) = read_row(row, KEEP)
    assert found.steps == ("Step 1: 3 +", "Step 2: 4 -")
    assert [label.label for label in found.labels] == [0.0, 1.0]
    assert write_row(found, "math_shepherd") == row


def test_prm800k_follows_the_chosen_path_and_offers_alternatives(samples: Path) -> None:
    for row in lines(samples / "samples_prm800k.jsonl"):
        found = read_row(row, KEEP)
        alone = read_row(row, KEEP.model_copy(update={"alternatives": False}))
        assert len(alone) <= 1
        assert alone == found[: len(alone)]
        offered: set[Any] = set()
        for step in row["label"]["steps"]:
            given: list[Any] = [*(step["completions"] or []), step["human_completion"]]
            offered |= {one["text"] for one in given if one}
        for one in found:
            assert one.problem == row["question"]["problem"]
            assert one.steps[-1] in offered
            wrong = [k for k, label in enumerate(one.labels) if label.label == 0.0]
            assert wrong in ([], [len(one.steps) - 1])  # cut after the first bad step


@pytest.mark.parametrize(("neutral", "label"), [("good", 1.0), ("bad", 0.0), ("null", None)])
def test_a_neutral_rating_is_what_the_options_say(neutral: Any, label: float | None) -> None:
    steps = [
        {"completions": [{"text": "a", "rating": 1}], "chosen_completion": 0, "human_completion": None},
        {"completions": [{"text": "b", "rating": 0}], "chosen_completion": 0, "human_completion": None},
    ]
    row = {"labeler": "x", "question": {"problem": "p"}, "label": {"steps": steps, "finish_reason": "solution"}}
    (found,) = read_row(row, FormatOptions(neutral=neutral))
    assert [step.label for step in found.labels] == [1.0, label]


def test_math_aps_values_are_soft_labels(samples: Path) -> None:
    for name in ("samples_math-aps.jsonl", "samples_math-aps-tree.jsonl"):
        for row in lines(samples / name):
            found = read_row(row, KEEP)
            assert found
            values = [step.label for one in found for step in one.labels if step.label is not None]
            assert all(0 <= value <= 1 for value in values)
            assert any(value not in (0.0, 1.0) for value in values) or len(values) < 8
            assert all(one.problem == row["question"] for one in found)


def test_versaprm_zero_means_bad_in_a_solution_and_good_in_an_augmentation(samples: Path) -> None:
    rows = json.loads((samples / "versaprm_prm800k_phase2_eval_small.json").read_text("utf-8"))
    assert all(read_row(row, KEEP) for row in rows)
    row = {
        "question": "q", "domain": "law",
        "chain_of_thoughts": [
            {"steps": ["a", "b"], "labels": [1, 0], "augs": [{"aug_idx": 1, "aug_step": "c", "aug_type": 0}]}
        ],
    }  # fmt: skip
    solution, augmented = read_row(row, KEEP)
    assert [step.label for step in solution.labels] == [1.0, 0.0]
    assert (augmented.steps, [step.label for step in augmented.labels]) == (("a", "c"), [1.0, 1.0])
    swapped = read_row(row, FormatOptions(zero_in_solution="good", zero_in_augmentation="bad"))
    assert [one.labels[-1].label for one in swapped] == [1.0, 0.0]


def test_evaluation_sets_count_from_zero_or_from_one(shared: Path) -> None:
    data = shared / "data"
    for row in lines(data / "processbench" / "math.jsonl")[:200]:
        (found,) = read_row(row)
        assert found.first_error == (None if row["label"] == -1 else row["label"])
        assert write_row(found, "processbench") == row
    for row in lines(data / "bigbench_mistake" / "word_sorting.jsonl")[:100]:
        (found,) = read_row(row)
        assert found.first_error == row["mistake_index"]
    for row in lines(data / "mr_gsm8k_subset" / "mr_gsm8k_subset.jsonl")[:100]:
        (found,) = read_row(row)
        first = row["model_output_solution_first_error_step"]
        wrong = row["model_output_solution_correctness"] != "correct" and first not in (0, None)
        assert found.first_error == (first - 1 if wrong and first is not None else None)
    for row in lines(data / "prmbench_subset400" / "target_data.jsonl"):
        (found,) = read_row(row, KEEP)
        inside = [number - 1 for number in row["error_steps"] if number <= len(found.steps)]
        assert [k for k, step in enumerate(found.labels) if step.label == 0.0] == sorted(set(inside))


OWN = StepRow(
    problem="1+1",
    steps=("one", "two", "three"),
    labels=(StepLabel(label=1.0), StepLabel(successes=3, attempts=8), StepLabel()),
    outcome=False,
    domain="sums",
    origin="monte_carlo",
    provenance={"seed": 3},
)


def test_the_own_format_loses_nothing() -> None:
    assert read_row(write_row(OWN, "assay"), KEEP) == [OWN]
    tables = [{"text": t, **label.model_dump()} for t, label in zip(OWN.steps, OWN.labels, strict=True)]
    (found,) = read_row({"problem": "1+1", "steps": tables}, KEEP)
    assert found.labels == OWN.labels


@pytest.mark.parametrize("name", ["trl", "math_shepherd", "openrlhf", "rlhflow"])
def test_hard_labels_survive_every_format_of_single_solutions(name: str) -> None:
    row = make_row("Two and two?", ["Step 1: 2+2=5", "Step 2: so 5"], [1.0, 0.0], domain="x")
    (found,) = read_row(write_row(row, name), KEEP)
    assert (found.problem, found.steps) == (row.problem, row.steps)
    assert [step.label for step in found.labels] == [1.0, 0.0]


def test_trl_keeps_soft_labels_and_ignored_places() -> None:
    row = {"prompt": "p", "completions": ["a", "b", "c"], "labels": [0.7, -100, True]}
    (found,) = read_row(row, KEEP)
    assert [step.label for step in found.labels] == [0.7, None, 1.0]
    assert write_row(found, "trl")["labels"] == [0.7, -100, 1.0]


def test_what_follows_the_first_error_is_unknown_unless_asked_for() -> None:
    row = {"prompt": "p", "completions": ["a", "b", "c"], "labels": [True, False, True]}
    asked = {"null": [1.0, 0.0, None], "zero": [1.0, 0.0, 0.0], "keep": [1.0, 0.0, 1.0]}
    for how, labels in asked.items():
        (found,) = read_row(row, FormatOptions(after_first_error=how))  # type: ignore[arg-type]
        assert [step.label for step in found.labels] == labels


def test_problems_of_an_evaluation_set_are_refused() -> None:
    known = evaluation_hashes([make_row("What is  2+2?", ["4"], [1.0])])
    refuse_evaluation(make_row("What is 2+3?", ["5"], [1.0]), known)
    with pytest.raises(ConfigError, match="problem: it is in an evaluation set and may not be trained on"):
        refuse_evaluation(make_row("what is 2+2?", ["5"], [0.0]), known)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "p", "completions": ["a"], "labels": [True, False]}, "more labels than steps; found 2 labels for 1"),
    ({"prompt": "p", "completions": ["a", "b"], "labels": [True]}, "fewer labels than steps; found 1 labels for 2"),
    ({"prompt": "p", "completions": ["a"], "labels": ["yes"]}, 'the label of step 1 is "yes"; a label is true, false'),
    ({"prompt": "p", "completions": ["a"], "labels": [1.5]}, "the label of step 1 is 1.5"),
    ({"prompt": "p", "completions": ["a"], "labels": [10**400]}, "the label of step 1 is 1000"),
    ({"prompt": "p", "completions": [3], "labels": [True]}, "step 1: a text is expected; found int"),
    ({"prompt": "p", "completions": "a", "labels": [True]}, "column 'completions': a list is expected; found str"),
    ({"input": "Q", "label": "Q", "task": "x"}, "input: no tag 'ки' behind any step; name it by tag = ..."),
    ({"input": "Q Step 1: a ки", "label": "Q Step 1: b +", "task": "x"}, "label: it does not say what input says at s"),
    ({"input": "Q a ки", "label": "Q a +", "task": "x"}, "does not begin with 'Step 1:', so it cannot be told from"),
    ({"input": "Q Step 1: a ки", "value": [1, 0]}, "value: one for each 'ки' of input; found 2 values and 1 tags"),
    ({"conversations": [{"content": "Q"}]}, "conversations: a user's turn and a reply for each step; found 1 turns"),
    ({"conversations": [{"content": "Q\na"}, {"content": "fine"}]}, "the reply to step 1 is 'fine'; + or - is expecte"),
    ({"problem": "p", "steps": ["a"], "label": 1}, "label: the first wrong step is number 1 (from 0) of 1 steps"),
    ({"problem": "p", "steps": ["a"], "label": "x"}, "label: a whole number is expected; found 'x'"),
    ({"problem": "p", "steps": ["a"], "successes": [9], "attempts": [8]}, "step 1: 9 successes in 8 attempts"),
    ({"prompt": [{"role": "user"}], "completions": ["a"], "labels": [True]}, "prompt: a message has a role and a c"),
    ({"conversations": [{"role": "user"}, {"content": "+"}]}, "rows of the format 'rlhflow' are: it lacks"),
    ({"question": [], "label": {}, "labeler": "x"}, "row: it is not built as rows of the format 'prm800k' are: 'list'"),
    ({"question": "Q", "chain_of_thoughts": [{"steps": ["a", None], "labels": [1, 1]}]}, "step 2: a text is expected"),
    ({"question": "Q", "reasoning_steps": {"children": [{"text": None}]}}, "column 'text': a text is expected"),
    ({"modified_process": ["a"], "error_steps": ["1"]}, "error_steps: whole numbers from 1 are expected; found ['1']"),
    (
        {"question": "Q", "model_output_steps": ["a"], "model_output_solution_first_error_step": None,
         "model_output_solution_correctness": "wrong"},
        "model_output_solution_first_error_step: missing, although the solution is wrong",
    ),
    ({"question": "p", "answer": "a"}, "columns: no known format of step labels has these; found 'question', 'answer'"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "sentence"), BAD, ids=[sentence[:30] for _, sentence in BAD])
def test_a_wrong_row_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_row(row)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_named_format_says_which_column_it_misses() -> None:
    with pytest.raises(ConfigError, match="column 'labels': missing, which the format 'trl' needs"):
        read_row({"prompt": "p", "completions": []}, FormatOptions(format="trl"))
    with pytest.raises(ConfigError, match=r"format: 'trll' is unknown; .*Did you mean 'trl'"):
        read_row({}, FormatOptions(format="trll"))
    with pytest.raises(ConfigError, match="rows hold more than one solution; only reading is offered"):
        write_row(OWN, "prm800k")
    assert all(form.columns for form in FORMATS.values())
