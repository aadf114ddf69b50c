"""Throughput of a reward pool on 1, 2, 4 and 8 Ray actors, for a source that sleeps.

    python tests/benchmarks/ray_actors.py [--sleep 0.05] [--seconds 4]

Judging that sleeps shows what the pool itself costs: with as many actors as there are candidates in hand, throughput
should grow as they do. Each actor has one killable worker. It says nothing of work that needs the CPU.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from assay.config.rewards import JudgingConfig, RayConfig, SourceEntry
from assay.contracts import Message, Rollout, Task, Turn
from assay.judging import Panel, open_panel
from assay.preflight import make_context
from assay.registry import Registry
from assay.remote.placing import cluster_workers

ACTORS = (1, 2, 4, 8)
TARGET = 0.9
SOURCE = """
import time
from assay import Verdict

def sleeps(task, rollout):
    time.sleep({sleep_s})
    return Verdict.score(1.0)
"""


async def judge(panel: Panel, count: int) -> None:
    async def one(number: int) -> None:
        task = Task(id=f"t{number}", messages=(Message(role="user", content="?"),))
        turn = (Turn(text="x"),)
        reward = await panel.judge(task, Rollout(id=f"r{number}", task_id=task.id, group_id="g", turns=turn))
        assert reward.value == 1.0

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))


async def measure(actors: int, folder: Path, *, sleep_s: float, seconds: float) -> float:
    """Candidates per second."""
    ray = RayConfig(address="local", workers_per_actor=1, cpus_per_worker=0)
    judging = JudgingConfig(workers=actors, ray=ray, cache=False, start_timeout_s=120)
    context = make_context(registry := Registry.load(), base_dir=folder, seed=0)
    entry = SourceEntry.model_validate({"use": "python", "path": "sleeps.py:sleeps"})
    async with (
        cluster_workers(judging, context),
        open_panel([entry], registry=registry, judging=judging, context=context) as panel,
    ):
        await judge(panel, 8 * actors)  # every actor has its worker now
        count = max(1, round(seconds / sleep_s)) * actors
        started = time.perf_counter()
        await judge(panel, count)
        return count / (time.perf_counter() - started)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--sleep", type=float, default=0.05, help="seconds that judging one candidate sleeps")
    arguments.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sleeps.py").write_text(SOURCE.format(sleep_s=given.sleep), encoding="utf-8")
        single = 0.0
        for actors in ACTORS:
            rate = asyncio.run(measure(actors, folder, sleep_s=given.sleep, seconds=given.seconds))
            single = single or rate
            share = rate / (single * actors)
            print(
                f"{actors} actors: {rate:6.1f} candidates/s, {share:.3f} of linear (target {TARGET}), "
                f"{rate * given.sleep / actors:.3f} of what sleeping alone allows"
            )


if __name__ == "__main__":
    main()
