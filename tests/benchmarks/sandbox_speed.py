"""What a program costs in each sandbox tier: jail start, warm execution, throughput, and a bare interpreter beside it.

    python tests/benchmarks/sandbox_speed.py [--tiers bubblewrap docker landlock] [--jobs 300]

One JSON line a tier. Times are in milliseconds. `wall` is what the caller waits; on a machine that is not idle judge
`jail_cpu` (CPU of the job's process, its fork included) and `ratio` (against `python3 -S -c pass` in the same run).
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from assay.component import BuildContext
from assay.contracts.sandbox import Job
from assay.errors import SandboxError
from assay_sandboxes import assay_sandboxes
from assay_sandboxes.sandbox import JailedSandbox

ADDS = Job(source="a, b = map(int, input().split())\nprint(a + b)\n", stdin="2 3\n")
TIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bubblewrap": ("bubblewrap", {}),
    "bubblewrap-jail-namespaces": ("bubblewrap", {"namespaces_per_job": False}),
    "docker": ("docker", {}),
    "landlock": ("landlock", {}),
    "subprocess": ("subprocess", {"unsafe": True}),
}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def bare_python(times: int = 20) -> float:
    """Median milliseconds of starting the interpreter for nothing."""
    taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        taken.append(time.perf_counter() - began)
    return _ms(statistics.median(taken))


def starts(sandbox: JailedSandbox, times: int = 5) -> float:
    """Median milliseconds from nothing to a jail that answers."""
    worker = sandbox._candidates[0]  # pyright: ignore[reportPrivateUsage]
    taken: list[float] = []
    for _ in range(times):
        worker.thread.submit(worker.slot._drop).result()  # pyright: ignore[reportPrivateUsage]
        began = time.perf_counter()
        worker.thread.submit(worker.slot.jail).result()
        taken.append(time.perf_counter() - began)
    return _ms(statistics.median(taken))


async def measure(name: str, jobs: int) -> dict[str, Any]:
    """The figures of one tier."""
    component_name, options = TIERS[name]
    component = {each.name: each for each in assay_sandboxes()}[component_name]
    sandbox = component.build(component.config(**options), BuildContext())
    assert isinstance(sandbox, JailedSandbox)
    try:
        start = starts(sandbox)
        for _ in range(20):
            await sandbox.run(ADDS)
        bare = bare_python()
        wall: list[float] = []
        cpu: list[float] = []
        for _ in range(jobs):
            began = time.perf_counter()
            result = await sandbox.run(ADDS)
            wall.append(time.perf_counter() - began)
            cpu.append(result.cpu_s)
            assert result.stdout == "5\n"
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(2 * jobs):
                group.create_task(sandbox.run(ADDS))
        per_s = 2 * jobs / (time.perf_counter() - began)
    finally:
        await sandbox.aclose()
    median = statistics.median(wall)
    return {
        "benchmark": "sandbox_speed",
        "tier": name,
        "load": os.getloadavg()[0],
        "jobs": jobs,
        "start_ms": start,
        "wall_median_ms": _ms(median),
        "wall_p95_ms": _ms(sorted(wall)[int(0.95 * jobs)]),
        "p95_over_median": round(sorted(wall)[int(0.95 * jobs)] / median, 2),
        "jail_cpu_median_ms": _ms(statistics.median(cpu)),
        "two_slots_per_s": round(per_s, 1),
        "bare_python_ms": bare,
        "ratio": round(_ms(median) / bare, 2),
    }


def main() -> None:
    """Print one line a tier."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiers", nargs="*", default=list(TIERS), choices=list(TIERS))
    parser.add_argument("--jobs", type=int, default=300)
    arguments = parser.parse_args()
    for name in arguments.tiers:
        try:
            print(json.dumps(asyncio.run(measure(name, arguments.jobs))), flush=True)
        except SandboxError as error:
            print(json.dumps({"benchmark": "sandbox_speed", "tier": name, "skipped": str(error)}), flush=True)


if __name__ == "__main__":
    main()
