"""The worker pool itself: any thread and loop, start-up failures, lost servers, plugins that spoil their process."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import ResourceLimits
from assay.errors import ConfigError, JudgingError
from assay.judging import WorkerPool, open_panel
from assay.judging.tracked import Answer, ProgramKey, settle
from assay.process import children, descendants
from assay.testing.fakes import make_group, make_task, registry_of

ENTRIES = TypeAdapter(tuple[RewardEntry, ...])
LIMITS = ResourceLimits(wall_s=120.0)
TARGETS = '''
"""Functions that run in workers."""
import os, time

def echo(payload):
    return payload

def pid(payload):
    return os.getpid()

def slow(payload):
    time.sleep(payload)
    return os.getpid()

def end_server(payload):
    """Kill the fork server once; the next try finds the mark and answers."""
    if not os.path.exists(payload):
        open(payload, "w").close()
        os.kill(os.getppid(), 9)
        time.sleep(60)
    return "second try"
'''
SOURCES = '''
"""Sources that are awkward to start."""
import threading, time
import os
from assay import Component, Limits, Options, Verdict, hookimpl

class Plain:
    limits = Limits()
    async def judge(self, batch):
        return [Verdict.score(1.0, evidence=str(os.getpid())) for _ in batch]
    async def aclose(self): pass

def build_with_thread(options, context):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    return Plain()

def build_broken(options, context):
    raise RuntimeError("no licence file")

def build_exit(options, context):
    os._exit(9)

def build_hang(options, context):
    time.sleep(1000)

def build_patching(options, context):
    import math
    math.sqrt = lambda x: -1.0
    return Plain()

class Root(Plain):
    async def judge(self, batch):
        import math
        return [Verdict.score(float(math.sqrt(1.0) == 1.0)) for _ in batch]

@hookimpl
def assay_reward_sources():
    """Offer them."""
    make = lambda name, build: Component(name, Options, build, isolation="process")
    return [make("thread", build_with_thread), make("broken", build_broken), make("exit", build_exit),
            make("hang", build_hang), make("patching", build_patching), make("root", lambda o, c: Root())]
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with both modules."""
    (tmp_path / f"targets_{tmp_path.name}.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / f"sources_{tmp_path.name}.py").write_text(SOURCES, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.fixture
def pool(folder: Path, processes_left: Callable[[], set[int]]) -> Iterator[WorkerPool]:
    """A pool of two."""
    assert folder.is_dir()
    made = WorkerPool(2)
    yield made
    made.close()
    assert processes_left() == set()


def target(folder: Path, name: str) -> str:
    return f"targets_{folder.name}:{name}"


def values(folder: Path, use: str, **judging: object) -> list[float | None]:
    async def run() -> list[float | None]:
        async with open_panel(
            ENTRIES.validate_python([{"use": use}]),
            registry=registry_of(f"sources_{folder.name}"),
            judging=JudgingConfig.model_validate(judging),
        ) as panel:
            return [reward.value for reward in await panel.judge_group(make_task(), make_group(["a", "b"]))]

    return asyncio.run(run())


def test_json_goes_in_and_comes_out(pool: WorkerPool, folder: Path) -> None:
    payload: JsonValue = {"text": "é\u2028", "list": [1, 2.5, None, True], "deep": {"a": [{}]}}
    answer = pool.call_blocking(target(folder, "echo"), payload, limits=LIMITS)
    assert (answer.status, answer.value) == ("ok", payload)
    big = "x" * 3_000_000
    assert pool.call_blocking(target(folder, "echo"), big, limits=LIMITS).value == big


def test_calls_come_from_any_thread_and_any_loop(pool: WorkerPool, folder: Path) -> None:
    found: list[object] = []

    def work(number: int) -> None:
        async def ask() -> None:
            found.append((await pool.call(target(folder, "echo"), number, limits=LIMITS)).value)

        asyncio.run(ask())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == [str(number) for number in range(8)]


def test_at_most_as_many_run_at_once_as_the_pool_is_large(pool: WorkerPool, folder: Path) -> None:
    async def run() -> tuple[set[str], float]:
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pool.call(target(folder, "slow"), 0.3, limits=LIMITS)) for _ in range(6)]
        return {str(task.result().value) for task in tasks}, time.monotonic() - started

    workers, wall_s = asyncio.run(run())
    assert len(workers) == 2
    assert wall_s >= 0.9


def test_a_lost_fork_server_costs_no_verdict(pool: WorkerPool, folder: Path) -> None:
    mark = str(folder / "mark")
    before = children(os.getpid())
    assert pool.call_blocking(target(folder, "end_server"), mark, limits=LIMITS).value == "second try"
    first = pool.call_blocking(target(folder, "pid"), None, limits=LIMITS).value
    for server in set(children(os.getpid())).difference(before):
        os.kill(server, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (again := pool.call_blocking(target(folder, "pid"), None, limits=LIMITS)).value == first:
        assert time.monotonic() < deadline  # the old worker may still answer while the signal is on its way
    assert again.status == "ok"


def test_what_is_cancelled_while_its_program_loads_costs_nobody_else(pool: WorkerPool, folder: Path) -> None:
    for name in ("echo", "absent"):
        key = ProgramKey(target(folder, name), "")
        pool.pool.open(key).cancel()
        pool.pool.submit(key, b"1", LIMITS).cancel()
    assert pool.call_blocking(target(folder, "echo"), 1, limits=LIMITS).value == 1
    with pytest.raises(JudgingError, match="absent"):
        pool.pool.open(ProgramKey(target(folder, "absent"), "")).result()
    pool.pool.submit(ProgramKey(target(folder, "absent"), ""), b"1", LIMITS).cancel()
    assert pool.call_blocking(target(folder, "echo"), 2, limits=LIMITS).value == 2
    pool.pool.open(ProgramKey(target(folder, "slow"), "")).cancel()
    pool.close()  # the fixture closes it again: nothing of it is left


def test_a_call_is_answered_once_and_a_cancelled_one_never() -> None:
    future: Future[Answer] = Future()
    settle(future, Answer("ok", b"1"))
    settle(future, Answer("killed", detail="the worker pool was closed"))
    assert future.result().value == 1
    cancelled: Future[Answer] = Future()
    cancelled.cancel()
    settle(cancelled, Answer("ok", b"1"))
    settle(cancelled, JudgingError("the worker pool was closed"))
    assert cancelled.cancelled()


def test_a_missing_target_is_named(pool: WorkerPool, folder: Path) -> None:
    answer = pool.call_blocking(target(folder, "absent"), None, limits=LIMITS)
    assert answer.status == "killed"
    assert answer.infra
    assert "AttributeError" in answer.detail
    assert "absent" in answer.detail


def test_a_closed_pool_refuses_and_answers_what_was_running(
    folder: Path, processes_left: Callable[[], set[int]]
) -> None:
    before = len(descendants(os.getpid()))
    pool = WorkerPool(1)
    answers: list[str] = []
    thread = threading.Thread(
        target=lambda: answers.append(
            pool.call_blocking(target(folder, "slow"), 600, limits=ResourceLimits(wall_s=600)).detail
        )
    )
    thread.start()
    deadline = time.monotonic() + 60
    while len(descendants(os.getpid())) < before + 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    pool.close()
    thread.join()
    assert answers == ["the worker pool was closed"]
    assert processes_left() == set()
    with pytest.raises(JudgingError, match="the worker pool is closed"):
        pool.call_blocking(target(folder, "echo"), 1, limits=LIMITS)


def test_a_source_that_starts_a_thread_is_built_in_each_worker(folder: Path) -> None:
    assert values(folder, "thread") == [1.0, 1.0]


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        ("broken", "RuntimeError: no licence file"),
        ("exit", "loading it ended its process"),
        ("hang", "loading it took more than 10 s"),
    ],
)
def test_a_source_that_cannot_be_built_is_refused_before_anything_is_judged(
    folder: Path, use: str, cause: str, processes_left: Callable[[], set[int]]
) -> None:
    with pytest.raises(ConfigError, match=rf"rewards\[0\]: reward source '{use}' cannot be built: {cause}"):
        values(folder, use, start_timeout_s=10.0 if use == "hang" else 60.0)
    assert processes_left() == set()


def test_what_one_plugin_patches_no_other_sees(folder: Path) -> None:
    async def run() -> list[float | None]:
        entries = ENTRIES.validate_python([{"use": "patching"}, {"use": "root"}])
        async with open_panel(entries, registry=registry_of(f"sources_{folder.name}")) as panel:
            return [reward.value for reward in await panel.judge_group(make_task(), make_group(["a", "b"]))]

    assert asyncio.run(run()) == [2.0, 2.0]
