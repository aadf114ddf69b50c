"""Everything that can be found wrong before work: the first token is drawn only after all of it held."""

import asyncio
import importlib.util
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay import runs
from assay.component import BuildContext
from assay.config.load import load_config
from assay.config.refs import Use, build, checked
from assay.config.rewards import RewardEntry, sources
from assay.config.run import AnyConfig, RlvrConfig
from assay.contracts import Rollout, Task
from assay.discovery import default_cache_dir
from assay.errors import ConfigError, SandboxError
from assay.judging import Panel
from assay.protocols import Objective, PolicyOptimizer, RolloutEngine, Sandbox
from assay.registry import Registry
from assay.store import RunStore

_CHECKED_AT_ONCE = 256


@dataclass
class Plan:
    """A checked config and what was read while checking it."""

    config: RlvrConfig
    registry: Registry
    context: BuildContext
    tasks: list[Task]
    held_out: list[Task]
    notes: list[str] = field(default_factory=list[str])
    """Sentences for the user that are no errors."""


def plan_training(config: RlvrConfig, *, base_dir: Path, where: str = "config") -> Plan:
    """The plan of a run; raises `ConfigError` in one sentence for the first thing that is wrong."""
    registry = Registry.load(allow=config.plugins.allow)
    context = make_context(registry, base_dir=base_dir, seed=config.seed, device=config.policy.device)
    check_rewards(registry, config.rewards, where=where)
    checked(registry, "rollout_engine", config.engine.use, config.engine.options, where=f"{where}: engine")
    if config.objective is None:
        checked(
            registry, "policy_optimizer", config.optimizer.use, config.optimizer.options, where=f"{where}: optimizer"
        )
    else:
        checked(registry, "objective", config.objective.use, config.objective.options, where=f"{where}: objective")
    for index, tracker in enumerate(config.trackers):
        # Built, since a tracker begins with its first step: a missing library is told before any work.
        build(registry, "tracker", tracker.use, tracker.options, context, where=f"{where}: trackers[{index}]")
    tasks = read_tasks(registry, config.tasks, context, where=f"{where}: tasks")
    _check_tags(config.rewards, tasks, where)
    check_golds(registry, config.rewards, tasks, context, where=f"{where}: tasks")
    held_out: list[Task] = []
    if config.evaluate is not None:
        judges = (config.evaluate.by or config.rewards[0], *config.evaluate.also)
        check_rewards(registry, judges, where=f"{where}: evaluate")
        held_out = read_tasks(registry, config.evaluate.tasks, context, where=f"{where}: evaluate.tasks")
        check_golds(registry, judges, held_out, context, where=f"{where}: evaluate.tasks")
        _check_apart(tasks, held_out, where=f"{where}: evaluate.tasks")
    check_model(config.policy.model, base_dir, where)
    if config.objective is None:
        _check_optimizer(config, registry, context, where)
    else:
        _check_objective(config, config.objective, registry, context, where)
    if config.explanations is not None and (bare := [task.id for task in tasks if task.reference is None]):
        raise ConfigError(
            f"{where}: explanations: they are drawn with the answer in the prompt; {len(bare):,} of {len(tasks):,} "
            f"tasks have no reference, first {bare[0]!r}"
        )
    return Plan(config, registry, context, tasks, held_out, notes=list(registry.problems))


def _check_optimizer(config: RlvrConfig, registry: Registry, context: BuildContext, where: str) -> None:
    """Build the optimizer, and compare what it needs with what there is."""
    optimizer: PolicyOptimizer = build(
        registry,
        "policy_optimizer",
        config.optimizer.use,
        config.optimizer.options,
        context,
        where=f"{where}: optimizer",
    )
    least, group_size = optimizer.needs.group_size_min, config.engine.group_size
    if group_size < least:
        raise ConfigError(
            f"{where}: engine.group_size: the optimizer {config.optimizer.use!r} compares the responses of a group and "
            f"needs at least {least}; found {group_size}; raise it or choose an optimizer without a group baseline"
        )
    if optimizer.needs.set_apart != (config.explanations is not None):
        if config.explanations is None:
            problem = "makes explanations likelier and none are drawn; add the table explanations"
        else:
            problem = 'learns from no explanations; use "expo", add the regulariser "nll_term", or remove them'
        raise ConfigError(f"{where}: explanations: the optimizer {config.optimizer.use!r} {problem}")
    channels = {entry.channel for entry in config.rewards}
    if unfed := sorted(set(optimizer.needs.channels) - channels):
        raise ConfigError(
            f"{where}: rewards: the optimizer {config.optimizer.use!r} reads the channel {unfed[0]!r} and no entry "
            f"gives it; found {', '.join(sorted(channels))}; add an entry with channel = {unfed[0]!r}"
        )
    if optimizer.needs.logp_gen and config.optimizer.importance_correction != "none":
        raise ConfigError(
            f"{where}: optimizer.importance_correction: the ratio of {config.optimizer.use!r} is against the sampler's "
            'log-probs, a correction already; remove it, or set ratio = { use = "token", denominator = "old" }'
        )
    wanted, given = set(optimizer.needs.models), set(config.models)
    if wanted != given:
        name = sorted(wanted ^ given)[0]
        problem = f'compares with a frozen policy; add models = {{ {name} = "FOLDER" }}'
        if name in given:
            problem = f"knows no policy of that name, only {', '.join(sorted(wanted)) or 'none'}; remove it"
        raise ConfigError(f"{where}: models.{name}: the optimizer {config.optimizer.use!r} {problem}")
    for model in config.models.values():
        check_model(model, context.base_dir, where)


def _check_objective(config: RlvrConfig, use: Use, registry: Registry, context: BuildContext, where: str) -> None:
    """Build the objective, and compare what it needs with what a group of rollouts gives."""
    objective: Objective = build(registry, "objective", use.use, use.options, context, where=f"{where}: objective")
    if objective.kind == "prm":
        raise ConfigError(
            f"{where}: objective: {use.use!r} trains a reward model and here the policy is trained; choose an "
            "objective of kind 'preference' or 'sft', or a config of kind 'prm'"
        )
    compares = objective.layout == "ranked" or (objective.layout == "pairs" and config.examples.chosen == "best")
    if compares and config.engine.group_size < 2:
        raise ConfigError(
            f"{where}: engine.group_size: {use.use!r} compares the responses of a group and needs at least 2; "
            f"found {config.engine.group_size}"
        )
    if config.examples.chosen != "best" and objective.layout != "pairs":
        raise ConfigError(
            f"{where}: examples.chosen: {config.examples.chosen!r} is the winner of a pair, and {use.use!r} learns "
            f"from {objective.layout}; choose an objective on pairs"
        )


def make_context(registry: Registry, *, base_dir: Path, seed: int, device: str = "cpu") -> BuildContext:
    """A context whose sandboxes and engines come from the registry, and whose runs from the folder `runs`."""
    context = BuildContext(
        seed=seed, device=device, base_dir=base_dir, cache_dir=default_cache_dir(), parts=registry.parts()
    )

    def open_sandbox(name: str | None, options: dict[str, Any]) -> Sandbox:
        if name is not None:
            return build(registry, "sandbox", name, options, context, where="sandbox")
        return best_sandbox(registry, context, options)

    def open_engine(name: str, options: dict[str, Any]) -> RolloutEngine:
        return build(registry, "rollout_engine", name, options, context, where="engine")

    def read_run(name: str) -> Iterator[tuple[Task, Rollout]]:
        folder = runs.find_run(str(base_dir / name) if (base_dir / name / runs.CONFIG).is_file() else name)
        with RunStore.open(folder, read_only=True) as store:
            for entry in store.rollouts():
                yield entry.task, entry.rollout

    context.open_sandbox = open_sandbox
    context.open_engine = open_engine
    context.read_run = read_run
    return context


def best_sandbox(registry: Registry, context: BuildContext, options: dict[str, Any]) -> Sandbox:
    """The first sandbox that works here, in the order of the rank that each declares; raises `SandboxError`."""
    rows = [row for row in registry.rows if row.kind == "sandbox" and row.state == "ok" and "rank" in row.offer.facts]
    causes: list[str] = []
    for row in sorted(rows, key=lambda row: int(row.offer.facts["rank"])):
        try:
            return build(registry, "sandbox", row.offer.name, options, context, where="sandbox")
        except (SandboxError, ConfigError) as error:
            causes.append(f"{row.offer.name}: {error}")
    raise SandboxError(f"sandbox: none works on this machine; {'; '.join(causes) or 'none is installed'}")


def check_rewards(registry: Registry, rewards: Sequence[RewardEntry], *, where: str) -> None:
    """Raise `ConfigError` for an unknown source or option anywhere inside the entries."""
    for index, entry in enumerate(rewards):
        for place, source in sources(entry, f"rewards[{index}]"):
            checked(registry, "reward_source", source.use, source.options, where=f"{where}: {place}")


def read_tasks(registry: Registry, use: Use, context: BuildContext, *, where: str) -> list[Task]:
    """All tasks of a source; raises `ConfigError` for a bad row, no row, or an id that comes twice."""
    source = build(registry, "task_source", use.use, use.options, context, where=where)
    tasks: list[Task] = list(source.tasks())
    if not tasks:
        raise ConfigError(f"{where}: source {use.use!r} has no tasks; look at its options: assay plugins {use.use}")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ConfigError(f"{where}: task id {task.id!r} comes twice; ids must be unique")
        seen.add(task.id)
    return tasks


def check_golds(
    registry: Registry, rewards: Sequence[RewardEntry], tasks: Sequence[Task], context: BuildContext, *, where: str
) -> None:
    """Raise `ConfigError` naming the first rows whose gold a source cannot read.

    A source that reads golds offers `check_task(task)`, a sentence for an unreadable one and None otherwise. It is
    asked here where the source runs inline, or where its component's facts say `check_task = "inline"`; the others
    are asked by `check_golds_in_workers` once they are open. `check_task = "never"` is for sources that read no gold
    and are slow to build (they load a model).
    """
    for entry in rewards:
        for place, source in sources(entry):
            component, options = checked(registry, "reward_source", source.use, source.options, where=place)
            if component.facts.get("check_task", component.isolation) != "inline":
                continue
            check = getattr(component.build(options, context), "check_task", None)
            if check is None:
                continue
            relevant = [task for task in tasks if entry.applies(task.tags)]
            bad = [(task.id, problem) for task in relevant if (problem := check(task)) is not None]
            if bad:
                examples = "; ".join(f"{task_id}: {problem}" for task_id, problem in bad[:3])
                raise ConfigError(
                    f"{where}: source {source.use!r} cannot read {len(bad):,} of {len(relevant):,} golds; {examples}. "
                    f"Mend or leave out these rows"
                )


async def check_golds_in_workers(panel: Panel, tasks: Sequence[Task], *, where: str) -> None:
    """As `check_golds`, for the sources of an open panel that run in worker processes.

    Tasks that differ in nothing but their names are asked about once.
    """
    if not panel.checks_in_workers:
        return
    different = {task.model_dump_json(exclude={"id"}): task for task in reversed(tasks)}
    room = asyncio.Semaphore(_CHECKED_AT_ONCE)

    async def check(task: Task) -> tuple[Task, list[str]]:
        async with room:
            return task, await panel.check_task(task, only_in_workers=True)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(check(task)) for task in reversed(different.values())]
    bad = [found for found in (done.result() for done in running) if found[1]]
    if bad:
        examples = "; ".join(f"{task.id}: {'; '.join(problems)}" for task, problems in bad[:3])
        raise ConfigError(
            f"{where}: {len(bad):,} of {len(different):,} different golds cannot be read; {examples}. "
            "Mend or leave out these rows"
        )


def in_workers(registry: Registry, rewards: Sequence[RewardEntry]) -> bool:
    """Whether any source of the entries runs in worker processes."""
    entries = [source for entry in rewards for _, source in sources(entry)]
    found = (checked(registry, "reward_source", e.use, e.options, where=e.name)[0] for e in entries)
    return any(component.isolation == "process" for component in found)


def check_model(name: str, base_dir: Path, where: str) -> None:
    """Raise `ConfigError` where a training package is missing or a model's files are nowhere to be found."""
    for package in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{where}: training needs the package {package!r}, which is not installed; "
                'install it with: python -m pip install "assay[train]"'
            )
    from assay.training.model import find_model  # known to be installed now

    find_model(name, base_dir=base_dir)


def check_unchanged(config: AnyConfig, folder: Path, *, may_change: Collection[str]) -> None:
    """Raise `ConfigError` where the config differs from the run's own in anything that decides what the run is."""
    began = load_config(folder / runs.CONFIG)
    now, then = config.model_dump(mode="json"), began.model_dump(mode="json")
    changed = [key for key in now if key not in may_change and now[key] != then.get(key)]
    if changed:
        raise ConfigError(
            f"--resume: {folder} was begun with another {', '.join(changed)}; resume with the config that it began "
            f"with ({folder / runs.CONFIG}), or start a new run"
        )


def _check_tags(rewards: Sequence[RewardEntry], tasks: Sequence[Task], where: str) -> None:
    """An entry that applies to no task is a mistake in its tag."""
    for index, entry in enumerate(rewards):
        if entry.when is not None and not any(entry.applies(task.tags) for task in tasks):
            tags = sorted({tag for task in tasks for tag in task.tags})
            raise ConfigError(
                f"{where}: rewards[{index}].when: no task has the tag {', '.join(entry.when.tags)}; "
                f"the tasks have {', '.join(tags[:8]) or 'no tags'}"
            )


def _check_apart(tasks: Sequence[Task], held_out: Sequence[Task], *, where: str) -> None:
    """No question may be in both halves, however it is spaced or cased."""
    trained = {_normal(task.prompt) for task in tasks}
    shared = [task for task in held_out if _normal(task.prompt) in trained]
    if shared:
        raise ConfigError(
            f"{where}: {len(shared):,} of {len(held_out):,} held-out questions are also trained on; first "
            f"{shared[0].id!r}. Split by question text"
        )


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()
