"""Solutions in, labelled steps out: what `assay label` reads and writes, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assay.contracts import Message, Span, Task
from assay.errors import ConfigError
from assay.labels.labeller import Labelled, LabelReport, LabelSettings
from assay.labels.nodes import Node, Solution, problem_key
from assay.rows import BadRowError, Row, column, first_known, read_rows, text_column
from assay.scoring import message_column
from assay.steps import Piece, SplitterOptions, join_steps, split_steps
from assay.store import RunStore

PROMPTS = ("problem", "prompt", "question", "messages")
RESPONSES = ("response", "solution", "completion", "output")
REFERENCES = ("reference", "answer", "gold", "target")
STEPS = "steps"
CUT = ("length", "limit", "abort")
"""Values of a column `finish` by which a response was cut off."""


class Columns(NamedTuple):
    """Which columns hold what; None takes the first known one."""

    prompt: str | None = None
    response: str | None = None
    reference: str | None = None


def read_solutions(path: str, *, splitter: SplitterOptions, columns: Columns | None = None) -> list[Solution]:
    """All rows as solutions with at least one step; a column `steps` is taken as it is, a response is split.

    Raises `ConfigError` with file and line for the first row that cannot be used.
    """
    found: list[Solution] = []
    seen: dict[str, int] = {}
    for row in read_rows(path):
        if isinstance(row, BadRowError):
            raise row
        solution = _solution(row, path, splitter, columns or Columns())
        if solution.id in seen:
            raise BadRowError(f"{path}:{row.line}: id {solution.id!r} was used in line {seen[solution.id]}", row.line)
        seen[solution.id] = row.line
        found.append(solution)
    if not found:
        raise ConfigError(f"{path}: no solution to label; the file is empty")
    return found


def solutions_of_run(folder: Path, *, splitter: SplitterOptions) -> list[Solution]:
    """The rollouts of a stored run as solutions; blank ones are left out. Raises `ConfigError` where there is none."""
    found: list[Solution] = []
    with RunStore.open(folder, read_only=True) as store:
        for number, entry in enumerate(store.rollouts(), 1):
            text, rollout = entry.rollout.text, entry.rollout
            if pieces := split_steps(text, splitter):
                domain = entry.task.facts.get("domain")
                name = domain if isinstance(domain, str) else None
                found.append(Solution(number, rollout.id, entry.task, text, pieces, name, rollout.truncated))
    if not found:
        raise ConfigError(f"{folder}: the run has no rollouts to label")
    return found


def _solution(row: Row, path: str, splitter: SplitterOptions, columns: Columns) -> Solution:
    prompt = columns.prompt or first_known(row.data, PROMPTS) or PROMPTS[0]
    reference = columns.reference or first_known(row.data, REFERENCES)
    response = columns.response or first_known(row.data, RESPONSES)
    text, pieces = _steps(row, path, splitter, None if columns.response is None and STEPS in row.data else response)
    identity = str(row.line if row.data.get("id") is None else row.data["id"])
    used = {prompt, reference, response, STEPS, "id", "tags"}
    tags = row.data.get("tags", ())
    task = Task(
        id=identity,
        messages=_question(row, prompt, path),
        reference=None if reference is None else column(row, reference, path=path),
        facts={key: value for key, value in row.data.items() if key not in used},
        tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    )
    domain = row.data.get("domain")
    cut = row.data.get("finish", "stop") in CUT
    return Solution(row.line, identity, task, text, pieces, domain if isinstance(domain, str) else None, cut)


def _steps(row: Row, path: str, splitter: SplitterOptions, response: str | None) -> tuple[str, tuple[Piece, ...]]:
    where = f"{path}:{row.line}"
    if response is None and STEPS not in row.data:
        have = ", ".join(row.data) or "no columns"
        raise BadRowError(
            f"{where}: no column holds the solution; this row has {have}. Name it with --response", row.line
        )
    if response is None:
        steps: Any = column(row, STEPS, path=path)
        if not isinstance(steps, list) or not all(isinstance(step, str) and step.strip() for step in steps):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            raise BadRowError(f"{where}: column 'steps' must be a list of texts that are not blank", row.line)
        text, spans = join_steps(steps, splitter.between)  # pyright: ignore[reportUnknownArgumentType]
        pieces = _tiles(text, spans)
    else:
        text = text_column(row, response, path=path)
        pieces = split_steps(text, splitter)
    if not pieces:
        raise BadRowError(f"{where}: the response has no step; it is blank. Leave the row out", row.line)
    return text, pieces


def _tiles(text: str, spans: Sequence[Span]) -> tuple[Piece, ...]:
    """Pieces of given steps: what stands between two belongs to the one before."""
    starts = [0, *[span.start for span in spans[1:]], len(text)]
    return tuple(Piece(starts[k], span.start, span.end, starts[k + 1]) for k, span in enumerate(spans))


def _question(row: Row, name: str, path: str) -> tuple[Message, ...]:
    messages = message_column(row, name, path=path)
    if messages[-1].role == "assistant":
        raise BadRowError(f"{path}:{row.line}: column {name!r} must end with a message to answer", row.line)
    return messages


def labelled_row(found: Labelled, settings: LabelSettings, sources: Sequence[str]) -> dict[str, Any]:
    """One labelled solution; steps carry their label and the counts that it was derived from."""
    solution = found.solution
    steps = [
        _step(text, label, node, spent)
        for text, label, node, spent in zip(solution.steps, found.labels, found.nodes, found.spent, strict=True)
    ]
    versions = sorted({c.version for node in found.nodes if node is not None for c in node.completions.values()})
    return {
        "id": solution.id,
        "problem": _problem(solution),
        "reference": solution.task.reference,
        "steps": steps,
        "outcome": found.right,
        **({} if solution.domain is None else {"domain": solution.domain}),
        "origin": "monte_carlo",
        "provenance": {
            "line": solution.line,
            "mode": settings.mode,
            "samples": settings.samples,
            "seed": settings.seed,
            "sources": list(sources),
            "policy_versions": versions,
        },
    }


def trl_row(found: Labelled) -> dict[str, Any] | None:
    """The labelled beginning of a solution as TRL's stepwise trainer reads it; None where no step is labelled."""
    known = next((k for k, label in enumerate(found.labels) if label is None), len(found.labels))
    if not known:
        return None
    labels = found.labels[:known]
    hard = all(label in (0.0, 1.0) for label in labels)
    return {
        "prompt": _problem(found.solution),
        "completions": found.solution.steps[:known],
        "labels": [bool(label) for label in labels] if hard else list(labels),
    }


def outcome_rows(report: LabelReport) -> Iterator[dict[str, Any]]:
    """Every solution and every judged completion as a response with its outcome, for outcome and implicit training.

    Rows of one problem share `problem_id`, by which data is split. A response that comes twice is written once.
    """
    seen: set[tuple[str, str]] = set()
    for found in report.labelled:
        key = problem_key(found.solution.task)
        base = {"prompt": _problem(found.solution), "problem_id": key}
        if found.solution.domain is not None:
            base["domain"] = found.solution.domain
        if (key, found.solution.text) not in seen:
            seen.add((key, found.solution.text))
            yield {**base, "response": found.solution.text, "label": found.right, "origin": "given"}
        for node in found.nodes:
            for completion in () if node is None else node.completions.values():
                assert node is not None
                text = node.prefix + completion.text
                if completion.result in ("right", "wrong") and (key, text) not in seen:
                    seen.add((key, text))
                    yield {**base, "response": text, "label": completion.result == "right", "origin": "completion"}


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write rows to `path`, whole or not at all, and return how many."""
    scratch = path.with_name(f".{path.name}.part")
    count = 0
    with scratch.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    scratch.replace(path)
    return count


def _problem(solution: Solution) -> Any:
    messages = solution.task.messages
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    return [{"role": message.role, "content": message.content} for message in messages]


def _step(text: str, label: float | None, node: Node | None, spent: int) -> dict[str, Any]:
    step: dict[str, Any] = {"text": text, "label": label}
    if node is None or not spent:
        return step
    counts = node.counts(spent)
    results = [node.completions[attempt].result for attempt in range(spent)]
    step |= {"successes": counts.successes, "attempts": counts.attempts}
    for name in ("truncated", "abstained", "failed"):
        if results.count(name):
            step[name] = results.count(name)
    return step
