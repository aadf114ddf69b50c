"""The log of a run: every task, rollout, judgement, reward and use, appended to one SQLite file.

Guaranteed: one writer per folder; a row survives `kill -9` of the process one second after it was added; what was
acknowledged by `flush` is readable after a full disk; a row whose bits have changed is never returned. Reading works
beside a writer, in other processes too.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from assay.contracts import Judgement, Reward, Rollout, RunInfo, Task
from assay.errors import StoreError
from assay.store.lock import FolderLock
from assay.store.schema import APPLICATION_ID, COLUMNS, TABLES, VERSION, Value, checksum
from assay.store.writer import SQLITE_ERRORS, Values, Writer, damaged, worded

FILE = "log.sqlite"
_PAGE = 500
_FULL_CHECK_BYTES = 64 << 20
"""Larger logs get SQLite's quick check only when they are opened; each row is verified when it is read all the same."""


class StoredRollout(NamedTuple):
    """One rollout with its task, its reward and the judgements behind it."""

    step: int
    task: Task
    rollout: Rollout
    reward: Reward | None
    judgements: tuple[Judgement, ...]


class Mark(NamedTuple):
    """What became of one group."""

    step: int
    group_id: str
    action: str
    reason: str


class RunStore:
    """The log in a run folder; made by `create` or `open`, and a context manager that closes it."""

    def __init__(self, folder: Path, *, lock: FolderLock | None) -> None:
        """For `create` and `open`."""
        self.folder = folder
        self.path = folder / FILE
        self._lock = lock
        self._reader = _connect(self.path, read_only=lock is None)
        self._writer = None if lock is None else Writer(self.path, lambda: _connect(self.path))
        self._known_tasks: dict[str, Task] = {}
        self._closed = False

    @classmethod
    def create(cls, folder: str | Path, info: RunInfo) -> Self:
        """A new log in `folder`; raises `StoreError` where there is one already, or another process writes here.

        Where it cannot be made whole (a full disk) nothing of it is left.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        path = folder / FILE
        try:
            if path.exists():
                raise StoreError(f"{path}: there is a log here already; use another folder, or --resume")
            try:
                _make(path, info)
                return cls(folder, lock=lock)
            except SQLITE_ERRORS as error:
                raised = worded(path, error, waiting=1)
                for part in folder.glob(f"{FILE}*"):
                    part.unlink()
                raise raised from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: str | Path, read_only: bool = False) -> Self:
        """The log in `folder`; raises `StoreError` where it is missing, damaged, locked or of another version."""
        folder = Path(folder)
        path = folder / FILE
        if not path.is_file():
            raise StoreError(f"{path}: there is no log here; is {folder} a run folder?")
        lock = None if read_only else FolderLock(folder)
        try:
            _check(path, thorough=not read_only)
            return cls(folder, lock=lock)
        except SQLITE_ERRORS as error:
            if lock is not None:
                lock.release()
            raise worded(path, error) from error
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def close(self) -> None:
        """Write what is left, and let go of the folder; raises `StoreError` where that fails."""
        if self._closed:
            return
        self._closed = True
        try:
            self._reader.close()
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # ---- writing: each returns at once, and raises StoreError after an earlier write failed ----

    def add_task(self, task: Task) -> None:
        """Keep a task; one that is known is not written again."""
        if self._known_tasks.get(task.id) is task:
            return
        self._known_tasks[task.id] = task
        self._append("tasks", _task_values, task)

    def add_rollout(self, rollout: Rollout, *, step: int, task: Task) -> None:
        """Keep a rollout that was drawn for `step`."""
        self.add_task(task)
        self._append("rollouts", _rollout_values, rollout, step)

    def add_judgement(self, judgement: Judgement) -> None:
        """Keep a judgement."""
        self._append("judgements", _judgement_values, judgement)

    def add_reward(self, reward: Reward, *, step: int, group_id: str) -> None:
        """Keep a reward."""
        self._append("rewards", _reward_values, reward, step, group_id)

    def mark_group(self, step: int, group_id: str, action: str, reason: str) -> None:
        """Keep what became of a group at the update `step`: trained on (`keep`), or dropped with a reason."""
        self._append("marks", _mark_values, step, group_id, action, reason)

    def flush(self) -> None:
        """Return once everything added so far is durable; raises `StoreError` where it cannot be."""
        if self._writer is not None:
            self._writer.flush()

    def _append(self, table: str, values: Values, *what: Any) -> None:
        if self._writer is None:
            raise StoreError(f"{self.path}: opened for reading only")
        self._writer.add(table, values, *what)

    # ---- reading: what is durable now ----

    @property
    def info(self) -> RunInfo:
        """What the run is."""
        (body,) = next(self._rows("info"))
        return self._parsed(RunInfo, body)

    def count_rollouts(self) -> int:
        """Number of rollouts."""
        return self._one("SELECT count(*) FROM rollouts")

    def count_judgements(self) -> int:
        """Number of judgements, repeated ones included."""
        return self._one("SELECT count(*) FROM judgements")

    def steps(self) -> list[int]:
        """Steps that rollouts were drawn for, in order."""
        return [row[0] for row in self._query("SELECT DISTINCT step FROM rollouts ORDER BY step")]

    def groups(self, step: int) -> list[str]:
        """Groups that were drawn for a step, in order of arrival."""
        sql = "SELECT group_id FROM rollouts WHERE step = ? GROUP BY group_id ORDER BY min(seq)"
        return [row[0] for row in self._query(sql, step)]

    def marks(self, step: int | None = None) -> list[Mark]:
        """What became of groups, of one step or of all; where a group was marked again, the later mark."""
        where, values = ("", ()) if step is None else ("WHERE step = ?", (step,))
        last = {Mark(*row).group_id: Mark(*row) for row in self._rows("marks", where, *values)}
        return list(last.values())

    def rollout(self, id_or_prefix: str) -> StoredRollout:
        """One rollout by id, or by the beginning of one; raises `StoreError` where none or several match."""
        sql = "SELECT DISTINCT id FROM rollouts WHERE id >= ? AND id < ? ORDER BY id LIMIT 4"
        found = [row[0] for row in self._query(sql, id_or_prefix, id_or_prefix + "\U0010ffff")]
        if id_or_prefix in found:
            found = [id_or_prefix]
        if not found:
            raise StoreError(f"{self.path}: no rollout {id_or_prefix!r}; list some with: assay show {self.folder.name}")
        if len(found) > 1:
            listed = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            raise StoreError(f"{self.path}: {id_or_prefix!r} is the beginning of several rollouts: {listed}")
        rows = list(self._rows("rollouts", "WHERE id = ?", found[0]))
        return self._entry(rows[-1], {})

    def rollouts(
        self,
        *,
        step: int | None = None,
        group_id: str | None = None,
        status: str | None = None,
        source: str | None = None,
        limit: int | None = None,
    ) -> Iterator[StoredRollout]:
        """Rollouts in order of arrival; `status` and `source` keep those with one judgement that has both."""
        where = ["NOT EXISTS (SELECT 1 FROM rollouts later WHERE later.id = rollouts.id AND later.seq > rollouts.seq)"]
        values: list[Any] = []
        for column, value in (("step", step), ("group_id", group_id)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        judged = [(column, value) for column, value in (("status", status), ("source", source)) if value is not None]
        if judged:
            conditions = " AND ".join(f"{column} = ?" for column, _ in judged)
            # The comparison that looks redundant lets SQLite use the index of unscored judgements.
            unscored = " AND status <> 'scored'" if status not in (None, "scored") else ""
            where.append(f"id IN (SELECT rollout_id FROM judgements WHERE {conditions}{unscored})")  # noqa: S608
            values += [value for _, value in judged]
        tasks: dict[str, Task] = {}
        last, left = 0, limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            clause = f"WHERE {' AND '.join(where)} AND seq > ? ORDER BY seq LIMIT ?"
            page = list(self._rows("rollouts", clause, *values, last, size, with_seq=True))
            for seq, *row in page:
                last = seq
                yield self._entry(tuple(row), tasks)
            if len(page) < size:
                return
            left = None if left is None else left - len(page)

    def unfinished_groups(self, *, after_step: int) -> Mapping[str, Mapping[str, tuple[Rollout, Reward | None]]]:
        """What a resumed run need not draw again: see `assay.store.resume.unfinished_groups`."""
        from assay.store.resume import unfinished_groups

        return unfinished_groups(self, after_step=after_step)

    # ---- rows ----

    def _entry(self, row: tuple[Any, ...], tasks: dict[str, Task]) -> StoredRollout:
        rollout_id, step, _, task_id, body = row
        if task_id not in tasks:
            found = list(self._rows("tasks", "WHERE id = ? ORDER BY seq", task_id))
            if not found:
                raise damaged(self.path, f"task {task_id!r} of rollout {rollout_id!r} is missing")
            tasks[task_id] = self._parsed(Task, found[-1][1])
        rewards = list(self._rows("rewards", "WHERE rollout_id = ? ORDER BY seq", rollout_id))
        judgements: dict[str, Judgement] = {}
        for _, source, _, text in self._rows("judgements", "WHERE rollout_id = ? ORDER BY seq", rollout_id):
            judgements[source] = self._parsed(Judgement, text)
        return StoredRollout(
            step,
            tasks[task_id],
            self._parsed(Rollout, body),
            self._parsed(Reward, rewards[-1][4]) if rewards else None,
            tuple(judgements.values()),
        )

    def rows(self, table: str, where: str = "", *values: Any) -> Iterator[tuple[Any, ...]]:
        """Verified rows of a table, for the modules of this package."""
        return self._rows(table, where, *values)

    def _rows(self, table: str, where: str = "", *values: Any, with_seq: bool = False) -> Iterator[tuple[Any, ...]]:
        for seq, *row, stored in self._query(f"SELECT seq, {COLUMNS[table]}, sum FROM {table} {where}", *values):  # noqa: S608 # names of this module
            if checksum(tuple(row)) != stored:
                raise damaged(self.path, f"row {seq} of {table} has changed since it was written")
            yield (seq, *row) if with_seq else tuple(row)

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(sql, values).fetchall()
        except SQLITE_ERRORS as error:
            raise worded(self.path, error) from error

    def _one(self, sql: str) -> int:
        return self._query(sql)[0][0]

    def _parsed(self, model: Any, body: str) -> Any:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise damaged(self.path, f"a {model.__name__} cannot be read: {error.errors()[0]['msg']}") from error


def _task_values(task: Task) -> tuple[Value, ...]:
    return task.id, task.model_dump_json()


def _rollout_values(rollout: Rollout, step: int) -> tuple[Value, ...]:
    return rollout.id, step, rollout.group_id, rollout.task_id, rollout.model_dump_json()


def _judgement_values(judgement: Judgement) -> tuple[Value, ...]:
    return judgement.rollout_id, judgement.source, judgement.verdict.status, judgement.model_dump_json()


def _reward_values(reward: Reward, step: int, group_id: str) -> tuple[Value, ...]:
    return reward.rollout_id, step, group_id, reward.value, reward.model_dump_json()


def _mark_values(step: int, group_id: str, action: str, reason: str) -> tuple[Value, ...]:
    return step, group_id, action, reason


def _make(path: Path, info: RunInfo) -> None:
    """Write the tables and what the run is."""
    values = (info.model_dump_json(),)
    with contextlib.closing(_connect(path)) as connection:
        connection.executescript(
            f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; {TABLES} COMMIT;"
        )
        connection.execute("INSERT INTO info (body, sum) VALUES (?, ?)", (*values, checksum(values)))


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0, check_same_thread=False)
    try:
        if not read_only:
            connection.execute("PRAGMA page_size = 8192")  # of a new file; eight judgements fit on a page
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # the writer carries over itself
        connection.execute("PRAGMA cache_size = -16000")
    except SQLITE_ERRORS:
        connection.close()
        raise
    return connection


def _check(path: Path, *, thorough: bool) -> None:
    """Raise `StoreError` where the file is not a log, is of another version, or (when thorough) is damaged."""
    connection = _connect(path, read_only=True)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise damaged(path, "it is not a log of assay")
        if version != VERSION:
            raise StoreError(f"{path}: written by another version (schema {version}, this assay reads {VERSION})")
        if not thorough:
            return
        check = "integrity_check" if path.stat().st_size <= _FULL_CHECK_BYTES else "quick_check"
        (answer,) = connection.execute(f"PRAGMA {check}(1)").fetchone()
        if answer != "ok":
            raise damaged(path, str(answer).splitlines()[-1])
        if path.stat().st_size <= _FULL_CHECK_BYTES:
            for table, columns in COLUMNS.items():
                for *row, stored in connection.execute(f"SELECT {columns}, sum FROM {table}"):  # noqa: S608 # names of this module
                    if checksum(tuple(row)) != stored:
                        raise damaged(path, f"a row of {table} has changed since it was written")
    finally:
        connection.close()
