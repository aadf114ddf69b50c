"""Begin a run of reinforcement learning, or go on with one, once everything that can be checked was in order."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from assay import runs
from assay.config.load import dump_config
from assay.config.refs import Use, build
from assay.config.run import RlvrConfig
from assay.contracts import RunInfo
from assay.errors import ConfigError
from assay.events import Emit
from assay.judging import open_panel
from assay.preflight import Plan, check_golds_in_workers, check_unchanged, in_workers, plan_training
from assay.protocols import Objective
from assay.remote.placing import cluster_workers
from assay.run.session import Session
from assay.run.team import Taught, follow
from assay.store import RunStore
from assay.training.meeting import dismiss, meet

if TYPE_CHECKING:
    from assay.training.model import PolicyModel
    from assay.training.online import Stream

LOG_BYTES_PER_ROLLOUT = 8192
"""Generous size of a rollout with its verdicts in the log."""


def train(
    config: RlvrConfig,
    *,
    base_dir: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    emit: Emit = lambda event: None,
) -> "Path | None":
    """The folder of the finished run (None after a dry run); see `atrain`."""
    return asyncio.run(atrain(config, base_dir=base_dir, resume=resume, dry_run=dry_run, emit=emit))


async def atrain(
    config: RlvrConfig,
    *,
    base_dir: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    emit: Emit = lambda event: None,
) -> "Path | None":
    """Train as `config` says and return the run's folder.

    Everything that can be checked is checked before the first token is drawn. `resume` continues a run in its own
    folder: what is durable there is kept, updates after its last checkpoint are made again from stored rollouts.

    Raises:
        AssayError: with one sentence; what was finished is kept in the run folder.
    """
    async with AsyncExitStack() as stack:
        stored = None
        ranks = meet(config.policy.device)
        if ranks is not None:
            stack.callback(ranks.close)
        first = ranks is None or ranks.rank == 0
        folder_of_paths = Path(config.base_dir) if config.base_dir else base_dir or Path.cwd()
        config = config.model_copy(update={"base_dir": str(folder_of_paths.absolute())})
        if resume is not None and first:  # before anything slow: a run that is in use elsewhere is refused at once
            stored = RunStore.open(resume)
            stack.callback(stored.close)
            check_unchanged(config, resume, may_change=MAY_CHANGE)
        plan = plan_training(config, base_dir=folder_of_paths, where=config.name)
        for note in plan.notes if first else ():
            emit({"event": "note", "text": note})
        policy = _load_policy(plan)
        plan.context.policy = policy
        taught = Taught(policy, _frozen_models(plan, policy), _stream(plan, policy))
        if ranks is not None:
            taught.ranks = ranks
            if not first:
                if not dry_run:
                    await asyncio.to_thread(follow, plan, taught)
                return None
            stack.callback(dismiss, ranks)
            taught.policy = _load_policy(plan)  # divided among the processes; the engine keeps the whole one
        await stack.enter_async_context(cluster_workers(config.judging, plan.context))
        await _try_sources(plan)
        if dry_run:
            return None
        folder = resume or runs.new_run_folder(Path(config.runs_dir), config.name)
        info = RunInfo(
            id=folder.name,
            name=config.name,
            kind=config.kind,
            folder=str(folder),
            seed=config.seed,
            plugins=plan.registry.versions(),
        )
        if stored is None:
            stored = RunStore.create(folder, info)
            stack.callback(stored.close)
            runs.write_config(folder, dump_config(config))
        resumed = resume is not None
        session = await Session.open(plan, info, folder, stored, stack, emit, resumed=resumed, taught=taught)
        await session.run()
    return folder


MAY_CHANGE = frozenset({"steps", "minutes", "checkpoint", "trackers", "runs_dir", "base_dir", "judging"})
"""Keys that a resumed run may have otherwise than when it began; every other one would make the log a lie."""


def _load_policy(plan: Plan) -> "PolicyModel":
    """The policy, once there is room on the disk for what the run will write."""
    config = plan.config
    from assay.training.checkpoint import check_free_space, checkpoint_bytes
    from assay.training.model import load_policy
    from assay.training.threads import use_threads

    use_threads()
    policy = load_policy(
        config.policy.model,
        dtype=config.policy.dtype,
        device=config.policy.device,
        cache_dir=plan.context.cache_dir,
        base_dir=plan.context.base_dir,
    )
    rollouts = config.steps * config.loop.groups_per_step * config.engine.group_size
    room = checkpoint_bytes(policy, config.optimizer) * (config.checkpoint.keep + 1) + rollouts * LOG_BYTES_PER_ROLLOUT
    check_free_space(Path(config.runs_dir), room, what="checkpoints and the log")
    return policy


def _frozen_models(plan: Plan, policy: "PolicyModel") -> "dict[str, PolicyModel]":
    """The policies that the optimizer compares with, by its names for them."""
    from assay.training.encoder import TextEncoder
    from assay.training.model import load_policy

    # Prompts are rendered once, by the engine; that both read the same ids is all that matters.
    own = TextEncoder(policy.tokenizer, template="plain").fingerprint
    found: dict[str, PolicyModel] = {}
    for name, where in plan.config.models.items():
        model = load_policy(
            where,
            dtype=plan.config.policy.dtype,
            device=plan.config.policy.device,
            cache_dir=plan.context.cache_dir,
            base_dir=plan.context.base_dir,
        )
        if TextEncoder(model.tokenizer, template="plain").fingerprint != own:
            raise ConfigError(
                f"{plan.config.name}: models.{name}: {where!r} has another tokenizer than {policy.name!r}; log-probs "
                "of the same tokens are compared, so both must cut texts alike"
            )
        model.model.requires_grad_(False)
        found[name] = model
    return found


def _stream(plan: Plan, policy: "PolicyModel") -> "Stream | None":
    """The examples beside the rewards, all read and checked."""
    from assay.training.encoder import TextEncoder
    from assay.training.examples import read_examples
    from assay.training.online import Stream

    config, data = plan.config, plan.config.stream
    if data is None:
        return None
    use, where = data.objective or Use(use="sft"), f"{config.name}: stream"
    objective: Objective = build(
        plan.registry, "objective", use.use, use.options, plan.context, where=f"{where}.objective"
    )
    if objective.sidecars or objective.kind == "prm":
        raise ConfigError(
            f"{where}.objective: {use.use!r} trains a reward model or a head; here the policy is trained: use another"
        )
    found = read_examples(
        data,
        objective,
        TextEncoder(policy.tokenizer),
        seed=config.seed,
        base_dir=plan.context.base_dir,
        runs_dir=Path(config.runs_dir),
        longest=getattr(policy.model.config, "max_position_embeddings", None),
        where=where,
    )
    return Stream(found, objective, data.weight, data.batch_size or config.loop.groups_per_step, config.seed)


async def _try_sources(plan: Plan) -> None:
    """Raise `ConfigError` where a source cannot be built or, in its worker process, cannot read a gold."""
    config, registry = plan.config, plan.registry
    async with open_panel(config.rewards, registry=registry, judging=config.judging, context=plan.context) as panel:
        await check_golds_in_workers(panel, plan.tasks, where=f"{config.name}: tasks")
    if config.evaluate is None:
        return
    judges = (config.evaluate.by or config.rewards[0], *config.evaluate.also)
    if in_workers(registry, judges):
        async with open_panel(judges, registry=registry, judging=config.judging, context=plan.context) as panel:
            await check_golds_in_workers(panel, plan.held_out, where=f"{config.name}: evaluate.tasks")
