"""The one thread that writes: rows queue up, and are committed together at least every `COMMIT_S` seconds.

A row is durable (it survives `kill -9`) once its transaction is committed; `flush` waits for that. After an error
nothing more is written, and every later call raises the same `StoreError`: what was committed before stays readable.

The write-ahead log is carried over into the file here and not by SQLite behind a commit, which would pass over a full
disk in silence and let it grow: what a resume needs to carry over is bounded by `_CARRY_BYTES` and one transaction.
"""

import functools
import itertools
import shutil
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from assay.errors import StoreError
from assay.store.schema import INSERTS, Value, checksum

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What the `sqlite3` module raises; the second where a damaged schema is not even text."""

COMMIT_S = 0.2
"""Longest time that a row waits for its commit to begin."""
_BATCH = 5_000
_ROW_BYTES = 2048
"""Generous size of a row, for messages."""
_ROWS = 200
"""Rows of one insert statement: fewer steps of SQLite, and fewer hand-overs of the interpreter to other threads."""
_CARRY_BYTES = 4 << 20
"""Text that is committed before the write-ahead log is carried over into the file."""
_BOUND = 20_000
"""Rows that may wait (some 35 MB); then `add` blocks, which is the backpressure of a slow disk."""


Values = Callable[..., tuple[Value, ...]]
"""Makes the values of a row; called in the writer's thread."""


class Writer:
    """Owns the writing connection."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        """Start the thread; `connect` is called in it."""
        self.path = path
        self._connect = connect
        self._rows: deque[tuple[str, Values, Any]] = deque()
        self._changed = threading.Condition()
        self._added = 0
        self._committed = 0
        self._wanted = 0
        self._uncarried = 0
        self._closing = False
        self._error: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="assay-store", daemon=True)
        self._thread.start()

    def add(self, table: str, values: Values, *what: Any) -> None:
        """Queue the row `values(*what)`; raises `StoreError` after an earlier write failed."""
        if self._error is not None:
            raise self._error
        self._rows.append((table, values, what))  # one object a row: many small ones would wake the garbage collector
        self._added += 1
        if self._added - self._committed > _BOUND:
            self._wait(self._added - _BOUND)

    def flush(self) -> None:
        """Return once everything added so far is durable; raises `StoreError` where it cannot be."""
        self._wait(self._added)

    def close(self) -> None:
        """Write what is left and end the thread; raises `StoreError` where that fails."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and self._committed < self._added:
            raise self._error

    def _wait(self, count: int) -> None:
        with self._changed:
            self._wanted = max(self._wanted, count)
            self._changed.notify_all()
            while self._committed < count and self._error is None:
                self._changed.wait()
        if self._error is not None and self._committed < count:
            raise self._error

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            connection = self._connect()
            while self._sleep():
                while self._rows:
                    self._commit(connection)
        except SQLITE_ERRORS as error:
            self._fail(self._worded(error))
        except BaseException as error:  # callers must hear of a defect here instead of waiting for ever
            self._fail(StoreError(f"{self.path}: cannot be written: {type(error).__name__}: {error}"))
            raise
        finally:
            if connection is not None:
                try:
                    connection.close()
                except SQLITE_ERRORS as error:
                    self._fail(self._worded(error))

    def _sleep(self) -> bool:
        """Wait for work; false once everything is written and the writer is closing."""
        with self._changed:
            if not self._rows and self._closing:
                return False
            if self._wanted <= self._committed and len(self._rows) < _BATCH and not self._closing:
                self._changed.wait(COMMIT_S)
            return True

    def _commit(self, connection: sqlite3.Connection) -> None:
        taken = [self._rows.popleft() for _ in range(min(len(self._rows), _BATCH))]
        run_table, run_values = "", list[tuple[Value, ...]]()
        with connection:
            connection.execute("BEGIN")
            for table, make, what in taken:
                if table != run_table:
                    _insert(connection, run_table, run_values)
                    run_table, run_values = table, []
                values = make(*what)
                self._uncarried += len(values[-1]) if isinstance(values[-1], str) else 0
                run_values.append((*values, checksum(values)))
            _insert(connection, run_table, run_values)
        with self._changed:
            self._committed += len(taken)
            self._changed.notify_all()
        if self._uncarried > _CARRY_BYTES:
            self._uncarried = 0
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _fail(self, error: StoreError) -> None:
        with self._changed:
            self._error = self._error or error
            self._rows.clear()
            self._changed.notify_all()

    def _worded(self, error: Exception) -> StoreError:
        return worded(self.path, error, waiting=self._added - self._committed)


def worded(path: Path, error: Exception, *, waiting: int = 0) -> StoreError:
    """One sentence for an error of SQLite: a full disk, a damaged file, or what it says itself."""
    name = getattr(error, "sqlite_errorname", "") or ""
    free = shutil.disk_usage(path.parent).free
    if name.startswith("SQLITE_FULL") or (name.startswith("SQLITE_IOERR") and free < 1 << 20):
        ahead = path.with_name(f"{path.name}-wal")
        needed = max(1, waiting) * _ROW_BYTES + (ahead.stat().st_size if ahead.exists() else 0)
        return StoreError(
            f"{path}: the disk is full: about {needed:,} bytes are needed for {waiting:,} rows, {free:,} bytes "
            "are free. Everything that was acknowledged is kept; free space and go on with --resume"
        )
    if isinstance(error, UnicodeDecodeError) or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged(path, str(error))
    return StoreError(f"{path}: cannot be used: {error}" + (f" ({name})" if name else ""))


def damaged(path: Path, what: str) -> StoreError:
    """The error for a file that is not what was written."""
    return StoreError(
        f"{path}: the log is damaged: {what}. Restore the file from a copy, or start a new run; "
        "checkpoints in the same folder are not affected"
    )


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Value, ...]]) -> None:
    whole = len(rows) - len(rows) % _ROWS
    for begin in range(0, whole, _ROWS):
        connection.execute(_many(table), list(itertools.chain.from_iterable(rows[begin : begin + _ROWS])))
    if whole < len(rows):
        connection.executemany(INSERTS[table], rows[whole:])


@functools.cache
def _many(table: str) -> str:
    """The insert statement of a table for `_ROWS` rows at once."""
    head, values, row = INSERTS[table].partition(" VALUES ")
    return head + values + ", ".join([row] * _ROWS)
