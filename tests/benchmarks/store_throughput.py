"""How fast judgements are appended, and how fast one rollout is opened among many.

    python tests/benchmarks/store_throughput.py [--judgements 1000000]

One JSON line: judgements per second (500-byte evidence, WAL, synchronous NORMAL, one writer, durable at the end), CPU
microseconds each, milliseconds to open one rollout with its judgements (median and worst of 200), bytes each.
"""

import argparse
import json
import os
import random
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from assay.contracts import Judgement, RunInfo, Verdict
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task


def measure(folder: Path, count: int) -> dict[str, float]:
    """The figures of one run."""
    task = make_task()
    verdict = Verdict.score(1.0, evidence="e" * 500)
    per_rollout = 3
    rollouts = count // per_rollout
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
        for index in range(per_rollout)
    ]
    with RunStore.create(folder, RunInfo(id="b", name="b", kind="rlvr", folder=str(folder), seed=1)) as store:
        wall_s = cpu_s = 0.0
        for begin in range(0, rollouts, 10_000):
            names = [f"r{index:08d}" for index in range(begin, min(rollouts, begin + 10_000))]
            batch = [judgement.model_copy(update={"rollout_id": name}) for name in names for judgement in made]
            for name in names:
                store.add_rollout(make_rollout("x" * 200, name), step=begin // 10_000, task=task)
            store.flush()
            started, cpu = time.monotonic(), time.process_time()
            for judgement in batch:
                store.add_judgement(judgement)
            store.flush()
            wall_s += time.monotonic() - started
            cpu_s += time.process_time() - cpu
        opened: list[float] = []
        generator = random.Random(7)
        for _ in range(200):
            name = f"r{generator.randrange(rollouts):08d}"
            started = time.monotonic()
            assert len(store.rollout(name).judgements) == per_rollout
            opened.append(1000 * (time.monotonic() - started))
    total = rollouts * per_rollout
    size = (folder / "log.sqlite").stat().st_size
    return {
        "judgements": total,
        "per_second": round(total / wall_s),
        "cpu_us_each": round(cpu_s / total * 1e6, 1),
        "open_ms_median": round(sorted(opened)[100], 2),
        "open_ms_worst": round(max(opened), 2),
        "bytes_each": round(size / total),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judgements", type=int, default=1_000_000)
    given = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "run", given.judgements)
    print(json.dumps({"benchmark": Path(__file__).stem, "load": load, **figures}))


if __name__ == "__main__":
    main()
