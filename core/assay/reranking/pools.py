"""Pools: all responses to one problem, with what a file or a run already knows of them.

Two forms of files are read, told apart by their columns: one response a row (rows of equal problem make a pool), or
one problem a row with a list `responses` and lists of the same length beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from assay.contracts import Rollout, Task, Turn
from assay.errors import ConfigError
from assay.rows import BadRowError, Row, column, finite, first_known, read_rows
from assay.scoring import message_column
from assay.store import RunStore

PROMPTS = ("problem", "prompt", "question", "messages")
RESPONSES = ("response", "solution", "completion", "output")
LISTS = ("responses", "solutions", "completions", "outputs")
REFERENCES = ("reference", "answer", "gold", "target")
CORRECT = ("correct", "label", "is_correct")
ANSWERS = ("pred", "preds", "prediction", "predictions")
RIGHT_FROM = 0.5
"""A reward from this value on means that the response is right."""


@dataclass(frozen=True)
class Response:
    """One response and what is known of it before any source is asked."""

    line: int
    task: Task
    rollout: Rollout
    correct: bool | None = None
    answer: str | None = None
    """Its answer, where the data says it."""
    score: float | None = None
    """A score that the data holds."""


class Pool(NamedTuple):
    """All responses to one problem."""

    problem: str
    responses: tuple[Response, ...]


@dataclass(frozen=True)
class PoolColumns:
    """Which columns hold what; None takes the first known one."""

    prompt: str | None = None
    response: str | None = None
    """One response, or the list of all."""
    reference: str | None = None
    correct: str | None = None
    """True where the response is right."""
    answer: str | None = None
    """The response's answer as text, by which votes are counted."""
    score: str | None = None
    """A number that ranks the responses."""


def read_pools(path: str, columns: PoolColumns | None = None) -> list[Pool]:
    """The pools of a file, in order of first appearance; raises `ConfigError` with file and line for a bad row."""
    return pools_of_rows(read_rows(path), path, columns)


def pools_of_rows(rows: Iterable[Row | BadRowError], path: str, columns: PoolColumns | None = None) -> list[Pool]:
    """The same of the file's rows."""
    found: dict[str, list[Response]] = {}
    for row in rows:
        if isinstance(row, BadRowError):
            raise row
        for response in _responses(row, path, columns or PoolColumns()):
            found.setdefault(_problem(response.task), []).append(response)
    if not found:
        raise ConfigError(f"{path}: no response to rank; the file is empty")
    return [Pool(problem, tuple(responses)) for problem, responses in found.items()]


def pools_of_run(folder: Path) -> list[Pool]:
    """The pools of a stored run; the rewards that it gave say what is right, a masked one says nothing."""
    found: dict[str, list[Response]] = {}
    with RunStore.open(folder, read_only=True) as store:
        for number, entry in enumerate(store.rollouts(), 1):
            value = None if entry.reward is None else entry.reward.value
            right = None if value is None else value >= RIGHT_FROM
            response = Response(number, entry.task, entry.rollout, right)
            found.setdefault(_problem(entry.task), []).append(response)
    if not found:
        raise ConfigError(f"{folder}: the run has no rollouts to rank")
    return [Pool(problem, tuple(responses)) for problem, responses in found.items()]


def _problem(task: Task) -> str:
    """What the responses of one pool share: the messages and the reference."""
    return task.model_dump_json(include={"messages", "reference"})


def _responses(row: Row, path: str, columns: PoolColumns) -> Iterator[Response]:
    data = row.data
    prompt = columns.prompt or first_known(data, PROMPTS)
    response = columns.response or first_known(data, (*LISTS, *RESPONSES))
    if prompt is None or response is None:
        missing = "the problem" if prompt is None else "the response"
        raise BadRowError(
            f"{path}:{row.line}: no column holds {missing}; this row has {', '.join(data) or 'no columns'}. Name it "
            f"with --{'prompt' if prompt is None else 'response'} COLUMN",
            row.line,
        )
    correct = columns.correct or first_known(data, CORRECT)
    answer = columns.answer or first_known(data, ANSWERS)
    score = columns.score
    reference = columns.reference or first_known(data, REFERENCES)
    texts = column(row, response, path=path)
    several = isinstance(texts, list)
    count = len(cast("list[Any]", texts)) if several else 1

    def values(name: str | None) -> list[Any]:
        if name is None:
            return [None] * count
        value = column(row, name, path=path)
        if not several:
            return [value]
        if not isinstance(value, list) or len(cast("list[Any]", value)) != count:
            raise BadRowError(
                f"{path}:{row.line}: column {name!r} must be a list of {count} values, one for each of {response!r}; "
                f"found {len(cast('list[Any]', value)) if isinstance(value, list) else type(value).__name__}",
                row.line,
            )
        return cast("list[Any]", value)

    used = {prompt, response, correct, answer, score, reference}
    base = Task(
        id=str(row.line),
        messages=message_column(row, prompt, path=path),
        reference=None if reference is None else column(row, reference, path=path),
        facts={key: value for key, value in data.items() if key not in used},
    )
    for index, (text, right, said, number) in enumerate(
        zip(values(response), values(correct), values(answer), values(score), strict=True)
    ):
        name = f"{row.line}-{index}" if several else str(row.line)
        if not isinstance(text, str):
            raise BadRowError(f"{path}:{row.line}: column {response!r} must hold text; found {text!r:.60}", row.line)
        task = base.model_copy(update={"id": name})
        rollout = Rollout(id=name, task_id=name, group_id=str(row.line), turns=(Turn(text=text),))
        where = f"{path}:{row.line}"
        yield Response(
            row.line,
            task,
            rollout,
            _truth(right, correct, where, row.line),
            None if said is None else said if isinstance(said, str) else json.dumps(said, sort_keys=True),
            _number(number, score, where, row.line),
        )


def _truth(value: Any, name: str | None, where: str, line: int) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if value in (0, 1):
        return bool(value)
    raise BadRowError(f"{where}: column {name!r} must be true, false or null; found {value!r:.60}", line)


def _number(value: Any, name: str | None, where: str, line: int) -> float | None:
    found = finite(value)
    if value is None or found is not None:
        return found
    raise BadRowError(f"{where}: column {name!r} must be a finite number or null; found {value!r:.60}", line)
