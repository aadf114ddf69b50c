"""A reward pool over two nodes, each with a raylet of its own on this machine, one of which dies while it judges."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.config.rewards import JudgingConfig, SourceEntry
from assay.contracts import Message, Reward, Rollout, Task, Turn
from assay.errors import ConfigError
from assay.judging import Panel, WorkerPool, open_panel
from assay.preflight import make_context
from assay.registry import Registry
from assay.remote.placing import cluster_workers
from assay.remote.ray.cluster import connect
from assay.remote.ray.pool import RayPool

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SOURCE = """
import os, pathlib, time
from assay import Verdict

def judge(task, rollout):
    word, _, rest = rollout.text.partition(" ")
    with open(pathlib.Path(__file__).parent / "begun.txt", "a") as file:
        file.write(f"{rollout.id} {os.getpid()}\\n")
    if word == "sleep":
        time.sleep(float(rest))
    if word == "die":
        os.kill(os.getpid(), 9)
    if word == "abstain":
        return Verdict.abstain("no answer", fault="candidate")
    return Verdict.score(len(rollout.text) % 2)
"""
TEXTS = ["a", "bb", "abstain", "die", "ccc", "sleep 0.2"]


class Nodes:
    """Two raylets under one head."""

    def __init__(self, address: str, raylets: list[int]) -> None:
        self.address = address
        self.raylets = raylets
        """Process ids; the first is the head's, to which this process is connected."""

    def of(self, actor: int) -> int:
        """Which node the process of an actor belongs to."""
        above = {process.pid for process in psutil.Process(actor).parents()}
        (raylet,) = above & set(self.raylets)
        return self.raylets.index(raylet)

    def living(self, actors: list[int]) -> set[int]:
        """The nodes of those actors whose processes run."""
        found: set[int] = set()
        for actor in actors:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(self.of(actor))
        return found

    def kill(self, node: int) -> None:
        """End a node's raylet and every process below it, as when its machine is switched off."""
        raylet = psutil.Process(self.raylets[node])
        for process in [raylet, *raylet.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Generator[Nodes]:
    """A head and one further node, each of which has room for two workers."""
    ray = pytest.importorskip("ray", reason="the package ray is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    about: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**about, "include_dashboard": False})
    try:
        cluster.add_node(**about)
        raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
        yield Nodes(str(cluster.address), raylets)
    finally:
        ray.shutdown()
        cluster.shutdown()


async def judged(panel: Panel, texts: list[str], *, prefix: str = "r") -> list[Reward]:
    async def one(place: int, text: str) -> Reward:
        task = Task(id=f"t{place}", messages=(Message(role="user", content="?"),), reference="2")
        rollout = Rollout(id=f"{prefix}{place}", task_id=task.id, group_id="g", turns=(Turn(text=text),))
        return await panel.judge(task, rollout)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(place, text)) for place, text in enumerate(texts)]
    return [task.result() for task in tasks]


def told(rewards: list[Reward]) -> list[list[tuple[str, str, float | None]]]:
    return [[(part.source, part.status, part.value) for part in reward.parts] for reward in rewards]


def actors(panel: Panel) -> list[int]:
    """Process ids of the actors that run."""
    workers = panel.workers
    assert isinstance(workers, WorkerPool)
    assert isinstance(workers.pool, RayPool)
    found = [re.search(r"process (\d+)", place) for place in workers.pool.places]
    return [int(each.group(1)) for each in found if each]


async def until(holds: Callable[[], bool], *, within_s: float = 240.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what other processes do is no event here
            await asyncio.sleep(0.02)


def test_a_pool_on_two_nodes_loses_one_of_them_and_no_verdict(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "source.py").write_text(SOURCE, encoding="utf-8")
    begun = tmp_path / "begun.txt"
    registry = Registry.load()
    entry = SourceEntry.model_validate({"use": "python", "path": "source.py:judge"})

    async def run(work: Callable[[Panel], Any], **settings: Any) -> Any:
        context = make_context(registry, base_dir=tmp_path, seed=0)
        judging = JudgingConfig(stop_if_failed_above=1.0, cache=False, start_timeout_s=120, **settings)
        async with (
            cluster_workers(judging, context),
            open_panel([entry], registry=registry, judging=judging, context=context) as panel,
        ):
            return await work(panel)

    async def here(panel: Panel) -> list[Reward]:
        return await judged(panel, TEXTS)

    async def there(panel: Panel) -> tuple[list[Reward], list[Reward], list[Reward]]:
        same = await judged(panel, TEXTS)
        await until(lambda: len(actors(panel)) == 4)
        first = actors(panel)
        assert sorted(nodes.of(actor) for actor in first) == [0, 0, 1, 1], "actors are spread over the nodes"
        lost = [actor for actor in first if nodes.of(actor) == 1]
        count = len(begun.read_text("utf-8").splitlines())
        judging = asyncio.create_task(judged(panel, ["sleep 2.0"] * 12, prefix="s"))
        await until(lambda: len(begun.read_text("utf-8").splitlines()) >= count + 4)
        nodes.kill(1)
        rewards = await judging
        after = await judged(panel, TEXTS, prefix="n")
        # A replacement may be placed on the dead node as well, until the head knows; it may be lost at this moment.
        await until(lambda: panel.metrics()["workers/lost_actors"] == caplog.text.count("was lost ("))
        metrics = panel.metrics()
        assert metrics["workers/lost_actors"] >= 2
        assert 2 <= metrics["workers/repeated"] <= 4  # each held one, and at most one ahead
        assert not set(lost) & set(actors(panel))
        assert nodes.living(actors(panel)) == {0}
        return same, rewards, after

    plain = asyncio.run(run(here, workers=2))
    # One line of a config: judging = { workers = 4, ray = { address = "...", workers_per_actor = 1 } }
    placed = {"address": nodes.address, "workers_per_actor": 1, "cpus_per_worker": 0.5}
    with caplog.at_level(logging.WARNING, logger="assay.judging"):
        same, rewards, after = asyncio.run(run(there, workers=4, ray=placed))
    assert told(same) == told(after) == told(plain)
    assert [reward.value for reward in rewards] == [1.0] * 12, "sleep 2.0 has nine characters"
    times = [line.split()[0] for line in begun.read_text("utf-8").splitlines() if line.startswith("s")]
    counts = [times.count(f"s{number}") for number in range(12)]
    assert min(counts) == 1
    assert max(counts) <= 2
    assert 12 < sum(counts) <= 12 + 2, "what ran on the lost node ran once more, and nothing else did"


def test_an_address_without_a_cluster_is_refused_at_once() -> None:
    pytest.importorskip("ray", reason="the package ray is not installed")
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"judging\.ray: no Ray cluster at '127\.0\.0\.1:1': ConnectionRefusedError"):
        connect("127.0.0.1:1", where="judging.ray")
    for address in ("here", "127.0.0.1:port", ":1"):
        with pytest.raises(ConfigError, match="address is 'auto', 'local' or HOST:PORT"):
            connect(address, where="judging.ray")
    with pytest.raises(ConfigError, match="no Ray cluster"):
        connect("127.0.0.1:99999", where="judging.ray")
    assert time.monotonic() - began < 60, "Ray itself tries for minutes"
