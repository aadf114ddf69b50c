"""Routes a rollout to the sources that its task asks for, and joins their verdicts to one reward."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from assay.component import BuildContext, Workers
from assay.config.refs import checked
from assay.config.rewards import AnyEntry, CascadeEntry, GateEntry, JudgingConfig, MinEntry, SourceEntry
from assay.contracts import Candidate, Judgement, Reward, RewardPart, Rollout, ScoredGroup, Task
from assay.errors import ConfigError, JudgingError, TrainingError
from assay.judging import combine
from assay.judging.capture import capturing
from assay.judging.combine import Outcome, Range
from assay.judging.guard import ProcessGuard
from assay.judging.opening import CheckedEntry, OpenSources, members_of, source_entries
from assay.judging.source import Observe, Recall, Source
from assay.judging.workers import WorkerPool
from assay.protocols import KeepsState
from assay.registry import Registry
from assay.together import together

if TYPE_CHECKING:
    from assay.training.ranks import Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class _Node:
    """An entry with its sources built."""

    entry: AnyEntry
    members: tuple["_Node", ...]
    source: Source | None
    range: Range

    def sources(self) -> Iterator[Source]:
        """Every source below, in order."""
        if self.source is not None:
            yield self.source
        for member in self.members:
            yield from member.sources()

    @cached_property
    def immediate(self) -> bool:
        """Whether none of the sources below ever waits."""
        return all(source.immediate for source in self.sources())

    @cached_property
    def group_scope(self) -> bool:
        """Whether any source below must see the whole group."""
        return any(source.limits.scope == "group" for source in self.sources())


class OpenEntry(NamedTuple):
    """An entry of the list once its sources are open."""

    name: str
    """What it is called in a reward's parts."""
    entry: AnyEntry
    sources: tuple[Source, ...]
    range: Range


@dataclass
class _Job:
    """One rollout on its way through the panel."""

    candidate: Candidate
    key: str
    """Content key of the candidate."""
    group: "_Group"
    only: frozenset[str] | None = None
    """Names of the entries that are asked; None is all."""


class _Group:
    """The candidates of one group, and the calls of group-scope sources, which are made once for all of them."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self._calls: dict[Source, asyncio.Task[Sequence[Judgement]]] = {}

    async def judgement(self, source: Source, candidate: Candidate) -> Judgement:
        call = self._calls.get(source)
        if call is None:
            call = self._calls[source] = asyncio.create_task(self._call(source))
        judgements = await asyncio.shield(call)
        return next(judgement for judgement in judgements if judgement.rollout_id == candidate.rollout.id)

    async def _call(self, source: Source) -> Sequence[Judgement]:
        rollouts = tuple(candidate.rollout for candidate in self.candidates)
        return await source.judge_group([c.model_copy(update={"group": rollouts}) for c in self.candidates])


class Panel:
    """The sources of a `rewards` list, opened; `async with open_panel(...) as panel`.

    Guaranteed: one reward per rollout in the order given; nothing a source does raises, but for the stops that the
    `judging` table asks for (`JudgingError`); a reward is a number only where every needed part is.
    """

    def __init__(
        self,
        rewards: Sequence[AnyEntry],
        *,
        registry: Registry,
        judging: JudgingConfig,
        context: BuildContext,
        observe: Observe | None = None,
        recall: Recall | None = None,
        ranks: "Ranks | None" = None,
    ) -> None:
        """Check the entries; raises `ConfigError` for an unknown name or option. Nothing is started yet."""
        self.judging = judging
        self._own_pool = None if isinstance(context.workers, WorkerPool) else self._new_pool()
        self._pool = context.workers if isinstance(context.workers, WorkerPool) else self._own_pool
        assert self._pool is not None
        self._context = replace(context, workers=context.workers or self._pool)
        self._rewards = tuple(rewards)
        self._checked = [
            CheckedEntry(where, entry, *checked(registry, "reward_source", entry.use, entry.options, where=where))
            for index, member in enumerate(self._rewards)
            for where, entry in source_entries(member, f"rewards[{index}]")
        ]
        self._opened = OpenSources(
            registry,
            judging=judging,
            context=self._context,
            pool=self._pool,
            observe=observe,
            recall=recall,
            ranks=ranks,
        )
        self._nodes: tuple[_Node, ...] = ()
        self._stack = contextlib.ExitStack()

    # ---- opening and closing ----

    async def __aenter__(self) -> Self:
        """Build every source; raises `ConfigError` or `PluginError` where one cannot be built."""
        self._stack.enter_context(capturing())
        try:
            built = {item.where: await self._opened.open(item) for item in self._checked}
        except BaseException:
            await self.aclose()
            raise
        self._nodes = tuple(self._node(entry, f"rewards[{index}]", built) for index, entry in enumerate(self._rewards))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every source and end every worker."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close every source and end every worker."""
        for source in self._opened.sources.values():
            await source.aclose()
        if self._own_pool is not None:
            await self._own_pool.aclose()
        self._stack.close()

    # ---- judging ----

    @property
    def judges_groups(self) -> bool:
        """Whether any source must see the whole group at once; then only `judge_group` may be used."""
        return any(node.group_scope for node in self._nodes)

    @property
    def entries(self) -> tuple[OpenEntry, ...]:
        """The entries of the list with their names and what is below them, in order."""
        return tuple(OpenEntry(_name(node), node.entry, tuple(node.sources()), node.range) for node in self._nodes)

    async def judge(self, task: Task, rollout: Rollout, *, only: frozenset[str] | None = None) -> Reward:
        """The reward of one rollout; `only` names the entries that are asked, in place of all."""
        if self.judges_groups:
            raise JudgingError("a source of this panel judges whole groups; hand it the group with judge_group")
        candidate = Candidate.model_construct(task=task, rollout=rollout, group=())
        return await self._reward(_Job(candidate, self._opened.keys.key(candidate), _Group([candidate]), only))

    async def judge_group(
        self, task: Task, rollouts: Sequence[Rollout], *, only: frozenset[str] | None = None
    ) -> tuple[Reward, ...]:
        """The rewards of a whole group, in order; `only` as in `judge`."""
        candidates = [Candidate.model_construct(task=task, rollout=rollout, group=()) for rollout in rollouts]
        group = _Group(candidates)
        jobs = [_Job(candidate, self._opened.keys.key(candidate), group, only) for candidate in candidates]
        if all(node.immediate for node in self._nodes):
            return tuple([await self._reward(job) for job in jobs])
        return tuple(await together([self._reward(job) for job in jobs]))

    @property
    def checks_in_workers(self) -> bool:
        """Whether any source in a worker process can say what is wrong with a task."""
        return any(isinstance(self._opened.sources[label].guard, ProcessGuard) for label in self._opened.checkers)

    async def check_task(self, task: Task, *, only_in_workers: bool = False) -> list[str]:
        """What the sources that would judge a task find wrong with it (an unreadable gold), one sentence each."""
        applying = [node for node in self._nodes if node.entry.applies(task.tags)]
        asked = [source for node in applying for source in node.sources()]
        if only_in_workers:
            asked = [source for source in asked if isinstance(source.guard, ProcessGuard)]
        labels = dict.fromkeys(source.identity.label for source in asked)
        found = [
            (label, await self._opened.checkers[label](task)) for label in labels if label in self._opened.checkers
        ]
        return [f"{label}: {complaint}" for label, complaint in found if complaint]

    async def learn(self, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Let the sources that learn inside the loop update; their metrics."""
        metrics: dict[str, float] = {}
        for source in self._opened.learners.values():
            metrics.update(await source.learn(groups))
        return metrics

    def save_state(self, folder: Path) -> None:
        """Write the state of every source that learns into `folder`, which is made where there is any."""
        for number, (_, source) in enumerate(self._stateful()):
            place = folder / f"{number:02d}"
            place.mkdir(parents=True)
            source.save_state(place)

    def load_state(self, folder: Path) -> None:
        """Go on from what `save_state` wrote.

        Raises:
            TrainingError: a source that learns finds no state of its own there.
        """
        for number, (name, source) in enumerate(self._stateful()):
            place = folder / f"{number:02d}"
            if not place.is_dir():
                raise TrainingError(f"{folder}: there is no state of the source {name!r}; resume with the run's config")
            source.load_state(place)

    def _stateful(self) -> list[tuple[str, KeepsState]]:
        learners = self._opened.learners.items()
        return [(label, source) for label, source in learners if isinstance(source, KeepsState)]

    def metrics(self) -> dict[str, float]:
        """Per source: counts, latencies in ms, kills, cache hits, calls, retries, queue length; and of the workers."""
        found: dict[str, float] = {}
        for label, source in self._opened.sources.items():
            numbers = source.statistics.metrics()
            numbers["queue"] = float(source.queue_length)
            numbers["calls"] = float(getattr(source.guard, "calls", 0))
            numbers["retried"] = float(getattr(source.guard, "retried", 0))
            found.update({f"{label}/{name}": value for name, value in numbers.items()})
        if self._pool is not None:
            found["workers/queue"] = float(self._pool.pool.queue_length)
            found.update({f"workers/{name}": float(count) for name, count in self._pool.pool.counts.items()})
        return found

    @property
    def workers(self) -> Workers:
        """The killable workers that the sources share."""
        assert self._context.workers is not None
        return self._context.workers

    @property
    def sources(self) -> dict[str, Source]:
        """The sources by label."""
        return dict(self._opened.sources)

    # ---- building ----

    def _new_pool(self) -> WorkerPool:
        if self.judging.ray is not None:
            raise ConfigError("judging.ray: only `assay train` and `assay score` judge on a cluster; remove it here")
        return WorkerPool(self.judging.workers, start_timeout_s=self.judging.start_timeout_s)

    def _node(self, entry: AnyEntry, where: str, built: dict[str, Source]) -> _Node:
        if isinstance(entry, SourceEntry):
            source = built[where]
            return _Node(entry, (), source, Range(*source.limits.value_range))
        places = [place for place, _ in members_of(entry, where)]
        members = tuple(self._node(m, p, built) for m, p in zip(entry.members, places, strict=True))
        ranges = [member.range for member in members]
        if isinstance(entry, GateEntry):
            closed = ranges[1].low if entry.closed is None else entry.closed
            entry = entry.model_copy(update={"closed": closed})
            return _Node(entry, members, None, combine.gate_range(ranges[1], closed))
        if isinstance(entry, CascadeEntry):
            return _Node(entry, members, None, combine.cascade_range(ranges))
        if isinstance(entry, MinEntry):
            return _Node(entry, members, None, combine.minimum_range(ranges))
        return _Node(entry, members, None, combine.product_range(ranges))

    # ---- one rollout ----

    async def _reward(self, job: _Job) -> Reward:
        tags = job.candidate.task.tags
        nodes = [
            node for node in self._nodes if node.entry.applies(tags) and (job.only is None or _name(node) in job.only)
        ]
        outcomes = await self._outcomes(nodes, job)
        parts = [_part(node, outcome) for node, outcome in zip(nodes, outcomes, strict=True)]
        return combine.total(job.candidate.rollout.id, parts)

    async def _outcomes(self, nodes: Sequence[_Node], job: _Job) -> list[Outcome]:
        """The outcomes in order; entries that may wait wait together."""
        if sum(not node.immediate for node in nodes) > 1:
            return await together([self._outcome(node, job) for node in nodes])
        found = {index: await self._outcome(node, job) for index, node in enumerate(nodes) if node.immediate}
        for index, node in enumerate(nodes):
            if not node.immediate:
                found[index] = await self._outcome(node, job)
        return [found[index] for index in range(len(nodes))]

    async def _outcome(self, node: _Node, job: _Job) -> Outcome:
        if node.source is not None:
            return combine.of_verdict((await self._judgement(node.source, job)).verdict)
        entry = node.entry
        if isinstance(entry, GateEntry):
            gate = await self._outcome(node.members[0], job)
            if combine.gate_opens(gate, entry.open_at):
                return await self._outcome(node.members[1], job)
            return combine.shut_gate(gate, node.range.low if entry.closed is None else entry.closed)
        if isinstance(entry, CascadeEntry):
            asked: list[Outcome] = []
            for member in node.members:
                asked.append(await self._outcome(member, job))
                if not combine.falls_through(asked[-1]):
                    break
            return combine.cascade(asked)
        outcomes = await self._outcomes(node.members, job)
        return combine.minimum(outcomes) if isinstance(entry, MinEntry) else combine.product(outcomes)

    async def _judgement(self, source: Source, job: _Job) -> Judgement:
        if source.limits.scope == "group":
            return await job.group.judgement(source, job.candidate)
        return await source.judge(job.candidate, job.key)


def open_panel(
    rewards: Sequence[AnyEntry],
    *,
    registry: Registry,
    judging: JudgingConfig | None = None,
    context: BuildContext | None = None,
    observe: Observe | None = None,
    recall: Recall | None = None,
    ranks: "Ranks | None" = None,
) -> Panel:
    """A panel for a `rewards` list, to be entered with `async with`; raises `ConfigError` for a wrong entry.

    `observe` is called with every candidate and judgement, also a cached one. `recall` is asked before anything is
    judged: what it knows counts as cached. `ranks` are the processes that learning sources can be divided among.
    """
    return Panel(
        rewards,
        registry=registry,
        judging=judging or JudgingConfig(),
        context=context or BuildContext(),
        observe=observe,
        recall=recall,
        ranks=ranks,
    )


def _part(node: _Node, outcome: Outcome) -> RewardPart:
    entry = node.entry
    return combine.part(
        outcome,
        source=_name(node),
        weight=entry.weight,
        channel=entry.channel,
        on_candidate_fault=entry.on_candidate_fault,
        worst=combine.worst_of(node.range, weight=entry.weight, channel=entry.channel),
    )


def _name(node: _Node) -> str:
    """What an entry is called in a reward's parts."""
    return node.entry.name if node.source is None else node.source.identity.label
