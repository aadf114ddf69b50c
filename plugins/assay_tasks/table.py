"""Tasks from the rows of a table; every mistake is one sentence with file, line and column."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from assay.component import Options
from assay.contracts import JsonValue, Message, Task
from assay.errors import ConfigError
from assay.rows import BadRowError, Row, column, first_known, text_column
from assay_tasks.framing import FramingOptions
from assay_tasks.split import SplitOptions, normalized

PROMPT_COLUMNS = ("prompt", "problem", "question", "messages")
REFERENCE_COLUMNS = ("reference", "answer", "gold", "solution")


class Columns(Options):
    """Which column holds what."""

    prompt: str | None = None
    """Question: text, or a list of messages; default the first of prompt, problem, question, messages."""
    reference: str | None = None
    """Gold answer, any JSON; default the first of reference, answer, gold, solution that the first row has."""
    id: str | None = None
    """Unique id; default `id` where the first row has it, else made of the line's number and the question."""
    system: str | None = None
    """System message of the row."""
    facts: tuple[str, ...] = ()
    """Further columns that verifiers may read; the policy never sees them."""
    tags: str | None = None
    """Tags: a text, or a list of texts."""


class TableOptions(FramingOptions, SplitOptions):
    """What every task source of rows has beside its place."""

    columns: Columns = Columns()
    """Which column holds what."""
    unique: bool = False
    """Leave out a question that came before (compared without case and spacing)."""
    start: int = Field(default=0, ge=0)
    """Tasks of this part that are passed over."""
    limit: int | None = Field(default=None, ge=1)
    """Most tasks; default all."""


class _Mapping(NamedTuple):
    """The columns, settled by the first row."""

    prompt: str
    reference: str | None
    id: str | None


class TableTasks:
    """The tasks of one table, read and checked as a whole on first use."""

    def __init__(self, options: TableOptions, where: str, rows: Callable[[], Iterator[Row | BadRowError]]) -> None:
        """Tasks of what `rows` reads; `where` is how messages name it."""
        self.options = options
        self.where = where
        self._rows = rows
        self._tasks: list[Task] | None = None

    def __len__(self) -> int:
        """Number of tasks; reads the rows."""
        return len(self.tasks())

    def tasks(self) -> list[Task]:
        """All tasks in the order of their rows.

        Raises:
            ConfigError: the table cannot be read, has no rows, or a row is not as the options say.
        """
        if self._tasks is None:
            options = self.options
            rows = self._read()
            chosen = [task for question, task in rows if options.offers(question) and not options.shows(question)]
            self._tasks = chosen[options.start :][: options.limit]
        return self._tasks

    def _read(self) -> Iterator[tuple[str, Task]]:
        mapping: _Mapping | None = None
        asked: set[str] = set()
        ids: dict[str, int] = {}
        for row in self._rows():
            if isinstance(row, BadRowError):
                raise row
            mapping = mapping or self._settle(row)
            question, task = self._task(row, mapping)
            if self.options.unique and normalized(question) in asked:
                continue
            asked.add(normalized(question))
            if task.id in ids:
                raise ConfigError(
                    f"{self.where}:{row.line}: column {mapping.id!r}: id {task.id!r} comes twice, first on line "
                    f"{ids[task.id]}; ids must be unique"
                )
            ids[task.id] = row.line
            yield question, task
        if mapping is None:
            raise ConfigError(f"{self.where}: it has no rows; expected one task per row")

    def _settle(self, row: Row) -> _Mapping:
        columns = self.options.columns
        prompt = columns.prompt or first_known(row.data, PROMPT_COLUMNS)
        if prompt is None:
            raise ConfigError(
                f"{self.where}:{row.line}: no column holds the question: none of {', '.join(PROMPT_COLUMNS)}; "
                f'this row has {", ".join(row.data) or "no columns"}. Name it: columns = {{ prompt = "..." }}'
            )
        reference = columns.reference or first_known(row.data, REFERENCE_COLUMNS)
        return _Mapping(prompt, reference, columns.id or first_known(row.data, ("id",)))

    def _task(self, row: Row, mapping: _Mapping) -> tuple[str, Task]:
        where, columns = self.where, self.options.columns
        said = column(row, mapping.prompt, path=where)
        system = text_column(row, columns.system, path=where) if columns.system else None
        if isinstance(said, str):
            if not said.strip():
                raise BadRowError(
                    f"{where}:{row.line}: column {mapping.prompt!r} is empty; write the question", row.line
                )
            question, messages = said, self.options.frame(said, system=system)
        else:
            conversation = self._conversation(said, row, mapping.prompt)
            if system is not None:
                conversation = (Message(role="system", content=system), *conversation)
            messages = self.options.around(conversation)
            question = "\n".join(message.content for message in conversation)
        task = Task(
            id=self._id(row, mapping, question),
            messages=messages,
            reference=column(row, mapping.reference, path=where) if mapping.reference else None,
            facts={name: column(row, name, path=where) for name in columns.facts},
            tags=self._tags(row),
        )
        return question, task

    def _conversation(self, said: Any, row: Row, name: str) -> tuple[Message, ...]:
        where = f"{self.where}:{row.line}: column {name!r}"
        if not isinstance(said, list) or not said:
            kind = type(said).__name__ if said != [] else "an empty list"  # pyright: ignore[reportUnknownArgumentType]  (JSON)
            raise BadRowError(f"{where} must be text or a list of messages; found {kind}", row.line)
        messages: list[Message] = []
        for place, item in enumerate(said):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            try:
                messages.append(Message.model_validate(item))
            except ValidationError as error:
                first = error.errors()[0]
                raise BadRowError(
                    f"{where}: message {place} is not {{role, content}} with text: "
                    f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}; assay takes text messages only",
                    row.line,
                ) from error
        return tuple(messages)

    def _id(self, row: Row, mapping: _Mapping, question: str) -> str:
        if mapping.id is None:
            return f"{row.line}-{hashlib.sha256(question.encode()).hexdigest()[:8]}"
        value = column(row, mapping.id, path=self.where)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise BadRowError(
                f"{self.where}:{row.line}: column {mapping.id!r} must be a text or a whole number; found "
                f"{json.dumps(value)[:60]}",
                row.line,
            )
        return str(value)

    def _tags(self, row: Row) -> tuple[str, ...]:
        name = self.options.columns.tags
        if name is None:
            return ()
        value: JsonValue = column(row, name, path=self.where)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(tag, str) for tag in listed):
            raise BadRowError(
                f"{self.where}:{row.line}: column {name!r} must be a text or a list of texts; found "
                f"{json.dumps(value)[:60]}",
                row.line,
            )
        return tuple(str(tag) for tag in listed)
