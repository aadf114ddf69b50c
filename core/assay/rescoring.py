"""Judges a stored run again with today's sources and today's tasks, and tells what came out otherwise.

The stored run is only read. What has not changed need not be judged again: a stored verdict still holds where its
source has the same fingerprint (distribution, version, name, options, the file or weights behind it) and the candidate
the same content (task and text).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from assay.component import BuildContext
from assay.config.load import load_config
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.run import AnyConfig, RlvrConfig, ScoreConfig
from assay.contracts import Candidate, Judgement, Reward, Task
from assay.errors import ConfigError
from assay.judging import Judged, open_panel
from assay.judging.source import Source
from assay.preflight import read_tasks
from assay.registry import Registry
from assay.rows import STDIN
from assay.runs import CONFIG
from assay.scoring import BOUND, read_answers
from assay.store import RunStore
from assay.store.sqlite import StoredRollout

Group = list[StoredRollout]


class Change(NamedTuple):
    """One verdict that is otherwise than the stored one."""

    old: Judgement | None
    """None where this source had not judged the rollout."""
    new: Judgement
    why: str
    """What is different about source or input, in a few words."""


@dataclass(frozen=True)
class Again:
    """One rollout with today's verdicts."""

    entry: StoredRollout
    task: Task
    """Today's task."""
    reward: Reward
    judgements: tuple[Judgement, ...]
    changes: tuple[Change, ...]


@dataclass
class Counts:
    """How much there was to do."""

    rollouts: int = 0
    judged: int = 0
    """Verdicts that were made again."""
    kept: int = 0
    """Stored verdicts that still hold."""
    changed: int = 0
    by_source: dict[str, int] = field(default_factory=dict[str, int])
    """Changed verdicts by source."""

    def add(self, again: Again) -> None:
        """Count one rollout."""
        self.rollouts += 1
        for judgement in again.judgements:
            self.kept += judgement.cached
            self.judged += not judgement.cached
        for change in again.changes:
            self.changed += 1
            self.by_source[change.new.source] = self.by_source.get(change.new.source, 0) + 1


def todays_tasks(config: RlvrConfig | ScoreConfig, registry: Registry, context: BuildContext) -> dict[str, Task]:
    """The tasks of the run's own source as they are now, by id; raises `ConfigError` where it cannot be read.

    A run that judged another run again has that run's source.
    """
    if isinstance(config, ScoreConfig) and (folder := Path(config.data.path)).is_dir():
        return todays_tasks(with_rewards(load_config(folder / CONFIG), folder), registry, context)
    if isinstance(config, ScoreConfig) and config.data.path == STDIN:
        raise ConfigError(f"{config.name}: its answers came on standard input")
    if isinstance(config, ScoreConfig):
        return {item.task.id: item.task for item in read_answers(config.data).items}
    return {task.id: task for task in read_tasks(registry, config.tasks, context, where=f"{config.name}: tasks")}


async def judge_again(
    store: RunStore,
    rewards: Sequence[RewardEntry],
    on_judged: Callable[[Again], None],
    *,
    registry: Registry,
    context: BuildContext,
    judging: JudgingConfig,
    tasks: Mapping[str, Task],
    changed_only: bool,
) -> Counts:
    """Judge every rollout of a run, call `on_judged` for each in order, and return the counts.

    `tasks` take the place of the stored ones of the same id. With `changed_only` a stored verdict that still holds is
    taken as it is, whatever its status.
    """
    memory = _Memory()
    counts = Counts()
    # A failure is a result here, not a reason to stop.
    judging = judging.model_copy(update={"on_failed": "mask", "on_unhealthy": "mask", "stop_if_failed_above": 1.0})
    async with open_panel(
        rewards,
        registry=registry,
        judging=judging,
        context=context,
        observe=memory.observe,
        recall=memory.recall if changed_only else None,
    ) as panel:
        context.workers = panel.workers
        pending: deque[tuple[Group, asyncio.Task[Sequence[Reward]]]] = deque()

        async def judge(group: Group) -> Sequence[Reward]:
            task = tasks.get(group[0].task.id, group[0].task)
            if panel.judges_groups:
                return await panel.judge_group(task, [entry.rollout for entry in group])
            return [await panel.judge(task, entry.rollout) for entry in group]

        async def finish_one() -> None:
            group, running_task = pending.popleft()
            for entry, reward in zip(group, await running_task, strict=True):
                judgements, changes = memory.forget(entry)
                again = Again(entry, tasks.get(entry.task.id, entry.task), reward, judgements, changes)
                counts.add(again)
                on_judged(again)

        async with asyncio.TaskGroup() as running:
            for group in _groups(store) if panel.judges_groups else _singles(store):
                memory.remember(group)
                pending.append((group, running.create_task(judge(group))))
                if len(pending) >= BOUND:
                    await finish_one()
            while pending:
                await finish_one()
    return counts


class _Memory:
    """Stored and new judgements of the rollouts that are under way."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Judgement] = {}
        self._made: dict[str, list[Judgement]] = {}

    def remember(self, group: Group) -> None:
        for entry in group:
            self._known.update({(old.rollout_id, old.source): old for old in entry.judgements})

    def recall(self, source: Source, candidate: Candidate, key: str) -> Judged | None:
        old = self._known.get((candidate.rollout.id, source.identity.label))
        if old is None or old.fingerprint != source.fingerprint or old.input_hash != key:
            return None
        return Judged(old.verdict, old.output, old.attempt)

    def observe(self, candidate: Candidate, judgement: Judgement) -> None:
        self._made.setdefault(candidate.rollout.id, []).append(judgement)

    def forget(self, entry: StoredRollout) -> tuple[tuple[Judgement, ...], tuple[Change, ...]]:
        """The new judgements of one rollout, and those that came out otherwise."""
        old = {judgement.source: judgement for judgement in entry.judgements}
        for name in old:
            del self._known[entry.rollout.id, name]
        made = tuple(self._made.pop(entry.rollout.id, ()))
        changes = (_change(old.get(judgement.source), judgement) for judgement in made)
        return made, tuple(change for change in changes if change is not None)


def with_rewards(config: AnyConfig, folder: Path) -> RlvrConfig | ScoreConfig:
    """The config of the run in `folder`; raises `ConfigError` for one of a kind without rewards."""
    if isinstance(config, RlvrConfig | ScoreConfig):
        return config
    raise ConfigError(f"{folder}: a run of kind {config.kind!r} has no rewards to judge again; name another run")


def _singles(store: RunStore) -> Iterator[Group]:
    for entry in store.rollouts():
        yield [entry]


def _groups(store: RunStore) -> Iterator[Group]:
    seen: set[str] = set()
    for step in store.steps():
        for group_id in store.groups(step):
            if group_id not in seen:
                seen.add(group_id)
                yield sorted(store.rollouts(group_id=group_id), key=lambda entry: entry.rollout.id)


def _change(old: Judgement | None, new: Judgement) -> Change | None:
    if old is not None and _decision(old) == _decision(new):
        return None
    return Change(old, new, _why(old, new))


def _decision(judgement: Judgement) -> tuple[Any, ...]:
    verdict = judgement.verdict
    return verdict.status, verdict.value, verdict.fault, verdict.steps, verdict.credit


def _why(old: Judgement | None, new: Judgement) -> str:
    if old is None:
        return "not judged by it before"
    reasons: list[str] = []
    if old.version != new.version:
        reasons.append(f"version {old.version} -> {new.version}")
    if old.options_hash != new.options_hash:
        reasons.append(f"options {old.options_hash[:8]} -> {new.options_hash[:8]}")
    if old.input_hash != new.input_hash:
        reasons.append("task changed")
    if not reasons and old.fingerprint and old.fingerprint != new.fingerprint:
        reasons.append("source changed")
    return ", ".join(reasons) or "same source and input: its answers vary, or its code changed"
