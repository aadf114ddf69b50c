"""Opens the sources of a panel: each is built where it belongs, guarded, and given what all of them share."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.component import BuildContext, Component
from assay.config.refs import build
from assay.config.rewards import AnyEntry, CascadeEntry, GateEntry, JudgingConfig, MinEntry, SourceEntry
from assay.contracts import Limits, Task
from assay.errors import ConfigError, JudgingError
from assay.judging import rebuild
from assay.judging.cache import ContentKeys, VerdictCache, digest
from assay.judging.divided import TIMEOUT_S, LedSource
from assay.judging.guard import InlineGuard, ProcessGuard, with_overrides
from assay.judging.source import Device, Identity, Observe, Policy, Recall, Source
from assay.judging.tracked import ProgramKey
from assay.judging.workers import WorkerPool
from assay.protocols import DividedSource, LearningSource, RewardSource
from assay.registry import Registry

if TYPE_CHECKING:
    from assay.training.ranks import Ranks

CheckTask = Callable[[Task], Coroutine[Any, Any, str | None]]
"""A task to what a source finds wrong with it, or None."""


class CheckedEntry(NamedTuple):
    """A source entry whose options are valid."""

    where: str
    entry: SourceEntry
    component: Component[Any, Any]
    config: Any


class OpenSources:
    """The opened sources of one panel by their labels; equal names and options share one."""

    def __init__(
        self,
        registry: Registry,
        *,
        judging: JudgingConfig,
        context: BuildContext,
        pool: WorkerPool,
        observe: Observe | None,
        recall: Recall | None,
        ranks: "Ranks | None",
    ) -> None:
        """Nothing is opened yet; those in worker processes will run in `pool`, those that can be divided in `ranks`."""
        self.sources: dict[str, Source] = {}
        self.learners: dict[str, LearningSource] = {}
        """By label, those that learn inside the loop."""
        self.checkers: dict[str, CheckTask] = {}
        """By label, of those that can say what is wrong with a task."""
        self.keys = ContentKeys()
        self._registry = registry
        self._judging = judging
        self._context = context
        self._pool = pool
        self._observe = observe
        self._recall = recall
        self._ranks = ranks
        self._policy = Policy(judging.on_failed, judging.on_unhealthy, judging.stop_if_failed_above, judging.cache)
        self._cache = VerdictCache()
        self._devices: dict[str, Device] = {}

    async def open(self, item: CheckedEntry) -> Source:
        """The source of one entry; equal names and options share one."""
        where, entry, component, config = item
        origin = self._registry.origin("reward_source", entry.use)
        options = json.loads(config.model_dump_json())
        options_hash = digest(json.dumps(options, sort_keys=True))
        shared = f"{origin.module}\0{entry.use}\0{options_hash}"
        for source in self.sources.values():
            if source.identity.fingerprint.startswith(shared):
                return source
        label = self._free_label(entry.name)
        generator = random.Random(f"{self._context.seed}{label}")  # noqa: S311 # jitter, not a secret
        in_workers = component.isolation == "process" or (component.spreads and self._pool.pool.spreads)
        if in_workers:
            limits, guard, more = await self._open_process(where, label, origin.module, entry.use, options, generator)
        else:
            part: RewardSource = build(
                self._registry, "reward_source", entry.use, entry.options, self._context, where=where
            )
            more = str(getattr(part, "fingerprint", ""))
            check = getattr(part, "check_task", None)
            if self._ranks is not None and isinstance(part, DividedSource):
                opening = {"use": entry.use, "options": entry.options, "where": where}
                part = await asyncio.to_thread(LedSource, part, label, opening, self._ranks)
            limits = self._limits(part.limits)
            if isinstance(part, LedSource):
                limits = limits.model_copy(update={"timeout_s": TIMEOUT_S})
            guard = InlineGuard(part, limits, generator, copies=not origin.builtin)
            if check is not None:
                self.checkers[label] = _as_coroutine(check)
            if isinstance(part, LearningSource):
                self.learners[label] = part
        device = None if limits.device is None else self._devices.setdefault(limits.device, Device())
        source = Source(
            guard,
            limits,
            Identity(label, origin.version, options_hash, f"{shared}\0{origin.version}\0{more}"),
            policy=self._policy,
            keys=self.keys,
            cache=self._cache,
            observe=self._observe,
            recall=self._recall,
            device=device,
            takes_batches=not in_workers,
        )
        self.sources[label] = source
        return source

    async def _open_process(
        self, where: str, label: str, module: str, name: str, options: Any, generator: random.Random
    ) -> tuple[Limits, ProcessGuard, str]:
        lend = self._context.open_sandbox
        init = {
            "module": module,
            "name": name,
            "options": options,
            "base_dir": str(self._context.base_dir),
            "cache_dir": str(self._context.cache_dir),
            "seed": self._context.seed,
            "device": self._context.device,
            "sandboxes": None if lend is None else self._pool.lend_sandboxes(lend),
        }
        pool = self._pool.pool
        key = ProgramKey(rebuild.TARGET, json.dumps(init, sort_keys=True))
        try:
            facts = await asyncio.wrap_future(pool.open(key))
        except JudgingError as error:
            raise ConfigError(
                f"{where}: reward source {name!r} cannot be built: {str(error).removeprefix('ConfigError: ')}"
            ) from error
        limits = self._limits(Limits.model_validate(facts["limits"]))
        if limits.concurrency == Limits.model_fields["concurrency"].default:  # nothing was asked for: as many as run
            limits = limits.model_copy(update={"concurrency": max(limits.concurrency, pool.size)})
        guard = ProcessGuard(pool, key, limits, generator)
        if facts["checks_tasks"]:
            self.checkers[label] = guard.check_task
        return limits, guard, facts["fingerprint"]

    def _limits(self, declared: Limits) -> Limits:
        return with_overrides(declared, timeout_s=self._judging.timeout_s, memory_mib=self._judging.memory_mib)

    def _free_label(self, name: str) -> str:
        label, number = name, 2
        while label in self.sources:
            label, number = f"{name}#{number}", number + 1
        return label


def source_entries(entry: AnyEntry, where: str) -> Iterator[tuple[str, SourceEntry]]:
    """Every source of an entry with its place in the config, in order."""
    if isinstance(entry, SourceEntry):
        yield where, entry
        return
    for place, member in members_of(entry, where):
        yield from source_entries(member, place)


def members_of(entry: AnyEntry, where: str) -> Iterator[tuple[str, AnyEntry]]:
    """The entries inside a combination, each with its place in the config, in order."""
    if isinstance(entry, GateEntry):
        yield f"{where}.gate", entry.gate
        yield f"{where}.then", entry.then
        return
    word = "cascade" if isinstance(entry, CascadeEntry) else "min" if isinstance(entry, MinEntry) else "product"
    for index, member in enumerate(entry.members):
        yield f"{where}.{word}[{index}]", member


def _as_coroutine(check: Callable[[Task], str | None]) -> Callable[[Task], Coroutine[Any, Any, str | None]]:
    async def checked_task(task: Task) -> str | None:
        return check(task)

    return checked_task
