"""How long a pool of killable workers takes over many items of which some hang, and how late each limit is kept.

    python tests/benchmarks/judging_hostile.py [--items 10000] [--hanging 0.01] [--cost-s 0.001] [--limit-s 1]

One JSON line: wall time, its floor (hanging items x limit / workers + CPU of the others / workers), the ratio, the
latest answer of a hanging item after its limit, respawns, the parent's memory growth, processes left.
"""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Judgement
from assay.judging import open_panel
from assay.process import descendants
from assay.testing.fakes import make_rollout, make_task, registry_of


async def measure(items: int, hanging: float, cost_s: float, limit_s: float, workers: int) -> dict[str, float]:
    """The figures of one run."""
    entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python(
        [{"use": "faulty", "cost_s": cost_s, "timeout_s": limit_s}]
    )
    every = round(1 / hanging)
    judgements: list[Judgement] = []
    judging = JudgingConfig(workers=workers, on_unhealthy="mask", stop_if_failed_above=1.0, cache=False)
    memory = psutil.Process().memory_info().rss
    async with open_panel(
        entries,
        registry=registry_of("assay.testing.faulty"),
        judging=judging,
        observe=lambda _, judgement: judgements.append(judgement),
    ) as panel:
        task = make_task()
        await panel.judge(task, make_rollout("warm"))
        judgements.clear()
        room = asyncio.Semaphore(256)

        async def one(index: int) -> None:
            text = f"fault:swallow {index}" if index % every == 0 else f"answer {index}"
            async with room:
                await panel.judge(task, make_rollout(text, f"r{index}"))

        started, cpu = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for index in range(items):
                group.create_task(one(index))
        wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu
        spawned = panel.metrics()["workers/spawned"]
    failed = [judgement for judgement in judgements if judgement.status == "failed"]
    stuck = sum(index % every == 0 for index in range(items))
    floor_s = (stuck * limit_s + (items - stuck) * cost_s) / workers
    return {
        "items": items,
        "hanging": stuck,
        "failed": len(failed),
        "wall_s": round(wall_s, 2),
        "floor_s": round(floor_s, 2),
        "ratio": round(wall_s / floor_s, 3),
        "latest_after_limit_s": round(max(judgement.latency_s for judgement in failed) - limit_s, 3),
        "parent_cpu_us_per_item": round(cpu_s / items * 1e6, 1),
        "spawned": spawned,
        "parent_growth_mib": round((psutil.Process().memory_info().rss - memory) / 2**20, 1),
        "left_processes": len(descendants(os.getpid())),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--hanging", type=float, default=0.01)
    parser.add_argument("--cost-s", type=float, default=0.001)
    parser.add_argument("--limit-s", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    load = os.getloadavg()
    figures = asyncio.run(measure(given.items, given.hanging, given.cost_s, given.limit_s, given.workers))
    print(json.dumps({"benchmark": Path(__file__).stem, "load": load, **figures}))


if __name__ == "__main__":
    main()
