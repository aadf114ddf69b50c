"""Judging that is killed again and again: nothing lost, nothing counted twice, and the same values in the end."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.store import RunStore, unjudged

JUDGE = """
import asyncio, sys
from pathlib import Path
from pydantic import TypeAdapter
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import RunInfo
from assay.judging import open_panel
from assay.store import RunStore, unjudged
from assay.testing.fakes import make_rollout, make_task, registry_of

folder, count = Path(sys.argv[1]), int(sys.argv[2])
task = make_task("t")

def text(index):
    return f"fault:raise {index}" if index % 40 == 7 else f"answer {'x' * (index % 17)} {index}"

async def main():
    if (folder / "log.sqlite").exists():
        store = RunStore.open(folder)
    else:
        store = RunStore.create(folder, RunInfo(id="run", name="n", kind="score", folder=str(folder), seed=1))
    with store:
        known = {entry.rollout.id for entry in store.rollouts()}
        for index in range(count):
            if f"r{index}" not in known:
                store.add_rollout(make_rollout(text(index), f"r{index}", task_id="t", group_id="g"), step=0, task=task)
        store.flush()
        print("judging", flush=True)
        entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python([{"use": "faulty", "timeout_s": 60.0}])
        judging = JudgingConfig(on_unhealthy="mask", stop_if_failed_above=1.0)
        async with open_panel(entries, registry=registry_of("assay.testing.faulty"), judging=judging,
                              observe=lambda _, judgement: store.add_judgement(judgement)) as panel:
            for rollout_id in unjudged(store):
                reward = await panel.judge(task, store.rollout(rollout_id).rollout)
                store.add_reward(reward, step=0, group_id="g")
    print("done", flush=True)

asyncio.run(main())
"""


def judge_until(folder: Path, count: int, seconds: float | None) -> bool:
    """Judge what is left, killed after so many seconds of judging; whether it ended by itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", JUDGE, str(folder), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "judging\n"
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
        rest = output.read()
    process.wait()
    return rest.endswith("done\n")


def values(folder: Path) -> dict[str, float | None]:
    """The final reward of every rollout, each with exactly one final judgement."""
    found: dict[str, float | None] = {}
    with RunStore.open(folder) as store:
        assert unjudged(store) == []
        for entry in store.rollouts():
            assert entry.rollout.id not in found
            assert entry.reward is not None
            assert len(entry.judgements) == 1
            found[entry.rollout.id] = entry.reward.value
    return found


def check(folder: Path, *, count: int, kills: int, longest_s: float) -> None:
    assert judge_until(folder / "calm", count, None)
    expected = values(folder / "calm")
    assert len(expected) == count
    generator = random.Random(7)
    kept = 0
    for _ in range(kills):
        if judge_until(folder / "killed", count, generator.uniform(0.0, longest_s)):
            continue
        with RunStore.open(folder / "killed") as store:
            judged = count - len(unjudged(store))
        assert judged >= kept
        kept = judged
    judge_until(folder / "killed", count, None)
    assert values(folder / "killed") == expected


def test_killed_judging_resumes_to_the_same_values(tmp_path: Path) -> None:
    check(tmp_path, count=150, kills=3, longest_s=0.6)


@pytest.mark.slow
def test_killed_judging_resumes_to_the_same_values_after_fifty_kills(tmp_path: Path) -> None:
    check(tmp_path, count=2000, kills=50, longest_s=1.2)
