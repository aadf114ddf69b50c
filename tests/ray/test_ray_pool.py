"""Reward pools on a real Ray cluster: the same verdicts, and what becomes of lost, hung and impossible actors."""

# pyright: reportUnknownMemberType=false
import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.config.rewards import JudgingConfig, RayConfig, RewardEntry, SourceEntry
from assay.contracts import Message, ResourceLimits, Reward, Rollout, Task, Turn
from assay.errors import ConfigError
from assay.judging import Panel, WorkerPool, open_panel
from assay.judging.tracked import ProgramKey
from assay.preflight import make_context
from assay.registry import Registry
from assay.remote.placing import cluster_workers
from assay.remote.ray.pool import RayPool

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SOURCE = """
import os, pathlib, time
from assay import Verdict

def judge(task, rollout):
    word, _, rest = rollout.text.partition(" ")
    with open(pathlib.Path(__file__).parent / "begun.txt", "a") as file:
        file.write(rollout.id + "\\n")
    if word == "sleep":
        time.sleep(float(rest))
    if word == "hang":
        time.sleep(10_000)
    if word == "die":
        os.kill(os.getpid(), 9)
    if word == "abstain":
        return Verdict.abstain("no answer", fault="candidate")
    if word == "raise":
        raise ValueError("broken on purpose")
    if word == "poison":  # ends the actor above: its fork servers, and so this worker, end with it
        os.kill(int(rest), 9)
        time.sleep(10)
    return Verdict.score(len(rollout.text) % 2)
"""
TEXTS = ["a", "bb", "abstain", "raise", "die", "hang", "ccc", "sleep 0.2", "dddd", "a"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the source."""
    (tmp_path / "source.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


def begun(place: Path) -> list[str]:
    file = place / "begun.txt"
    return file.read_text(encoding="utf-8").split() if file.is_file() else []


@asynccontextmanager
async def opened(
    place: Path, *entries: RewardEntry, workers: int = 2, ray: RayConfig | None = None, **judging: Any
) -> AsyncGenerator[Panel]:
    registry = Registry.load()
    context = make_context(registry, base_dir=place, seed=0)
    settings = JudgingConfig(workers=workers, ray=ray, stop_if_failed_above=1.0, **judging)
    chosen = entries or (SourceEntry.model_validate({"use": "python", "path": "source.py:judge"}),)
    async with (
        cluster_workers(settings, context),
        open_panel(chosen, registry=registry, judging=settings, context=context) as panel,
    ):
        yield panel


def on_ray(**settings: Any) -> RayConfig:
    return RayConfig.model_validate({"address": "local", "cpus_per_worker": 0, "workers_per_actor": 1} | settings)


async def until(holds: Callable[[], bool], *, within_s: float = 240.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what other processes do is no event here
            await asyncio.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def judged(panel: Panel, texts: list[str], *, prefix: str = "r") -> list[Reward]:
    async def one(place: int, text: str) -> Reward:
        task = Task(id=f"t{place}", messages=(Message(role="user", content="?"),), reference="2")
        turn = (Turn(text=text),)
        return await panel.judge(task, Rollout(id=f"{prefix}{place}", task_id=task.id, group_id="g", turns=turn))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(place, text)) for place, text in enumerate(texts)]
    return [task.result() for task in tasks]


def pool_of(panel: Panel) -> RayPool:
    workers = panel.workers
    assert isinstance(workers, WorkerPool)
    assert isinstance(workers.pool, RayPool)
    return workers.pool


def actors(panel: Panel) -> list[int]:
    """Process ids of the actors."""
    found = [re.search(r"process (\d+)", place) for place in pool_of(panel).places]
    return [int(each.group(1)) for each in found if each]


def test_verdicts_are_those_of_the_pool_of_one_machine(cluster: str, place: Path) -> None:
    entries: tuple[RewardEntry, ...] = (
        SourceEntry.model_validate({"use": "python", "path": "source.py:judge"}),
        SourceEntry.model_validate({"use": "math", "weight": 0.5}),
    )

    async def run(ray: RayConfig | None) -> list[Reward]:
        async with opened(place, *entries, ray=ray, timeout_s=5.0) as panel:
            return await judged(panel, [*TEXTS, r"\boxed{2}", r"$\int_0^2 x\,dx$ is \boxed{\sqrt{4}}"])

    here, there = asyncio.run(run(None)), asyncio.run(run(on_ray()))
    plain = [[(part.source, part.status, part.value) for part in reward.parts] for reward in here]
    assert [[(part.source, part.status, part.value) for part in reward.parts] for reward in there] == plain
    assert [reward.value for reward in there] == [reward.value for reward in here]
    assert {part.status for reward in there for part in reward.parts} == {"scored", "abstained", "failed"}


def test_actors_of_a_cluster_that_was_started_here_run_at_this_process_s_priority(cluster: str, place: Path) -> None:
    async def run() -> list[int]:
        async with opened(place, ray=on_ray()) as panel:
            await judged(panel, ["a"])
            return [os.getpriority(os.PRIO_PROCESS, pid) for pid in actors(panel)]

    found = asyncio.run(run())
    assert set(found) == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_a_killed_actor_is_replaced_and_what_it_held_is_judged_once_more(
    cluster: str, place: Path, caplog: pytest.LogCaptureFixture, processes_left: Callable[[], set[int]]
) -> None:
    async def run() -> list[Reward]:
        async with opened(place, ray=on_ray(), workers=2, cache=False) as panel:
            await judged(panel, ["a", "bb"], prefix="w")
            first = actors(panel)
            judging = asyncio.create_task(judged(panel, ["sleep 2.0"] * 6))
            await until(lambda: len(begun(place)) >= 3)
            os.kill(first[0], signal.SIGKILL)
            rewards = await judging
            metrics = panel.metrics()
            assert metrics["workers/lost_actors"] == 1
            assert 1 <= metrics["workers/repeated"] <= 2
            await until(lambda: len(set(actors(panel)) - set(first)) == 1)
            return rewards

    with caplog.at_level(logging.WARNING, logger="assay.judging"):
        rewards = asyncio.run(run())
    assert [reward.value for reward in rewards] == [1.0] * 6
    assert "was lost" in caplog.text
    counts = [begun(place).count(f"r{number}") for number in range(6)]
    assert max(counts) <= 2
    assert sum(counts) <= 8


def test_a_candidate_whose_actor_is_lost_twice_fails_with_the_cause(cluster: str, place: Path) -> None:
    async def run() -> Reward:
        async with opened(place, ray=on_ray(), workers=1, timeout_s=600.0) as panel:
            judging = asyncio.create_task(judged(panel, ["sleep 600"]))
            for attempt in (1, 2):
                await until(lambda attempt=attempt: len(begun(place)) >= attempt)
                os.kill(actors(panel)[0], signal.SIGKILL)
            (reward,) = await judging
            (after,) = await judged(panel, ["bb"], prefix="n")
            assert after.value == 0.0
            return reward

    reward = asyncio.run(run())
    (part,) = reward.parts
    assert (part.status, reward.value) == ("failed", None)
    assert begun(place).count("r0") == 2


def test_an_actor_that_hangs_is_ended_and_replaced(cluster: str, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[Reward]:
        async with opened(place, ray=on_ray(lost_after_s=5.0), workers=2) as panel:
            await judged(panel, ["a", "bb"], prefix="w")
            hung = actors(panel)[0]
            os.kill(hung, signal.SIGSTOP)
            rewards = await judged(panel, ["a", "bb", "ccc", "dddd"])
            await until(lambda: not running(hung))
            return rewards

    with caplog.at_level(logging.WARNING, logger="assay.judging"):
        rewards = asyncio.run(run())
    assert [reward.value for reward in rewards] == [1.0, 0.0, 1.0, 0.0]
    assert "no sign of life for 5 s" in caplog.text


def test_a_cancelled_candidate_frees_its_worker(cluster: str, place: Path) -> None:
    async def run() -> None:
        async with opened(place, ray=on_ray(), workers=1, timeout_s=600.0) as panel:
            hanging = asyncio.create_task(judged(panel, ["hang"]))
            await until(lambda: bool(begun(place)))
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            async with asyncio.timeout(240):
                (reward,) = await judged(panel, ["bb"], prefix="n")
            assert reward.value == 0.0

    asyncio.run(run())


def test_what_cannot_be_placed_or_built_is_one_sentence(cluster: str, place: Path) -> None:
    async def run(entry: dict[str, Any], **settings: Any) -> None:
        chosen = SourceEntry.model_validate(entry)
        start_s = 3.0 if "cpus_per_worker" in settings else 120.0
        async with opened(place, chosen, ray=on_ray(**settings), workers=1, start_timeout_s=start_s):
            pytest.fail("it was opened")

    with pytest.raises(ConfigError, match=r"1 of 1 actors with 1000 CPUs each did not start within 3 s"):
        asyncio.run(run({"use": "python", "path": "source.py:judge"}, cpus_per_worker=1000))
    with pytest.raises(ConfigError, match=r"rewards\[0\]: reward source 'python' cannot be built: .*absent"):
        asyncio.run(run({"use": "python", "path": "absent.py:judge"}))


class Call:
    """A call to an actor that is under way, as Ray's references are."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def remote(self, *_: Any) -> "Call":
        return self

    def future(self) -> Future[Any]:
        return self.answer


class SmallCluster:
    """Starts one actor, and has no room for another."""

    def __init__(self) -> None:
        self.asked = 0
        self.calls = Call()
        """Everything that its one actor is asked."""

    def actor(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        where = Call()
        if self.asked == 1:
            where.answer.set_result("the only node")
        return SimpleNamespace(where=where, put=self.calls, take=self.calls)

    def kill(self, actor: Any) -> None:
        pass

    def room(self) -> str:
        return "0 CPUs on 1 nodes, 0 of them free"


def test_a_cluster_that_has_no_room_for_another_actor_ends_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the package ray is not installed")
    cluster = SmallCluster()

    def connected(address: str, *, where: str) -> SmallCluster:
        return cluster

    monkeypatch.setattr("assay.remote.ray.pool.connect", connected)
    pool = RayPool(2, on_ray(workers_per_actor=2), start_timeout_s=0.5)
    try:
        answers = [pool.submit(ProgramKey("t", "{}"), b"", ResourceLimits()) for _ in range(2)]
        time.sleep(3.0)  # the start is long over
        cluster.calls.answer.set_exception(OSError("the node is gone"))
        found = [answer.result(timeout=60) for answer in answers]
    finally:
        pool.close()
    assert cluster.asked == 2
    assert [(answer.status, answer.infra) for answer in found] == [("killed", True)] * 2
    assert all("1 of 1 actors with 0 CPUs each did not start within 0.5 s" in answer.detail for answer in found)


def test_a_command_that_judges_on_this_machine_alone_says_so(place: Path) -> None:
    registry = Registry.load()
    chosen = SourceEntry.model_validate({"use": "python", "path": "source.py:judge"})
    with pytest.raises(ConfigError, match=r"judging\.ray: only `assay train` and `assay score` judge on a cluster"):
        open_panel([chosen], registry=registry, judging=JudgingConfig(ray=on_ray()))


def test_no_actor_and_no_worker_is_left_behind(
    cluster: str, place: Path, processes_left: Callable[..., set[int]]
) -> None:
    async def run() -> list[int]:
        async with opened(place, ray=on_ray(), workers=2) as panel:
            await judged(panel, ["a", "bb"])
            return actors(panel)

    pids = asyncio.run(run())
    alive, forks = pids, pids
    for _ in range(600):
        alive = [pid for pid in pids if _command(pid)]
        forks = [pid for pid in processes_left(wait_s=0.0) if "forkserver" in _command(pid)]
        if not alive and not forks:
            break
        asyncio.run(asyncio.sleep(0.1))
    assert (alive, forks) == ([], [])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
