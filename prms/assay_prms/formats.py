"""Readers of the formats that step labels come in, and their way back where nothing is lost.

A reader takes one parsed row and gives the solutions in it; it raises `ConfigError` without file and line, which the
caller adds. Labels after the first wrong step are null by default (their meaning is disputed); `after_first_error`
chooses otherwise. Positions inside rows are 0-based here whatever the format counts from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from assay.errors import ConfigError, did_you_mean
from assay_prms import evaluation_formats, many_formats, single_formats
from assay_prms.fields import FormatOptions, Row
from assay_prms.rows import StepRow

__all__ = ["FORMATS", "Format", "FormatOptions", "evaluation_hashes", "read_row", "refuse_evaluation", "write_row"]


class Format(NamedTuple):
    """One format."""

    name: str
    columns: tuple[str, ...]
    """What its rows are told by."""
    read: Callable[[Row, FormatOptions], list[StepRow]]
    write: Callable[[StepRow, FormatOptions], dict[str, Any]] | None
    """The way back, for the formats that hold one solution per row."""


def read_row(row: Row, options: FormatOptions | None = None) -> list[StepRow]:
    """The solutions in one row.

    Raises:
        ConfigError: the format cannot be told, or the row does not keep to it.
    """
    options = options or FormatOptions()
    form = _format(row, options.format)
    try:
        found = form.read(row, options)
    except (ConfigError, ValidationError):
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"row: it is not built as rows of the format {form.name!r} are: {lacks}") from error
    if options.after_first_error == "keep":
        return found
    value = 0.0 if options.after_first_error == "zero" else None
    return [solution.after_first_error(value) for solution in found]


def write_row(row: StepRow, name: str, options: FormatOptions | None = None) -> dict[str, Any]:
    """The row in another format.

    Raises:
        ConfigError: the format holds several solutions per row, or cannot say what this row says.
    """
    form = FORMATS.get(name)
    if form is None:
        raise ConfigError(f"format {name!r}: unknown; known: {', '.join(FORMATS)}.{did_you_mean(name, FORMATS)}")
    if form.write is None:
        raise ConfigError(f"format {name!r}: rows hold more than one solution; only reading is offered")
    return form.write(row, options or FormatOptions())


def _format(row: Row, name: str) -> Format:
    if name != "auto":
        if name not in FORMATS:
            raise ConfigError(f"format: {name!r} is unknown; known: {', '.join(FORMATS)}.{did_you_mean(name, FORMATS)}")
        missing = [key for key in FORMATS[name].columns if key not in row]
        if missing:
            raise ConfigError(
                f"column {missing[0]!r}: missing, which the format {name!r} needs; found {', '.join(map(repr, row))}"
            )
        return FORMATS[name]
    for form in FORMATS.values():
        if all(key in row for key in form.columns):
            if form.name == "prm800k" and not isinstance(row["label"], Mapping):
                continue
            return form
    raise ConfigError(
        f"columns: no known format of step labels has these; found {', '.join(map(repr, row)) or 'none'}. "
        f"Name one by format = ...: {', '.join(FORMATS)}"
    )


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("trl", ("prompt", "completions", "labels"), single_formats.read_trl, single_formats.write_trl),
        Format("prm800k", ("question", "label", "labeler"), many_formats.read_prm800k, None),
        Format("versaprm", ("question", "chain_of_thoughts"), many_formats.read_versaprm, None),
        Format("math_aps", ("question", "reasoning_steps"), many_formats.read_math_aps, None),
        Format(
            "math_shepherd", ("input", "label", "task"), single_formats.read_shepherd, single_formats.write_shepherd
        ),
        Format("openrlhf", ("input", "value"), single_formats.read_openrlhf, single_formats.write_openrlhf),
        Format("rlhflow", ("conversations",), single_formats.read_rlhflow, single_formats.write_rlhflow),
        Format(
            "mr_gsm8k",
            ("model_output_steps", "model_output_solution_first_error_step"),
            evaluation_formats.read_mr_gsm8k,
            None,
        ),
        Format("prmbench", ("modified_process", "error_steps"), evaluation_formats.read_prmbench, None),
        Format("bigbench_mistake", ("input", "steps", "mistake_index"), evaluation_formats.read_bigbench, None),
        Format(
            "processbench",
            ("problem", "steps", "label"),
            evaluation_formats.read_processbench,
            evaluation_formats.write_processbench,
        ),
        Format("assay", ("steps",), single_formats.read_own, single_formats.write_own),
    )
}
"""Every format by name, the more telling columns first."""


def evaluation_hashes(rows: Iterable[StepRow]) -> frozenset[str]:
    """The problems of an evaluation set, by hash."""
    return frozenset(row.problem_hash for row in rows)


def refuse_evaluation(row: StepRow, evaluation: frozenset[str]) -> None:
    """Raise `ConfigError` where the row's problem is in an evaluation set."""
    if row.problem_hash in evaluation:
        raise ConfigError(f"problem: it is in an evaluation set and may not be trained on; found {row.problem[:60]!r}")
