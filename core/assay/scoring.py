"""Judges the answers of a file: rows become tasks and rollouts, and a panel does the rest."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

from assay.component import BuildContext
from assay.config.reward_models import reward_model_entry, reward_model_folder
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.run import ScoreData
from assay.config.validation import validate
from assay.contracts import Candidate, Judgement, Message, Reward, Rollout, Task, Turn
from assay.errors import ConfigError
from assay.judging import open_panel
from assay.preflight import check_golds, check_golds_in_workers, check_rewards
from assay.registry import Registry
from assay.remote.placing import cluster_workers
from assay.rows import BadRowError, Row, column, first_known, read_rows, text_column

PROMPTS = ("prompt", "problem", "question", "messages")
RESPONSES = ("response", "completion", "output", "prediction")
REFERENCES = ("reference", "answer", "gold", "solution", "target")
BOUND = 512
"""Rows that are judged at once."""


class Item(NamedTuple):
    """One row, ready to be judged."""

    line: int
    task: Task
    rollout: Rollout


@dataclass
class Answers:
    """The rows of a file and how they were read."""

    path: str
    columns: dict[str, str]
    """`prompt`, `response`, `reference` to the columns they come from."""
    items: list[Item] = field(default_factory=list[Item])
    bad: list[str] = field(default_factory=list[str])
    """One sentence per row that was skipped."""


class Scored(NamedTuple):
    """One row with its reward and the judgements behind it."""

    item: Item
    reward: Reward
    judgements: tuple[Judgement, ...]


def read_answers(data: ScoreData) -> Answers:
    """All rows of a file; raises `ConfigError` for the first bad one unless `on_bad_row` says skip."""
    answers: Answers | None = None
    seen: dict[str, int] = {}
    skipped: list[str] = []
    for row in read_rows(data.path):
        try:
            if isinstance(row, BadRowError):
                raise row
            if answers is None:
                answers = Answers(data.path, _columns(data, row))
            item = _item(row, answers.columns, data.path)
            if item.rollout.id in seen:
                first = seen[item.rollout.id]
                raise BadRowError(
                    f"{data.path}:{row.line}: id {item.rollout.id!r} was used in line {first}; ids must be unique",
                    row.line,
                )
            seen[item.rollout.id] = row.line
            answers.items.append(item)
        except BadRowError as problem:
            if data.on_bad_row == "stop":
                message = str(problem)
                end = "" if message.endswith((".", "?")) else "."
                raise BadRowError(f"{message}{end} Fix the row, or use --on-bad-row skip", problem.line) from problem
            skipped.append(str(problem))
    if answers is None or not answers.items:
        first = f"; first problem: {skipped[0]}" if skipped else ""
        raise ConfigError(f"{data.path}: no row to judge{first}")
    answers.bad = skipped
    return answers


def _columns(data: ScoreData, row: Row) -> dict[str, str]:
    columns: dict[str, str] = {}
    for name, given, known in (
        ("prompt", data.column("prompt"), PROMPTS),
        ("response", data.column("response"), RESPONSES),
        ("reference", data.column("reference"), REFERENCES),
    ):
        chosen = given or first_known(row.data, known)
        if chosen is not None:
            columns[name] = chosen
    if "response" not in columns:
        have = ", ".join(row.data)
        raise BadRowError(
            f"{data.path}:{row.line}: no column holds the response; this row has {have or 'no columns'}. "
            f"Name it with --response COLUMN",
            row.line,
        )
    return columns


def _item(row: Row, columns: dict[str, str], path: str) -> Item:
    response = text_column(row, columns["response"], path=path)
    messages = (Message(role="user", content=""),)
    if "prompt" in columns:
        messages = message_column(row, columns["prompt"], path=path)
    reference = column(row, columns["reference"], path=path) if "reference" in columns else None
    used = {*columns.values(), "id", "tags"}
    identity = row.data.get("id", row.line)
    if not isinstance(identity, str | int):
        raise BadRowError(f"{path}:{row.line}: column 'id' must be text or a number; found {identity!r}", row.line)
    tags = row.data.get("tags", ())
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):  # pyright: ignore[reportUnknownVariableType]
        raise BadRowError(f"{path}:{row.line}: column 'tags' must be a list of texts; found {tags!r}", row.line)
    name = str(identity)
    if not name:
        raise BadRowError(f"{path}:{row.line}: column 'id' is empty", row.line)
    task = Task(
        id=name,
        messages=messages,
        reference=reference,
        facts={key: value for key, value in row.data.items() if key not in used},
        tags=tuple(tags),  # pyright: ignore[reportUnknownArgumentType]
    )
    try:
        response.encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate cannot be stored or judged by anything that speaks UTF-8; it is shown as what it is.
        response = response.encode("utf-8", "replace").decode("utf-8")
    return Item(row.line, task, Rollout(id=name, task_id=name, group_id=name, turns=(Turn(text=response),)))


def message_column(row: Row, name: str, *, path: str) -> tuple[Message, ...]:
    """The value of a column that must be text or a list of messages; raises `BadRowError` otherwise."""
    value = column(row, name, path=path)
    if isinstance(value, str):
        return (Message(role="user", content=value),)
    try:
        messages = tuple(Message.model_validate(item) for item in value)
    except (TypeError, ValueError) as error:
        raise BadRowError(
            f"{path}:{row.line}: column {name!r} must be text or a list of messages with role and text content",
            row.line,
        ) from error
    if not messages:
        raise BadRowError(f"{path}:{row.line}: column {name!r} has no message", row.line)
    return messages


async def score_items(
    items: Sequence[Item],
    rewards: Sequence[RewardEntry],
    on_scored: Callable[[Scored], None],
    *,
    registry: Registry,
    context: BuildContext,
    judging: JudgingConfig,
    on_open: Callable[[], None] | None = None,
    where: str = "score",
) -> dict[str, float]:
    """Judge items, call `on_scored` for each in the order of the items, and return the panel's metrics.

    `on_open` is called once every source is open and has read its golds, before anything is judged.
    """
    judgements: dict[str, list[Judgement]] = {}

    def observe(candidate: Candidate, judgement: Judgement) -> None:
        judgements.setdefault(candidate.rollout.id, []).append(judgement)

    async with (
        cluster_workers(judging, context),
        open_panel(rewards, registry=registry, judging=judging, context=context, observe=observe) as panel,
    ):
        context.workers = panel.workers
        await check_golds_in_workers(panel, [item.task for item in items], where=where)
        if on_open is not None:
            on_open()
        pending: deque[tuple[Item, asyncio.Task[Reward]]] = deque()
        # Sources answer when they can; what is kept stands in the order of `rewards`.
        place = {label: number for number, label in enumerate(panel.sources)}

        async def finish_one() -> None:
            item, task = pending.popleft()
            reward = await task
            given = sorted(judgements.pop(item.rollout.id, ()), key=lambda judgement: place[judgement.source])
            on_scored(Scored(item, reward, tuple(given)))

        async with asyncio.TaskGroup() as running:
            for item in items:
                pending.append((item, running.create_task(panel.judge(item.task, item.rollout))))
                if len(pending) >= BOUND:
                    await finish_one()
            while pending:
                await finish_one()
        return panel.metrics()


def check_answers(
    registry: Registry, rewards: Sequence[RewardEntry], answers: Answers, context: BuildContext, *, where: str
) -> None:
    """Raise `ConfigError` for an unknown source, a wrong option, or golds of the file that a source cannot read."""
    check_rewards(registry, rewards, where=where)
    check_golds(registry, rewards, [item.task for item in answers.items], context, where=answers.path)


def parse_reward(text: str) -> dict[str, Any]:
    """`NAME[:WEIGHT]`, `FILE.py:FUNCTION[:WEIGHT]` or a reward model's `FOLDER[:WEIGHT]` as a `rewards` entry.

    A folder is one that `kind = "prm"` wrote, or its run. Raises `ConfigError`.
    """
    head, found, last = text.rpartition(":")
    weight = 1.0
    name = text
    if found:
        try:
            number = float(last)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            weight, name = number, head
    if not name:
        raise ConfigError(f"-r {text}: no source is named; write -r NAME, -r NAME:WEIGHT or -r FILE.py:FUNCTION")
    if (folder := reward_model_folder(Path(name))) is not None:
        return {**reward_model_entry(folder), "weight": weight, "label": Path(name).resolve().name}
    if ":" in name and not name.rpartition(":")[0].endswith(".py"):
        raise ConfigError(
            f"-r {text}: {name.rpartition(':')[2]!r} is no weight; write -r NAME:WEIGHT with a number, or "
            "-r FILE.py:FUNCTION"
        )
    if ":" in name:
        return {"use": "python", "path": str(Path(name)), "weight": weight}
    if name.endswith(".py"):
        raise ConfigError(f"-r {text}: which function of the file? Write -r {name}:FUNCTION")
    return {"use": name, "weight": weight}


class _Entries(BaseModel):
    rewards: tuple[RewardEntry, ...]


def reward_entries(rewards: Sequence[str | Mapping[str, Any]], *, where: str = "score") -> tuple[RewardEntry, ...]:
    """Entries of names as after `-r`, and of tables as in a config; raises `ConfigError` for a wrong one or none."""
    if isinstance(rewards, str):
        raise ConfigError(f"{where}: rewards is one text; write rewards=[{rewards!r}]")
    tables = [_table(item, f"{where}: rewards[{index}]") for index, item in enumerate(rewards)]
    if not tables:
        raise ConfigError(f"{where}: no reward source is named; for example rewards=['math']")
    return validate(_Entries, {"rewards": tables}, where=where).rewards


def _table(item: object, where: str) -> dict[str, Any]:
    if isinstance(item, str):
        return parse_reward(item)
    if isinstance(item, Mapping):
        return dict(cast("Mapping[str, Any]", item))
    raise ConfigError(f"{where}: expected a name as after -r, or a table with 'use'; found {item!r:.80}")
