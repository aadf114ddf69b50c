"""Tables of the log, and the checksum that every row carries.

Rows are only ever added. Where something is said twice (a rollout judged again after a kill), the later row holds.
Bodies are the contracts as JSON; the other columns repeat what is searched by. `sum` is a CRC-32 over all of them, so
that a flipped bit in a value is noticed, which SQLite itself does not check.
"""

import zlib

VERSION = 1
"""Stored as SQLite's `user_version`; a log of another version is refused."""

APPLICATION_ID = 0x61737379
"""Stored as SQLite's `application_id`: the bytes `assy`."""

TABLES = """
CREATE TABLE info (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE tasks (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, body TEXT NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE rollouts (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, step INTEGER NOT NULL, group_id TEXT NOT NULL, task_id TEXT NOT NULL,
    body TEXT NOT NULL, sum INTEGER NOT NULL
);
CREATE TABLE judgements (
    seq INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL, source TEXT NOT NULL, status TEXT NOT NULL,
    body TEXT NOT NULL, sum INTEGER NOT NULL
);
CREATE TABLE rewards (
    seq INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL, step INTEGER NOT NULL, group_id TEXT NOT NULL, value REAL,
    body TEXT NOT NULL, sum INTEGER NOT NULL
);
CREATE TABLE marks (
    seq INTEGER PRIMARY KEY, step INTEGER NOT NULL, group_id TEXT NOT NULL, action TEXT NOT NULL, reason TEXT NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX tasks_id ON tasks (id);
CREATE INDEX rollouts_id ON rollouts (id);
CREATE INDEX rollouts_step ON rollouts (step, group_id);
CREATE INDEX rollouts_group ON rollouts (group_id);
CREATE INDEX judgements_rollout ON judgements (rollout_id);
CREATE INDEX judgements_unscored ON judgements (status, source) WHERE status <> 'scored';
CREATE INDEX rewards_rollout ON rewards (rollout_id);
CREATE INDEX marks_group ON marks (group_id);
CREATE INDEX marks_step ON marks (step);
"""

INSERTS = {
    "info": "INSERT INTO info (body, sum) VALUES (?, ?)",
    "tasks": "INSERT INTO tasks (id, body, sum) VALUES (?, ?, ?)",
    "rollouts": "INSERT INTO rollouts (id, step, group_id, task_id, body, sum) VALUES (?, ?, ?, ?, ?, ?)",
    "judgements": "INSERT INTO judgements (rollout_id, source, status, body, sum) VALUES (?, ?, ?, ?, ?)",
    "rewards": "INSERT INTO rewards (rollout_id, step, group_id, value, body, sum) VALUES (?, ?, ?, ?, ?, ?)",
    "marks": "INSERT INTO marks (step, group_id, action, reason, sum) VALUES (?, ?, ?, ?, ?)",
}
"""Table to its insert statement; the checksum is the last value."""

COLUMNS = {
    "info": "body",
    "tasks": "id, body",
    "rollouts": "id, step, group_id, task_id, body",
    "judgements": "rollout_id, source, status, body",
    "rewards": "rollout_id, step, group_id, value, body",
    "marks": "step, group_id, action, reason",
}
"""Table to the columns that its checksum covers, in order."""

Value = str | int | float | None


def checksum(values: tuple[Value, ...]) -> int:
    """CRC-32 of a row's values."""
    return zlib.crc32("\x1f".join(map(str, values)).encode("utf-8", "surrogatepass"))
