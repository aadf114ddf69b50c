"""How fast judgements are appended, and how fast one rollout is opened among many.

    python tests/benchmarks/store_throughput.py [--judgements 1000000]

One JSON line: judgements per second (500-byte evidence, WAL, synchronous NORMAL, one writer, durable at the end), the
floor in the same run (the same rows, already serialised, by SQLite's own `executemany` into a file of the same kind, in
turns with ours), CPU microseconds each of both, milliseconds to open one rollout with its judgements (median and worst
of 200), bytes each.
"""

import argparse
import json
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from assay.contracts import Judgement, RunInfo, Verdict
from assay.store import RunStore
from assay.store.schema import INSERTS, TABLES, Value, checksum
from assay.testing.fakes import make_rollout, make_task

PER_ROLLOUT = 3
TURN = 10_000
"""Rollouts between two changes of sides."""


class Clock:
    """Adds up wall and CPU seconds of the blocks that it times."""

    def __init__(self) -> None:
        """Start at zero."""
        self.wall_s = self.cpu_s = 0.0
        self._began = (0.0, 0.0)

    def __enter__(self) -> None:
        """Begin a block."""
        self._began = (time.monotonic(), time.process_time())

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.wall_s += time.monotonic() - self._began[0]
        self.cpu_s += time.process_time() - self._began[1]


def raw_database(path: Path) -> sqlite3.Connection:
    """A file with the log's tables and SQLite's own settings but for WAL and synchronous NORMAL."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.executescript(TABLES)
    return connection


def raw_row(judgement: Judgement) -> tuple[Value, ...]:
    """What the log writes of a judgement."""
    values = (judgement.rollout_id, judgement.source, judgement.verdict.status, judgement.model_dump_json())
    return (*values, checksum(values))


def append_raw(connection: sqlite3.Connection, rows: Sequence[tuple[Value, ...]]) -> None:
    """Append rows in transactions of the size that the store uses when it is busy."""
    for begin in range(0, len(rows), 5_000):
        connection.execute("BEGIN")
        connection.executemany(INSERTS["judgements"], rows[begin : begin + 5_000])
        connection.execute("COMMIT")


def measure(folder: Path, count: int) -> dict[str, float]:
    """The figures of one run."""
    task = make_task()
    verdict = Verdict.score(1.0, evidence="e" * 500)
    rollouts = count // PER_ROLLOUT
    made = [
        Judgement(
            rollout_id="",
            task_id=task.id,
            source=f"source-{index}",
            version="1.0",
            options_hash="0" * 32,
            input_hash="1" * 32,
            verdict=verdict,
            started_at=datetime.now(UTC),
            latency_s=0.01,
        )
        for index in range(PER_ROLLOUT)
    ]
    ours, raw = Clock(), Clock()
    connection = raw_database(folder / "raw.sqlite")
    with RunStore.create(
        folder / "run", RunInfo(id="b", name="b", kind="rlvr", folder=str(folder / "run"), seed=1)
    ) as store:
        for begin in range(0, rollouts, TURN):
            names = [f"r{index:08d}" for index in range(begin, min(rollouts, begin + TURN))]
            batch = [judgement.model_copy(update={"rollout_id": name}) for name in names for judgement in made]
            for name in names:
                store.add_rollout(make_rollout("x" * 200, name), step=begin // TURN, task=task)
            store.flush()
            with ours:
                for judgement in batch:
                    store.add_judgement(judgement)
                store.flush()
            rows = [raw_row(judgement) for judgement in batch]
            with raw:
                append_raw(connection, rows)
        connection.close()
        opened: list[float] = []
        generator = random.Random(7)
        for _ in range(200):
            name = f"r{generator.randrange(rollouts):08d}"
            started = time.monotonic()
            assert len(store.rollout(name).judgements) == PER_ROLLOUT
            opened.append(1000 * (time.monotonic() - started))
    total = rollouts * PER_ROLLOUT
    return {
        "judgements": total,
        "per_second": round(total / ours.wall_s),
        "floor_per_second": round(total / raw.wall_s),
        "share_of_floor": round(raw.wall_s / ours.wall_s, 3),
        "cpu_us_each": round(ours.cpu_s / total * 1e6, 1),
        "floor_cpu_us_each": round(raw.cpu_s / total * 1e6, 1),
        "open_ms_median": round(sorted(opened)[100], 2),
        "open_ms_worst": round(max(opened), 2),
        "bytes_each": round((folder / "run" / "log.sqlite").stat().st_size / total),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judgements", type=int, default=1_000_000)
    given = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), given.judgements)
    print(json.dumps({"benchmark": Path(__file__).stem, "load": load, **figures}))


if __name__ == "__main__":
    main()
