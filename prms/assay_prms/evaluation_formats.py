"""Evaluation sets, which name the first wrong step, or every wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.errors import ConfigError
from assay_prms.fields import FormatOptions, Row, list_of, text_of
from assay_prms.rows import StepRow, make_row


def _by_first_error(problem: Any, steps: Sequence[Any], first: int | None, **more: Any) -> StepRow:
    if first is not None and not 0 <= first < len(steps):
        raise ConfigError(f"label: the first wrong step is number {first} (from 0) of {len(steps)} steps")
    labels = [1.0] * len(steps) if first is None else [1.0] * first + [0.0] + [None] * (len(steps) - first - 1)
    return make_row(problem, steps, labels, **more)


def _index(value: Any, name: str, *, none: tuple[int | str, ...]) -> int | None:
    if value is None or value in none:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}: a whole number is expected; found {value!r}")
    return value


def read_processbench(row: Row, options: FormatOptions) -> list[StepRow]:
    """`label` is the first wrong step from 0, or -1."""
    first = _index(row["label"], "label", none=(-1,))
    more = {"origin": "human", "provenance": {"id": row.get("id"), "generator": row.get("generator")}}
    outcome = row.get("final_answer_correct")
    return [_by_first_error(row["problem"], list_of(row, "steps"), first, outcome=outcome, **more)]


def write_processbench(row: StepRow, options: FormatOptions) -> dict[str, Any]:
    """The row with its first wrong step."""
    known = {key: value for key, value in row.provenance.items() if key in ("id", "generator") and value is not None}
    first = row.first_error
    return {
        **known, "problem": row.problem, "steps": list(row.steps), "final_answer_correct": row.outcome,
        "label": -1 if first is None else first,
    }  # fmt: skip


def read_bigbench(row: Row, options: FormatOptions) -> list[StepRow]:
    """`mistake_index` is the first wrong step from 0, or null."""
    first = _index(row["mistake_index"], "mistake_index", none=(-1,))
    known = {"outcome": row.get("answer") == row.get("target")} if "target" in row else {}
    return [_by_first_error(text_of(row, "input"), list_of(row, "steps"), first, origin="human", **known)]


def read_prmbench(row: Row, options: FormatOptions) -> list[StepRow]:
    """Every wrong step is listed, from 1; the labels after the first one are known and may be kept."""
    steps = list_of(row, "modified_process")
    numbers = list_of(row, "error_steps")
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 1 for number in numbers):
        raise ConfigError(f"error_steps: whole numbers from 1 are expected; found {numbers}")
    wrong = {number - 1 for number in numbers}  # a few rows of the set name steps behind their end: nothing to label
    labels = [0.0 if at in wrong else 1.0 for at in range(len(steps))]
    more = {"domain": row.get("classification"), "provenance": {"id": row.get("idx")}}
    problem = row.get("modified_question") or row.get("question")
    return [make_row(problem, steps, labels, origin="human", **more)]


def read_mr_gsm8k(row: Row, options: FormatOptions) -> list[StepRow]:
    """The first wrong step counts from 1; right solutions have `N/A`."""
    one_based = _index(row["model_output_solution_first_error_step"], "first error step", none=(0, "N/A"))
    judged = row.get("model_output_solution_correctness")
    if judged == "wrong" and one_based is None:
        raise ConfigError("model_output_solution_first_error_step: missing, although the solution is wrong")
    first = None if judged == "correct" or one_based is None else one_based - 1
    outcome = row.get("model_output_answer_correctness") == "correct"
    steps = list_of(row, "model_output_steps")
    return [_by_first_error(row["question"], steps, first, outcome=outcome, origin="human")]
