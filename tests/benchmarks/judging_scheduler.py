"""What the panel itself costs per rollout and source, with sources that do nothing; with and without the store.

    python tests/benchmarks/judging_scheduler.py [--rollouts 100000] [--sources 3]

One JSON line per setting: CPU microseconds per rollout per source, and the growth of memory over the second half. Both
readings of memory are taken when nothing waits for the disk and freed pages have gone back; `peak_mib` is the most that
was held at any time, rows that waited for a slow disk included.
"""

import argparse
import asyncio
import ctypes
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Rollout, RolloutRequest, RunInfo, Sampling
from assay.judging import open_panel
from assay.store import RunStore
from assay.testing.fakes import make_task, registry_of
from assay.testing.scripted import ScriptedEngine

SOURCES = '''
"""Sources that cost nothing."""
from assay import Verdict, hookimpl, verifier

def make(index):
    @verifier(f"nothing-{index}", isolation="inline")
    def nothing(task, rollout):
        """Always 1."""
        return Verdict.score(1.0)
    return nothing

@hookimpl
def assay_reward_sources():
    """Offer them."""
    return [make(index) for index in range(9)]
'''


async def measure(rollouts: int, sources: int, store: RunStore | None, module: str) -> dict[str, float]:
    """The figures of one setting."""
    entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python(
        [{"use": f"nothing-{index}"} for index in range(sources)]
    )
    engine = ScriptedEngine(lambda request, _: f"answer {request.id}")
    task = make_task()
    groups = rollouts // 8
    judged = 0
    memory_half = 0

    def observe(_candidate: object, judgement: object) -> None:
        if store is not None:
            store.add_judgement(judgement)  # pyright: ignore[reportArgumentType] # the panel hands over judgements

    # The distribution is named like the built-in one, so that the sources are trusted with the candidates themselves.
    registry = registry_of(module, distribution="assay")
    async with open_panel(entries, registry=registry, judging=JudgingConfig(), observe=observe) as panel:
        engine_s = 0.0
        started = time.process_time()
        for group in range(groups):
            before = time.process_time()
            requests = [
                RolloutRequest(id=f"r{group}-{sample}", task=task, group_id=f"g{group}", sampling=Sampling())
                for sample in range(8)
            ]
            members: list[Rollout] = [rollout async for rollout in engine.generate(requests)]
            engine_s += time.process_time() - before
            rewards = await panel.judge_group(task, members)
            judged += len(rewards)
            if store is not None:
                for rollout, reward in zip(members, rewards, strict=True):
                    store.add_rollout(rollout, step=group, task=task)
                    store.add_reward(reward, step=group, group_id=rollout.group_id)
            if group == groups // 2:
                memory_half = held(store)
        if store is not None:
            store.flush()
        cpu_s = time.process_time() - started - engine_s
    grown = held(store) - memory_half
    return {
        "rollouts": judged,
        "sources": sources,
        "cpu_us_per_rollout_and_source": round(cpu_s / judged / sources * 1e6, 1),
        "engine_us_per_rollout": round(engine_s / judged * 1e6, 1),
        "memory_growth_second_half_percent": round(100 * grown / memory_half, 2),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def held(store: RunStore | None) -> int:
    """Bytes that this process keeps."""
    if store is not None:
        store.flush()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
    return psutil.Process().memory_info().rss


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--sources", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nothing_sources.py").write_text(SOURCES, encoding="utf-8")
        sys.path.insert(0, folder)
        for stored in (False, True):
            load = os.getloadavg()
            info = RunInfo(id="b", name="b", kind="rlvr", folder=folder, seed=1)
            store = RunStore.create(Path(folder) / "run", info) if stored else None
            figures = asyncio.run(measure(given.rollouts, given.sources, store, "nothing_sources"))
            if store is not None:
                store.close()
            print(json.dumps({"benchmark": Path(__file__).stem, "store": stored, "load": load, **figures}), flush=True)


if __name__ == "__main__":
    main()
