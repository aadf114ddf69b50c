"""Formats that hold one solution per row, and their way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from assay.errors import ConfigError
from assay_prms.fields import FormatOptions, Row, list_of, text_of
from assay_prms.rows import StepLabel, StepRow, make_row

SIGNS = {"+": 1.0, "-": 0.0}


def read_trl(row: Row, options: FormatOptions) -> list[StepRow]:
    """TRL's stepwise rows."""
    labels = [_trl_label(value) for value in list_of(row, "labels")]
    return [make_row(row["prompt"], list_of(row, "completions"), labels)]


def _trl_label(value: Any) -> float | None:
    """Booleans and floats as they are; -100 is TRL's "ignored" and becomes null, never True."""
    return None if value == -100 else value


def write_trl(row: StepRow, options: FormatOptions) -> dict[str, Any]:
    """The row as TRL reads it; -100 stands for an unknown label among floats."""
    values = [step.value for step in row.labels]
    hard = all(value in (0.0, 1.0) for value in values)
    return {
        "prompt": row.prompt,
        "completions": list(row.steps),
        "labels": [bool(value) for value in values] if hard else [-100 if value is None else value for value in values],
    }


def read_shepherd(row: Row, options: FormatOptions) -> list[StepRow]:
    """The sign stands where the tag stands; a plus or minus that belongs to a step is left alone."""
    given, marked = text_of(row, "input"), text_of(row, "label")
    pieces = given.split(options.tag)
    if len(pieces) < 2:
        raise ConfigError(f"input: no tag {options.tag!r} behind any step; name it by tag = ...")
    steps, labels, at = list[str](), list[float | None](), 0
    for number, piece in enumerate(pieces[:-1], 1):
        if not marked.startswith(piece, at) or (sign := marked[at + len(piece) : at + len(piece) + 1]) not in (
            "+",
            "-",
        ):
            raise ConfigError(
                f"label: it does not say what input says at step {number}; input and label must agree but for the signs"
            )
        at += len(piece) + 1
        steps.append(piece)
        labels.append(SIGNS[sign])
    if marked[at:] != pieces[-1]:
        raise ConfigError("label: it does not end as input ends; input and label must agree but for the signs")
    problem, steps[0] = _problem_of(steps[0])
    shape = {"between": [len(step) - len(step.lstrip()) for step in steps], "raw": steps, "tail": pieces[-1]}
    shape["problem_end"] = pieces[0][len(problem) : len(pieces[0]) - len(steps[0])]
    more = {"domain": str(row["task"])} if "task" in row else {}
    return [
        make_row(
            problem, [step.strip() for step in steps], labels, origin="monte_carlo",
            provenance={"math_shepherd": shape}, **more,
        )
    ]  # fmt: skip


def _problem_of(first: str) -> tuple[str, str]:
    """Problem and first step, which begins with `Step 1:`."""
    at = first.find("Step 1:")
    if at < 0:
        raise ConfigError("input: the first step does not begin with 'Step 1:', so it cannot be told from the problem")
    return first[:at].rstrip(), first[at:]


def write_shepherd(row: StepRow, options: FormatOptions) -> dict[str, Any]:
    """The row with a tag, and with a sign, behind each step."""
    shape: Mapping[str, Any] | None = row.provenance.get("math_shepherd")
    raw = list(shape["raw"]) if shape else [(" " if k == 0 else "\n") + step + " " for k, step in enumerate(row.steps)]
    start = row.problem + (shape["problem_end"] if shape else "")
    tail = shape["tail"] if shape else ""
    signs: list[str] = []
    for number, step in enumerate(row.labels, 1):
        if step.hard is None:
            raise ConfigError(f"step {number}: it has no label, and Math-Shepherd's format has no sign for that")
        signs.append("+" if step.hard else "-")
    marked = "".join(piece + sign for piece, sign in zip(raw, signs, strict=True))
    plain = "".join(piece + options.tag for piece in raw)
    return {"input": start + plain + tail, "label": start + marked + tail, "task": row.domain or ""}


def read_openrlhf(row: Row, options: FormatOptions) -> list[StepRow]:
    """As many values as tags."""
    pieces = text_of(row, "input").split(options.tag)
    values = list_of(row, "value")
    if len(pieces) - 1 != len(values):
        raise ConfigError(
            f"value: one for each {options.tag!r} of input; found {len(values)} values and {len(pieces) - 1} tags"
        )
    problem, pieces[0] = _problem_of(pieces[0])
    labels: list[Any] = [SIGNS.get(value, value) if isinstance(value, str) else value for value in values]
    return [make_row(problem, [piece.strip() for piece in pieces[:-1]], labels)]


def write_openrlhf(row: StepRow, options: FormatOptions) -> dict[str, Any]:
    """The row with a tag behind each step."""
    values = [step.value for step in row.labels]
    if None in values:
        raise ConfigError("a step has no label, and OpenRLHF's format has no value for that")
    text = "".join((" " if k == 0 else "\n") + f"{step} {options.tag}" for k, step in enumerate(row.steps))
    return {"input": row.problem + text, "value": values}


def read_rlhflow(row: Row, options: FormatOptions) -> list[StepRow]:
    """Step texts are the user's turns, the first of which also holds the problem; replies are + or -."""
    turns = [text_of(turn, "content") for turn in list_of(row, "conversations")]
    if not turns or len(turns) % 2:
        raise ConfigError(f"conversations: a user's turn and a reply for each step; found {len(turns)} turns")
    steps = turns[0::2]
    labels: list[float] = []
    for number, turn in enumerate(turns[1::2], 1):
        reply = turn.strip()
        if reply not in SIGNS:
            raise ConfigError(f"conversations: the reply to step {number} is {reply[:40]!r}; + or - is expected")
        labels.append(SIGNS[reply])
    start = steps[0].find("Step 1:")
    problem = steps[0][: max(start, 0)]
    steps[0] = steps[0][max(start, 0) :]
    if start <= 0:
        problem, _, steps[0] = steps[0].partition("\n")
        if not steps[0]:
            raise ConfigError("conversations: the first turn holds no step behind the problem")
    gap = problem[len(problem.rstrip()) :] if start > 0 else "\n"
    return [make_row(problem.rstrip(), steps, labels, provenance={"rlhflow": {"gap": gap}})]


def write_rlhflow(row: StepRow, options: FormatOptions) -> dict[str, Any]:
    """The row as a conversation."""
    gap = row.provenance.get("rlhflow", {}).get("gap", " ")
    turns: list[dict[str, str]] = []
    for number, (step, label) in enumerate(zip(row.steps, row.labels, strict=True)):
        if label.hard is None:
            raise ConfigError(f"step {number + 1}: it has no label, and the chat format has no reply for that")
        turns.append({"role": "user", "content": row.problem + gap + step if number == 0 else step})
        turns.append({"role": "assistant", "content": "+" if label.hard else "-"})
    return {"conversations": turns}


def read_own(row: Row, options: FormatOptions) -> list[StepRow]:
    """The own format: steps as texts beside `labels` or counts, or steps as tables."""
    steps = list_of(row, "steps")
    texts = [cast("Mapping[str, Any]", step).get("text") if isinstance(step, Mapping) else step for step in steps]
    if steps and all(isinstance(step, Mapping) for step in steps):
        tables = [cast("Mapping[str, Any]", step) for step in steps]
        labels = [_counted(t.get("label"), t.get("successes"), t.get("attempts"), k) for k, t in enumerate(tables, 1)]
    else:
        empty: list[Any] = [None] * len(steps)
        given = list_of(row, "labels") if "labels" in row else empty
        if "successes" not in row and "attempts" not in row:
            return [make_row(_asked(row), texts, [_trl_label(label) for label in given], **_known(row))]
        hits = list_of(row, "successes") if "successes" in row else empty
        tries = list_of(row, "attempts") if "attempts" in row else empty
        if not len(given) == len(hits) == len(tries) == len(steps):
            raise ConfigError(
                f"labels: one label, success count and attempt count per step; found {len(given)}, {len(hits)} and "
                f"{len(tries)} for {len(steps)} steps"
            )
        labels = [_counted(given[k], hits[k], tries[k], k + 1) for k in range(len(steps))]
    return [make_row(_asked(row), texts, labels, **_known(row))]


def _asked(row: Row) -> Any:
    """The problem or the prompt."""
    if "problem" not in row and "prompt" not in row:
        raise ConfigError(f"column 'problem': missing; found {', '.join(map(repr, row))}")
    return row["problem"] if "problem" in row else row["prompt"]


def _known(row: Row) -> dict[str, Any]:
    return {key: row[key] for key in ("outcome", "domain", "origin", "provenance") if row.get(key) is not None}


def _counted(label: Any, successes: Any, attempts: Any, number: int) -> StepLabel:
    checked = make_row("", ["x"], [_trl_label(label)]).labels[0] if label is not None else StepLabel()
    if successes is None and attempts is None:
        return checked
    if not isinstance(successes, int) or not isinstance(attempts, int) or not 0 <= successes <= attempts:
        raise ConfigError(
            f"step {number}: {successes!r} successes in {attempts!r} attempts; whole numbers are expected"
        )
    return StepLabel(label=checked.label, successes=successes, attempts=attempts)


def write_own(row: StepRow, options: FormatOptions) -> dict[str, Any]:
    """The row as it is."""
    data = row.model_dump(mode="json", exclude={"steps", "labels", "messages", "problem"}, exclude_none=True)
    return {
        "problem": row.prompt,
        "steps": list(row.steps),
        "labels": [step.label for step in row.labels],
        "successes": [step.successes for step in row.labels],
        "attempts": [step.attempts for step in row.labels],
        **data,
    }
