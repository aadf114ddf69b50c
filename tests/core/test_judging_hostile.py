"""Hostile candidates in worker processes: each costs its own verdict within its limit, and nothing else."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Judgement, Reward
from assay.judging import open_panel
from assay.process import descendants
from assay.testing.fakes import make_group, make_task, registry_of

ENTRIES = TypeAdapter(tuple[RewardEntry, ...])
LIMIT_S = 1.0
SLACK_S = 10.0
"""What a busy machine may take to notice a limit; an item that is not ended at all runs for ever."""
STUCK = dict.fromkeys(("busy", "power", "swallow", "sleep", "read", "fork"), "timed out after 3 s")
"""Fault to its cause, of those that end at the limit of time (of 3 s)."""
CAUSES = {
    "exit": "its process exited with code 3 instead of answering",
    "segfault": "its process was ended by signal SIGSEGV",
    "allocate": "needed more than 256 MiB",
    "grow": "needed more than 256 MiB",
    "print": "printed more than 16 MiB",
    "raise": "ValueError: a verifier's bug",
    "base": "BaseException: not even an Exception",
    "systemexit": "SystemExit: 0",
    "nan": "its value nan is not a finite number",
    "inf": "its value inf is not a finite number",
    "outside": "its value 7.0 is outside the declared range [0, 1]",
    "string": "returned a str instead of a verdict",
    "none": "returned None instead of a verdict",
    "number": "returned a float instead of a verdict",
    "failed": "returned a verdict with status 'failed', which only assay writes; raise instead",
    "short": "returned 0 verdicts for 1 candidates",
}
"""Fault to its cause, of those that end by themselves or at another limit."""


def judge(texts: list[str], **options: object) -> tuple[tuple[Reward, ...], list[Judgement], float]:
    """Rewards, judgements, and the seconds of the slowest judgement of one group by `faulty`."""
    judgements: list[Judgement] = []

    async def run() -> tuple[Reward, ...]:
        async with open_panel(
            ENTRIES.validate_python([{"use": "faulty", **options}]),
            registry=registry_of("assay.testing.faulty"),
            judging=JudgingConfig(on_unhealthy="mask", stop_if_failed_above=1.0),
            context=BuildContext(base_dir=Path.cwd()),
            observe=lambda _, judgement: judgements.append(judgement),
        ) as panel:
            return await panel.judge_group(make_task(), make_group(texts))

    rewards = asyncio.run(run())
    return rewards, judgements, max(judgement.latency_s for judgement in judgements)


@pytest.mark.parametrize(("causes", "limit_s"), [(STUCK, 3.0), (CAUSES, 60.0)], ids=["stuck", "wrong"])
def test_every_hostile_item_fails_with_its_cause_and_spoils_no_other(
    causes: dict[str, str], limit_s: float, processes_left: Callable[[], set[int]]
) -> None:
    healthy = [f"answer {'x' * index}" for index in range(20)]
    hostile = [f"fault:{name}" for name in causes]
    rewards, judgements, slowest_s = judge(healthy + hostile, timeout_s=limit_s)
    assert [reward.value for reward in rewards[:20]] == [float(len(text) % 2) for text in healthy]
    assert [reward.value for reward in rewards[20:]] == [None] * len(hostile)
    found = {judgement.rollout_id: judgement for judgement in judgements}
    reasons = {name: found[f"r{index}"].reason for index, name in enumerate(causes, start=20)}
    assert reasons == causes
    assert {found[f"r{index}"].status for index in range(20, 20 + len(causes))} == {"failed"}
    assert slowest_s < limit_s + SLACK_S
    assert processes_left() == set()


@pytest.mark.parametrize("fault", ["million", "fields"])
def test_a_huge_result_is_too_large(fault: str) -> None:
    _, judgements, _ = judge([f"fault:{fault}"], timeout_s=120.0, memory_mib=2048)
    assert judgements[0].reason is not None
    assert "returned an answer of" in judgements[0].reason


def test_a_result_of_a_million_fields_is_stopped_at_the_limits_too() -> None:
    _, judgements, slowest_s = judge(["fault:fields"])
    assert judgements[0].status == "failed"
    assert slowest_s < LIMIT_S + SLACK_S


def test_processes_left_in_their_own_session_are_killed_and_the_item_fails(
    processes_left: Callable[[], set[int]],
) -> None:
    rewards, judgements, _ = judge(["fault:leave", "fine"], timeout_s=60.0)
    assert [reward.value for reward in rewards] == [None, 0.0]
    reasons = {judgement.rollout_id: judgement.reason for judgement in judgements}
    assert reasons["r0"] is not None
    assert reasons["r0"].startswith("left ")
    assert processes_left() == set()


def test_processes_that_are_left_are_charged_to_the_item_that_left_them_each_time(
    processes_left: Callable[[], set[int]],
) -> None:
    # What a dying process has just forked arrives late: one time in a hundred it was missed, or met by the next item.
    texts = [f"fault:leave {index}" if index % 2 else f"fine {index}" for index in range(600)]
    _, judgements, _ = judge(texts, timeout_s=60.0)
    statuses = {judgement.rollout_id: judgement.status for judgement in judgements}
    assert [index for index in range(600) if statuses[f"r{index}"] != ("failed" if index % 2 else "scored")] == []
    assert processes_left() == set()


def test_what_an_item_prints_is_kept_with_its_verdict() -> None:
    _, judgements, _ = judge(["fault:raise"])
    assert "ValueError: a verifier's bug" in judgements[0].output
    assert "verdict_of" in judgements[0].output


def test_a_timeout_is_the_candidates_doing_where_the_source_says_so() -> None:
    rewards, judgements, _ = judge(["fault:sleep"], timeout_s=0.3, limit_fault="candidate")
    assert (judgements[0].status, judgements[0].verdict.fault) == ("failed", "candidate")
    assert rewards[0].value == 0.0
    assert rewards[0].parts[0].declared


def test_one_stuck_item_delays_no_other() -> None:
    async def run() -> None:
        async with open_panel(
            ENTRIES.validate_python([{"use": "faulty", "timeout_s": 600.0}]),
            registry=registry_of("assay.testing.faulty"),
            judging=JudgingConfig(workers=2),
        ) as panel:
            task = make_task()
            await panel.judge(task, make_group(["warm"])[0])
            stuck = asyncio.create_task(panel.judge(task, make_group(["fault:swallow"])[0]))
            await asyncio.sleep(0.1)
            async with asyncio.timeout(120):
                for index in range(20):
                    await panel.judge(task, make_group([f"other {index}"])[0])
            assert not stuck.done()  # all twenty while the stuck one still holds its slot
            stuck.cancel()

    asyncio.run(run())


def test_workers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, os
from pydantic import TypeAdapter
from assay.config.rewards import RewardEntry
from assay.judging import open_panel
from assay.testing.fakes import make_group, make_task, registry_of

async def main():
    entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python([{{"use": "faulty", "timeout_s": 60.0}}])
    async with open_panel(entries, registry=registry_of("assay.testing.faulty")) as panel:
        await panel.judge(make_task(), make_group(["warm"])[0])
        open({str(tmp_path / "ready")!r}, "w").close()
        await panel.judge_group(make_task(), make_group(["fault:fork", "fault:swallow"]))

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until((tmp_path / "ready").exists)
    until(lambda: len(descendants(process.pid)) >= 7)
    below = descendants(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not any(running(pid) for pid in below))
    assert len(below) >= 7
    assert [pid for pid in below if running(pid)] == []


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, up to a minute; what must hold then is asserted by who waits."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_thousand_items_with_bad_ones_among_them(share: float, processes_left: Callable[[], set[int]]) -> None:
    bad = ["swallow", "busy", "raise", "base", "exit", "segfault", "fork", "allocate", "print"]
    count = 1000
    every = int(1 / share)
    texts = [
        f"fault:{bad[index // every % len(bad)]} {index}" if index % every == 0 else f"a{index}"
        for index in range(count)
    ]
    started = time.monotonic()
    limit_s = 3.0
    rewards, judgements, _ = judge(texts, timeout_s=limit_s)
    wall_s = time.monotonic() - started
    values = {f"r{index}": float(len(text) % 2) for index, text in enumerate(texts) if not text.startswith("fault:")}
    assert {reward.rollout_id: reward.value for reward in rewards if reward.rollout_id in values} == values
    found = {judgement.rollout_id: judgement for judgement in judgements}
    for index, text in enumerate(texts):
        if text.startswith("fault:"):
            judgement = found[f"r{index}"]
            assert judgement.status == "failed"
            assert judgement.reason == (STUCK | CAUSES)[text.split()[0].removeprefix("fault:")]
    stuck = sum(text.startswith(("fault:swallow", "fault:busy", "fault:fork")) for text in texts)
    assert wall_s < 1.25 * (stuck * limit_s / 2) + 120
    assert processes_left() == set()
