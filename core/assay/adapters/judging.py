"""Judging for callers that own neither an event loop nor a panel: one thread with one loop and one open panel."""

import asyncio
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.validation import validate
from assay.contracts import Candidate, Judgement, Reward, Rollout, Task
from assay.errors import ConfigError, JudgingError
from assay.judging import Panel, WorkerPool, open_panel
from assay.preflight import check_rewards, make_context
from assay.registry import Registry
from assay.scoring import reward_entries
from assay.together import together

CHECKED_TASKS = 16
"""Tasks of the first call whose golds are looked at before anything is judged."""


class Judged(NamedTuple):
    """One reward and the judgements that it was made of."""

    reward: Reward
    judgements: tuple[Judgement, ...]


class _Thread:
    """The thread, its loop, and the panel that is open in it."""

    def __init__(self, entries: Sequence[RewardEntry], judging: JudgingConfig, base_dir: Path, where: str) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.entries, self.judging, self.base_dir, self.where = entries, judging, base_dir, where
        self.judgements: dict[str, list[Judgement]] = {}
        self._pool = WorkerPool(judging.workers, start_timeout_s=judging.start_timeout_s)
        self._stop: asyncio.Event = asyncio.Event()
        self._opened: Future[Panel] = Future()
        self._checked = False
        self._checking = asyncio.Lock()
        self._thread = threading.Thread(target=self._run, name="assay-judging", daemon=True)
        self._thread.start()
        self.panel = self._opened.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        finally:
            # Not the panel's own pool: that is closed in an executor, and at exit there is none any more.
            self._pool.close()
            self.loop.close()

    async def _serve(self) -> None:
        """Open the panel, tell the waiting constructor, and keep it open until asked to stop."""

        def observe(candidate: Candidate, judgement: Judgement) -> None:
            self.judgements.setdefault(candidate.rollout.id, []).append(judgement)

        try:
            registry = Registry.load()
            context = make_context(registry, base_dir=self.base_dir, seed=0)
            context.workers = self._pool
            panel = open_panel(self.entries, registry=registry, judging=self.judging, context=context, observe=observe)
            async with panel:
                self._opened.set_result(panel)
                await self._stop.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)  # the constructor, which waits for the panel, raises it

    async def judge(self, groups: Sequence[tuple[Task, Sequence[Rollout]]]) -> list[Judged]:
        """The rewards of all rollouts, group by group; raises `ConfigError` and `JudgingError`."""
        await self._check([task for task, _ in groups])
        identities = [rollout.id for _, rollouts in groups for rollout in rollouts]
        try:
            rewards = await together([self._group(task, rollouts) for task, rollouts in groups])
        finally:
            found = {name: tuple(self.judgements.pop(name, ())) for name in identities}
        flat = [reward for group in rewards for reward in group]
        return [Judged(reward, found[name]) for name, reward in zip(identities, flat, strict=True)]

    async def _group(self, task: Task, rollouts: Sequence[Rollout]) -> Sequence[Reward]:
        if self.panel.judges_groups or len(rollouts) > 1:
            return await self.panel.judge_group(task, rollouts)
        return [await self.panel.judge(task, rollouts[0])]

    async def _check(self, tasks: Sequence[Task]) -> None:
        """Once: where no task of the first call can be judged, the columns are wrong, and that is told at once."""
        async with self._checking:
            if self._checked:
                return
            first = list({task.id: task for task in tasks}.values())[:CHECKED_TASKS]
            complaints = [await self.panel.check_task(task) for task in first]
            if first and all(complaints):
                have = ", ".join(sorted(first[0].facts)) or "no further columns"
                raise ConfigError(
                    f"{self.where}: none of the first {len(first)} tasks can be judged; {complaints[0][0]}; beside the "
                    f"reference {str(first[0].reference)[:80]!r} a task has {have}. Name the column with reference="
                )
            self._checked = True

    def close(self) -> None:
        """Close the panel and end the thread; in a forked child there is neither."""
        if os.getpid() != self.pid or not self._thread.is_alive():
            return
        with contextlib.suppress(RuntimeError):  # the loop ended by itself meanwhile
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)


class Judge:
    """Judges from any thread, with or without a running loop; the thread starts with the first call.

    Survives a fork and pickling, after which it starts anew. Closed by `close`, with the object, or at exit.
    """

    def __init__(
        self,
        rewards: Sequence[str | Mapping[str, Any]],
        *,
        where: str,
        workers: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        """Check the entries; raises `ConfigError` in one sentence, which begins with `where`."""
        self.where = where
        self.entries = reward_entries(rewards, where=where)
        self._judging = validate(JudgingConfig, {"workers": workers, "timeout_s": timeout_s}, where=where)
        self._base_dir = Path.cwd()
        check_rewards(Registry.load(), self.entries, where=where)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._numbers = itertools.count()

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to judge the same."""
        return {name: self.__dict__[name] for name in ("where", "entries", "_judging", "_base_dir")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A judge of this process."""
        self.__dict__.update(state)
        self._start()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the sources; opens the panel."""
        return tuple(self._running().panel.sources)

    @property
    def judges_groups(self) -> bool:
        """Whether a source must see a whole group at once; opens the panel."""
        return self._running().panel.judges_groups

    def next_id(self) -> str:
        """A rollout id that was not used before."""
        return f"call-{next(self._numbers)}"

    def judge(self, groups: Sequence[tuple[Task, Sequence[Rollout]]]) -> list[Judged]:
        """Every rollout's reward, group by group, blocking the calling thread and no other.

        Raises `JudgingError` where a source fails too often to go on, and `ConfigError` where none of the first tasks
        can be judged.
        """
        future = self._submit(groups)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def ajudge(self, groups: Sequence[tuple[Task, Sequence[Rollout]]]) -> list[Judged]:
        """As `judge`, inside a running event loop, which goes on meanwhile."""
        # Opening the panel imports plugins, which would hold up the caller's loop.
        future = await asyncio.to_thread(self._submit, groups)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Close the panel and its workers; the next call opens them again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _submit(self, groups: Sequence[tuple[Task, Sequence[Rollout]]]) -> "Future[list[Judged]]":
        thread = self._running()
        if thread.panel.judges_groups and all(len(rollouts) == 1 for _, rollouts in groups):
            raise JudgingError(
                f"{self.where}: a source of {', '.join(thread.panel.sources)} judges whole groups, and the trainer "
                "handed over single answers; use sources that judge one answer at a time"
            )
        return asyncio.run_coroutine_threadsafe(thread.judge(groups), thread.loop)

    def _running(self) -> _Thread:
        if self._thread is not None and self._thread.pid != os.getpid():
            self._start()  # a forked child has the parent's object, but neither its thread nor its lock's holder
        with self._lock:
            if self._thread is None:
                self._thread = _Thread(self.entries, self._judging, self._base_dir, self.where)
                weakref.finalize(self, self._thread.close)
            return self._thread


def grouped(tasks: Sequence[Task], rollouts: Sequence[Rollout]) -> tuple[list[tuple[Task, list[Rollout]]], list[int]]:
    """Rollouts of equal tasks together, and where each grouped rollout stood in the input."""
    places: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        places.setdefault(task.id, []).append(index)
    groups = [(tasks[indices[0]], [rollouts[index] for index in indices]) for indices in places.values()]
    return groups, [index for indices in places.values() for index in indices]
