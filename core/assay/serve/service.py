"""The rewards of a server, opened: judges the items of a request, in order, within the request's deadline."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Candidate, Judgement, Reward, Rollout, Task
from assay.errors import ConfigError, did_you_mean
from assay.judging import Panel, open_panel
from assay.registry import Registry
from assay.remote.answers import answer_of
from assay.serve.admission import Admission
from assay.serve.wire import AskedItem, RewardFacts, ScoredItem, SourceFacts

COUNTED = ("scored", "abstained", "failed", "cached", "kills")


class Outcome(NamedTuple):
    """What one item came to; without a reward where the deadline came first."""

    reward: Reward | None
    judgements: tuple[Judgement, ...]


class BusyError(Exception):
    """There is no room for a request's items now."""

    def __init__(self, detail: str, retry_after_s: int) -> None:
        """`retry_after_s` is when to come again."""
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class TooManyError(Exception):
    """A request has more items than there will ever be room for."""


class Service:
    """One open panel; `async with Service(...)` opens and closes it."""

    def __init__(
        self,
        rewards: Sequence[RewardEntry],
        *,
        registry: Registry,
        context: BuildContext,
        judging: JudgingConfig,
        queue: int = 1000,
        on_judged: Callable[[Judgement], None] = lambda _: None,
    ) -> None:
        """Check the entries; raises `ConfigError`. A sick source is masked, since a server stops for nobody."""
        steady = judging.model_copy(update={"on_failed": "mask", "on_unhealthy": "mask"})
        self.panel: Panel = open_panel(
            rewards, registry=registry, judging=steady, context=context, observe=self._observe
        )
        self.admission = Admission(queue)
        self._on_judged = on_judged
        self._numbers = itertools.count()
        self._judgements: dict[str, list[Judgement]] = {}
        self.status: Literal["ok", "draining"] = "ok"
        self._ending = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Build every source; raises `ConfigError` or `PluginError`."""
        await self.panel.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every source and end every worker."""
        await self.panel.aclose()

    def chosen(self, names: Sequence[str] | None) -> frozenset[str] | None:
        """The names of a request's rewards; raises `ConfigError` for one that this server has not."""
        if names is None:
            return None
        known = [entry.name for entry in self.panel.entries]
        for index, name in enumerate(names):
            if name not in known:
                raise ConfigError(
                    f"rewards[{index}]: this server has no reward {name!r}; it has {', '.join(known)}."
                    f"{did_you_mean(name, known)}"
                )
        return frozenset(names)

    async def judge(
        self, items: Sequence[tuple[Task, Rollout]], *, only: frozenset[str] | None, deadline_s: float
    ) -> list[Outcome]:
        """One outcome per item, in order, after `deadline_s` seconds at the latest.

        Raises `BusyError` where there is no room for all of them now, and `TooManyError` where there never is.
        """
        self._admit(len(items))
        try:
            return await self._judge(items, only, deadline_s)
        finally:
            self.admission.done(len(items), time.monotonic())

    def _admit(self, count: int) -> None:
        queue = self.admission.queue
        if count > queue:
            raise TooManyError(
                f"{count:,} items are more than the {queue:,} that this server holds; send fewer at a time"
            )
        if not self.admission.admit(count):
            raise BusyError(
                f"{self.admission.held:,} of {queue:,} items are under way, and there is no room for {count:,} more",
                self.admission.retry_after_s(count, time.monotonic()),
            )

    async def _judge(
        self, items: Sequence[tuple[Task, Rollout]], only: frozenset[str] | None, deadline_s: float
    ) -> list[Outcome]:
        places: dict[str, list[int]] = {}
        for index, (task, rollout) in enumerate(items):
            alone = not self.panel.judges_groups
            places.setdefault(str(index) if alone else f"{rollout.group_id}\0{task.model_dump_json()}", []).append(
                index
            )
            self._judgements[rollout.id] = []
        try:
            running = [
                (indices, asyncio.create_task(self._together([items[index] for index in indices], only)))
                for indices in places.values()
            ]
            rewards = await self._within(running, deadline_s)
        finally:
            found = {rollout.id: tuple(self._judgements.pop(rollout.id)) for _, rollout in items}
        return [Outcome(rewards.get(index), found[rollout.id]) for index, (_, rollout) in enumerate(items)]

    async def score(
        self, items: Sequence[AskedItem], *, only: frozenset[str] | None, deadline_s: float, explain: bool
    ) -> list[ScoredItem]:
        """What each item of a request came to, in order."""
        pairs = [self.pair(item.task.task(), item) for item in items]
        outcomes = await self.judge(pairs, only=only, deadline_s=deadline_s)
        return [
            _told(item.id, outcome, why_not=self.why_not(deadline_s), explain=explain)
            for item, outcome in zip(items, outcomes, strict=True)
        ]

    def why_not(self, deadline_s: float) -> str:
        """The reason of an item that has no reward yet."""
        return "the server was stopped" if self._ending.is_set() else f"not judged within {deadline_s:g} s"

    def pair(self, task: Task, item: AskedItem) -> tuple[Task, Rollout]:
        """The task with the item's rollout under a name that nothing else in this server has."""
        return task, item.rollout.rollout(self.next_id(), task)

    def next_id(self) -> str:
        """A rollout id that was not used before."""
        return f"call-{next(self._numbers)}"

    def drain(self) -> None:
        """Say that no further requests should come here."""
        self.status = "draining"

    def end(self) -> None:
        """Answer all requests under way now: what is not judged is told as failed."""
        self._ending.set()

    def facts(self) -> tuple[RewardFacts, ...]:
        """Everything that this server judges with."""
        found: list[RewardFacts] = []
        for opened in self.panel.entries:
            below: list[SourceFacts] = []
            for source in opened.sources:
                counts = {name: float(source.statistics.counts[name]) for name in COUNTED}
                below.append(
                    SourceFacts(
                        name=source.identity.label,
                        version=source.identity.version,
                        fingerprint=source.fingerprint,
                        scope=source.limits.scope,
                        timeout_s=source.limits.timeout_s,
                        healthy=not source.health.unhealthy,
                        counts=counts,
                    )
                )
            found.append(
                RewardFacts(
                    name=opened.name,
                    weight=opened.entry.weight,
                    channel=opened.entry.channel,
                    value_range=(opened.range.low, opened.range.high),
                    sources=tuple(below),
                )
            )
        return tuple(found)

    async def _together(self, items: Sequence[tuple[Task, Rollout]], only: frozenset[str] | None) -> list[Reward]:
        task = items[0][0]
        rollouts = [rollout for _, rollout in items]
        if self.panel.judges_groups:
            return list(await self.panel.judge_group(task, rollouts, only=only))
        return [await self.panel.judge(task, rollouts[0], only=only)]

    async def _within(
        self, running: Sequence[tuple[list[int], "asyncio.Task[list[Reward]]"]], deadline_s: float
    ) -> dict[int, Reward]:
        """The rewards by place of what is finished at the deadline or when the server ends; the rest is cancelled."""
        tasks = [task for _, task in running]
        finished = asyncio.create_task(asyncio.wait(tasks))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait([finished, ending], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (finished, ending, *tasks):
                task.cancel()
        rewards: dict[int, Reward] = {}
        for indices, task in running:
            if task.done() and not task.cancelled():
                rewards.update(zip(indices, task.result(), strict=True))
        return rewards

    def _observe(self, candidate: Candidate, judgement: Judgement) -> None:
        self._on_judged(judgement)
        kept = self._judgements.get(candidate.rollout.id)
        if kept is not None:  # else its request was answered at the deadline
            kept.append(judgement)


def _told(name: str, outcome: Outcome, *, why_not: str, explain: bool) -> ScoredItem:
    verdicts = outcome.judgements if explain else None
    if outcome.reward is None:
        return ScoredItem(
            id=name,
            status="failed",
            value=None,
            reward=None,
            fault="ours",
            reason=why_not,
            verdicts=verdicts,
        )
    answer = answer_of(outcome.reward)
    return ScoredItem(
        id=name,
        status=answer.status,
        value=answer.value,
        reward=answer.reward,
        fault=answer.fault,
        reason=answer.reason,
        parts=outcome.reward.parts,
        verdicts=verdicts,
    )
