"""What runs inside one actor of a reward pool: assay's own pool of killable workers, fed and emptied by messages.

`put` hands items over and returns at once; `take` waits for answers and returns all that are there, or nothing after
one beat, which is the sign of life. Each item has one answer. Sandboxes are those of the actor's node: its workers
borrow them from the actor.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from assay.contracts import ResourceLimits
from assay.judging import WorkerPool, rebuild
from assay.judging.tracked import Answer, ProgramKey
from assay.preflight import make_context
from assay.registry import Registry
from assay.remote.ray.cluster import see_the_same_packages


class Item(NamedTuple):
    """One call on its way to an actor."""

    id: int
    target: str
    init: str
    payload: bytes
    limits: str
    """JSON of `ResourceLimits`."""


class Done(NamedTuple):
    """One answer on its way back; the fields are those of `Answer`."""

    id: int
    answer: dict[str, Any]


class JudgingActor:
    """A pool of `slots` killable workers behind messages."""

    def __init__(self, slots: int, start_timeout_s: float, path: Sequence[str]) -> None:
        """Nothing is started before the first item; `path` is where whoever asks looks for modules."""
        see_the_same_packages(path)
        self._workers = WorkerPool(slots, start_timeout_s=start_timeout_s)
        self._keys: dict[tuple[str, str], ProgramKey] = {}
        self._running: dict[int, Future[Answer]] = {}
        self._done: list[Done] = []
        self._arrived = asyncio.Event()

    async def where(self) -> str:
        """The node's address and this process's id."""
        return f"{socket.gethostname()}, process {os.getpid()}"

    async def open(self, target: str, init: str) -> dict[str, Any]:
        """The facts of a program once it is loaded; raises `JudgingError` with the cause where it cannot be."""
        return dict(await asyncio.wrap_future(self._workers.pool.open(self._key(target, init))))

    async def put(self, items: Sequence[tuple[Any, ...]], cancelled: Sequence[int]) -> None:
        """Start items, and end those that nobody waits for any more."""
        loop = asyncio.get_running_loop()
        for item in map(Item._make, items):
            limits = ResourceLimits.model_validate_json(item.limits)
            future = self._workers.pool.submit(self._key(item.target, item.init), item.payload, limits)
            self._running[item.id] = future
            future.add_done_callback(functools.partial(self._from_its_thread, loop, item.id))
        for name in cancelled:
            running = self._running.pop(name, None)
            if running is not None:
                running.cancel()

    async def take(self, beat_s: float) -> tuple[list[Done], dict[str, int]]:
        """Every answer since the last call, as soon as there is one, and how often what happened to the workers."""
        if not self._done:
            try:
                async with asyncio.timeout(beat_s):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        self._arrived.clear()
        done, self._done = self._done, []
        return done, dict(Counter(self._workers.pool.counts))

    def _from_its_thread(self, loop: asyncio.AbstractEventLoop, name: int, future: Future[Answer]) -> None:
        loop.call_soon_threadsafe(self._answered, name, future)

    def _answered(self, name: int, future: Future[Answer]) -> None:
        if self._running.pop(name, None) is not None and not future.cancelled():
            self._done.append(Done(name, dict(vars(future.result()))))
            self._arrived.set()

    def _key(self, target: str, init: str) -> ProgramKey:
        """The program's name here: a reward source borrows this process's sandboxes instead of the run's."""
        if (target, init) not in self._keys:
            key = ProgramKey(target, init)
            asked: dict[str, Any] = json.loads(init) if target == rebuild.TARGET else {}
            if asked.get("sandboxes") is not None:
                context = make_context(
                    Registry.load(), base_dir=Path(asked["base_dir"]), seed=asked["seed"], device=asked["device"]
                )
                assert context.open_sandbox is not None
                asked["sandboxes"] = self._workers.lend_sandboxes(context.open_sandbox)
                key = ProgramKey(target, json.dumps(asked, sort_keys=True))
            self._keys[target, init] = key
        return self._keys[target, init]
