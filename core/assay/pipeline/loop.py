"""Runs the five stages as five coroutines; each arrow is a bounded queue, and a full queue is the backpressure."""

import asyncio
import contextvars
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar, runtime_checkable

from assay.contracts import Reward, Rollout, RolloutRequest, Sampling, ScoredGroup, Task, WeightsRef
from assay.errors import EngineError, TrainingError
from assay.pipeline.admission import Admission
from assay.pipeline.groups import Assembler, Batch
from assay.pipeline.overlap import Overlap
from assay.pipeline.tickets import Ticket, Tickets
from assay.pipeline.watchdog import Watchdog
from assay.protocols import Decision, RolloutEngine

T = TypeVar("T")


class Judge(Protocol):
    """What judges rollouts: a panel."""

    @property
    def judges_groups(self) -> bool:
        """Whether any source must see the whole group at once."""
        ...

    async def judge(self, task: Task, rollout: Rollout) -> Reward:
        """The reward of one rollout."""
        ...

    async def judge_group(self, task: Task, rollouts: Sequence[Rollout]) -> Sequence[Reward]:
        """The rewards of a whole group, in order."""
        ...


@runtime_checkable
class LearningJudge(Judge, Protocol):
    """A judge whose sources may learn inside the loop."""

    async def learn(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update of each source that learns, on the groups that are about to be trained on; metrics."""
        ...


class Learner(Protocol):
    """What learns from groups: a trainer and its optimizer."""

    def select(self, group: ScoredGroup) -> Decision:
        """What becomes of one group."""
        ...

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update; blocks, and runs in a thread of its own."""
        ...

    def weights(self, version: int) -> WeightsRef:
        """Where the current weights are."""
        ...


class Journal(Protocol):
    """What remembers: the run's store."""

    def stored(self, group_id: str) -> Mapping[str, tuple[Rollout, Reward | None]]:
        """Rollouts of a group that are durable already, with their rewards where they have one."""
        ...

    def sampled(self, step: int, task: Task, rollout: Rollout) -> None:
        """A rollout arrived."""
        ...

    def rewarded(self, step: int, rollout: Rollout, reward: Reward) -> None:
        """A rollout was judged."""
        ...

    def trained(self, report: "StepReport") -> None:
        """An update was made of this batch."""
        ...


@dataclass(frozen=True)
class LoopSettings:
    """The numbers of one run."""

    steps: int
    groups_per_step: int
    group_size: int
    sampling: Sampling
    seed: int = 0
    max_staleness: int = 0
    min_scored: int = 2
    max_refill: float = 3.0
    judge_concurrency: int = 256
    stuck_after_s: float = 600.0
    minutes: float | None = None
    replays: bool = False
    """Whether rollouts come from another run: their versions are that run's, and are not held against this one's."""


@dataclass(frozen=True)
class StepReport:
    """What one step was made of and what it did."""

    step: int
    """Number of this step, from 1."""
    batch: Batch
    metrics: Mapping[str, float]


@dataclass
class LoopHooks:
    """What the run wants to be told."""

    after_step: Callable[[StepReport], None] = lambda report: None
    """After an update, in the order of steps; writes metrics and checkpoints."""
    after_publish: Callable[[int], Awaitable[None] | None] = lambda step: None
    """After new weights are in the engine; may return a coroutine (an evaluation) that is awaited."""
    before_update: Callable[[int, Sequence[ScoredGroup]], Awaitable[Sequence[ScoredGroup]]] | None = None
    """Given the step and its groups before they are learned from; what it gives back is learned from instead."""
    waiting: Callable[[str], None] = lambda what: None
    """After a while in which nothing moved: what everything waits for."""


class Loop:
    """One run of the pipeline; every ticket is trained on at most once, in order where staleness is 0."""

    def __init__(
        self,
        settings: LoopSettings,
        *,
        tickets: Tickets,
        engine: RolloutEngine,
        judge: Judge,
        learner: Learner,
        journal: Journal,
        hooks: LoopHooks | None = None,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wire the parts; `first_step` is the number of steps that a resumed run has done already."""
        self.settings = settings
        self.tickets = tickets
        self.engine = engine
        self.judge = judge
        self.learner = learner
        self.journal = journal
        self.hooks = hooks or LoopHooks()
        self.clock = clock
        self.step = first_step
        self.stop_requested = False
        """Set to end the run after the step in progress."""
        per_step = settings.groups_per_step
        self.admission = Admission(per_step, settings.max_staleness, first_step, first_step * per_step)
        self.assembler = Assembler(
            learner.select, groups_per_step=per_step, min_scored=settings.min_scored, max_refill=settings.max_refill
        )
        self.overlap = Overlap(now=clock())
        self.watchdog = Watchdog(settings.stuck_after_s, progressed_at=clock())
        self.counts: Counter[str] = Counter()
        self._moved = asyncio.Condition()
        self._tasks: dict[str, Task] = {}
        bound = max(settings.judge_concurrency, per_step * settings.group_size)
        self._sampled: asyncio.Queue[Rollout] = asyncio.Queue(bound)
        self._judged: asyncio.Queue[tuple[Rollout, Reward]] = asyncio.Queue(bound)
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(1)
        self._updates: asyncio.Queue[tuple[int, WeightsRef]] = asyncio.Queue(1)

    async def run(self) -> Literal["done", "stopped"]:
        """Run until all steps are done, or until the step in progress is done after a stop was requested."""
        if self.step >= self.settings.steps:
            return "done"
        async with asyncio.TaskGroup() as stages:
            helpers = [
                stages.create_task(stage(), name=stage.__name__)
                for stage in (self._sample, self._judge_all, self._assemble, self._publish, self._watch)
            ]
            await stages.create_task(self._update(), name="_update")
            await self._updates.join()
            for helper in helpers:
                helper.cancel()
        return "done" if self.step >= self.settings.steps else "stopped"

    # ---- sample ------------------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        async with asyncio.TaskGroup() as waves:
            while True:
                async with self._moved:
                    await self._moved.wait_for(lambda: self._room() > 0)
                tickets = self.tickets.take(self._room())
                self.admission.start(len(tickets))
                waves.create_task(self._wave(tickets))

    def _room(self) -> int:
        """Groups that may start: what admission allows, but nothing that no step would use."""
        useful = self.settings.steps * self.settings.groups_per_step - self.admission.started
        return min(self.admission.room, max(0, useful))

    async def _wave(self, tickets: Sequence[Ticket]) -> None:
        """Draw the groups of these tickets; what a killed run left behind is taken instead of drawn again."""
        requests: list[RolloutRequest] = []
        for ticket in tickets:
            self._tasks[ticket.group_id] = ticket.task
            self.assembler.open(ticket, self.settings.group_size)
            wanted = ticket.requests(self.settings.group_size, self.settings.sampling, seed=self.settings.seed)
            stored = self.journal.stored(ticket.group_id)
            for request in wanted:
                rollout, reward = stored.get(request.id, (None, None))
                if rollout is None:
                    requests.append(request)
                elif reward is None:
                    await self._sampled.put(rollout)
                else:
                    await self._judged.put((rollout, reward))
        if not requests:
            return
        missing = {request.id for request in requests}
        with self._working("sample", f"the engine, {len(requests)} rollouts requested"):
            async for rollout in self.engine.generate(requests):
                if rollout.id not in missing:
                    raise EngineError(
                        f"the engine returned rollout {rollout.id!r}, which was not asked for or came twice"
                    )
                missing.remove(rollout.id)
                self.journal.sampled(self.step + 1, self._tasks[rollout.group_id], rollout)
                self.watchdog.progress(self.clock())
                await self._sampled.put(rollout)
        if missing:
            raise EngineError(
                f"the engine ended without {len(missing)} of {len(requests)} rollouts; first {min(missing)!r}"
            )

    # ---- judge -------------------------------------------------------------------------------------------------------

    async def _judge_all(self) -> None:
        slots = asyncio.Semaphore(self.settings.judge_concurrency)
        groups: dict[str, list[Rollout]] = {}
        async with asyncio.TaskGroup() as running:
            while True:
                rollout = await self._sampled.get()
                ready = [rollout]
                if self.judge.judges_groups:
                    members = groups.setdefault(rollout.group_id, [])
                    members.append(rollout)
                    if len(members) < self.settings.group_size:
                        continue
                    ready = sorted(groups.pop(rollout.group_id), key=lambda member: member.id)
                await slots.acquire()
                task = running.create_task(self._judge_some(ready))
                task.add_done_callback(lambda _: slots.release())

    async def _judge_some(self, rollouts: Sequence[Rollout]) -> None:
        task = self._tasks[rollouts[0].group_id]
        with self._working("judge", f"the verdict on rollout {rollouts[0].id!r}"):
            if self.judge.judges_groups:
                rewards = list(await self.judge.judge_group(task, rollouts))
            else:
                rewards = [await self.judge.judge(task, rollout) for rollout in rollouts]
        for rollout, reward in zip(rollouts, rewards, strict=True):
            self.journal.rewarded(self.step + 1, rollout, reward)
            self.watchdog.progress(self.clock())
            await self._judged.put((rollout, reward))

    # ---- assemble ----------------------------------------------------------------------------------------------------

    async def _assemble(self) -> None:
        while True:
            rollout, reward = await self._judged.get()
            decision = self.assembler.add(rollout, reward)
            if decision is None:
                continue
            self._tasks.pop(rollout.group_id, None)
            if decision.action == "refill":
                self.admission.replace()
                async with self._moved:
                    self._moved.notify_all()
            if (batch := self.assembler.close()) is not None:
                await self._batches.put(batch)

    # ---- update ------------------------------------------------------------------------------------------------------

    async def _update(self) -> None:
        started = self.clock()
        while self.step < self.settings.steps and not self.stop_requested:
            batch = await self._batches.get()
            stale = {ticket.number for ticket, group in batch.groups if not self._fresh(group)}
            batch = batch.without(stale)
            groups = [group for _, group in batch.groups]
            metrics: Mapping[str, float] = {}
            if groups and self.hooks.before_update is not None:
                with self._working("sample", f"texts beside the groups of step {self.step + 1}"):
                    groups = list(await self.hooks.before_update(self.step + 1, groups))
            with self._working("train", f"the update of step {self.step + 1}"):
                if groups:
                    # Sources that learn do so on these groups; the optimizer has their scores of before.
                    learned: Mapping[str, float] = {}
                    if isinstance(self.judge, LearningJudge):
                        learned = await self.judge.learn(groups)
                    metrics = {**await _in_own_thread(partial(self.learner.step, groups)), **learned}
            self.watchdog.progress(self.clock())
            self.step += 1
            phases = self.overlap.take(self.clock())
            self.admission.measured(phases)
            asynchrony = {"stale_groups": float(len(stale)), "ahead_steps": float(self.admission.ahead)}
            report = StepReport(self.step, batch, {**metrics, **phases, **asynchrony})
            self.journal.trained(report)
            self.hooks.after_step(report)
            await self._updates.put((self.step, await self._written(self.step)))
            if self.settings.minutes is not None and self.clock() - started > self.settings.minutes * 60:
                self.stop_requested = True

    async def _written(self, step: int) -> WeightsRef:
        """The weights of this step, written down before the next update changes them and before the engine pauses.

        An engine that reads them from files is never more than one version behind what lies there.
        """
        await self._updates.join()
        with self._working("publish", f"writing the weights of step {step}"):
            return await asyncio.to_thread(self.learner.weights, step)

    def _fresh(self, group: ScoredGroup) -> bool:
        if self.settings.replays:
            return True
        versions = [span.version for rollout in group.rollouts for span in rollout.weight_versions]
        return self.admission.fresh(min(versions, default=self.step), learning=self.step)

    # ---- publish -----------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            step, weights = await self._updates.get()
            with self._working("publish", f"pushing the weights of step {step}"):
                await self.engine.pause("keep")
                await self.engine.push_weights(weights)
                await self.engine.resume()
            if (work := self.hooks.after_publish(step)) is not None:
                with self._watched("publish", f"the evaluation after step {step}"):
                    await work
            self.admission.publish()
            self.watchdog.progress(self.clock())
            self._updates.task_done()
            async with self._moved:
                self._moved.notify_all()

    @contextmanager
    def _working(self, phase: str, doing: str) -> Generator[None]:
        """Inside, one more item is in the phase, and the watchdog knows of it."""
        self.overlap.enter(phase, self.clock())
        try:
            with self._watched(phase, doing):
                yield
        finally:
            self.overlap.leave(phase, self.clock())

    @contextmanager
    def _watched(self, phase: str, doing: str) -> Generator[None]:
        number = self.watchdog.begin(phase, doing, self.clock())
        try:
            yield
        finally:
            self.watchdog.end(phase, number)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.settings.stuck_after_s / 4))
            now = self.clock()
            if (complaint := self.watchdog.complaint(now)) is not None:
                raise TrainingError(complaint)
            if (what := self.watchdog.waiting(now)) is not None:
                self.hooks.waiting(what)


async def _in_own_thread(act: Callable[[], T]) -> T:
    """What `act` returns, called in a thread that ends with it.

    A thread that has computed with torch keeps OpenMP's helpers for as long as it lives, and where there are more of
    them than cores, all of them go to sleep between two products. A step of decoding beside the idle helpers of an
    update took 122 ms instead of 99 (SmolLM2-135M, 32 rows, two cores).
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="assay-update")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(contextvars.copy_context().run, act))
    finally:
        pool.shutdown(wait=False)
