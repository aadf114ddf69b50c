"""Memory: a candidate is stopped near its limit, and the run's own process does not grow with the number judged."""

import asyncio
import os

import psutil
import pytest
from pydantic import TypeAdapter

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import ResourceLimits
from assay.judging import WorkerPool, open_panel
from assay.testing.fakes import make_rollout, make_task, registry_of


def allocated_mib(payload: dict[str, int]) -> int:
    """Allocate until the limit stops it; how far it came, in MiB (runs in a worker)."""
    kept: list[bytearray] = []
    try:
        while len(kept) < payload["most_mib"]:
            kept.append(bytearray(1 << 20))
    except MemoryError:
        pass
    return len(kept)


@pytest.mark.parametrize("limit_mib", [64, 256])
def test_a_worker_gets_its_memory_and_no_more(
    limit_mib: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from pathlib import Path

    folder = Path(str(tmp_path))
    source = Path(__file__).read_text(encoding="utf-8")
    begin = source.index("def allocated_mib")
    (folder / "allocating.py").write_text(source[begin : source.index("@pytest")], encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    pool = WorkerPool(1)
    try:
        limits = ResourceLimits(wall_s=120, memory_mib=limit_mib)
        answer = pool.call_blocking("allocating:allocated_mib", {"most_mib": 2 * limit_mib}, limits=limits)
    finally:
        pool.close()
    assert answer.status == "ok", answer
    assert isinstance(answer.value, int)
    assert 0.8 * limit_mib <= answer.value <= 1.1 * limit_mib


@pytest.mark.slow
def test_the_runs_process_stays_flat_over_ten_thousand_items() -> None:
    async def grown_mib() -> list[float]:
        entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python([{"use": "faulty"}])
        judging = JudgingConfig(on_unhealthy="mask", stop_if_failed_above=1.0)
        process = psutil.Process(os.getpid())
        sizes: list[float] = []
        async with open_panel(entries, registry=registry_of("assay.testing.faulty"), judging=judging) as panel:
            for repeat in range(6):
                for begin in range(0, 2000, 200):
                    async with asyncio.TaskGroup() as group:
                        for index in range(begin, begin + 200):
                            text = "fault:allocate" if index % 100 == 0 else f"answer {repeat} {index}"
                            group.create_task(panel.judge(make_task(), make_rollout(text, f"r{repeat}-{index}")))
                sizes.append(process.memory_info().rss / 2**20)
        return [size - sizes[0] for size in sizes]

    grown = asyncio.run(grown_mib())
    assert grown[-1] < 50
