"""Where a config's workers and its engine are: on this machine, or on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from assay.component import BuildContext
from assay.config.refs import build, checked
from assay.config.rewards import JudgingConfig
from assay.config.run import RlvrConfig
from assay.judging import WorkerPool
from assay.protocols import RolloutEngine
from assay.registry import Registry


@asynccontextmanager
async def cluster_workers(judging: JudgingConfig, context: BuildContext) -> AsyncGenerator[None]:
    """Give `context` the cluster's workers where the config names one; every panel opened inside uses them.

    Without a cluster nothing is done: a panel then makes a pool of its own on this machine.

    Raises:
        ConfigError: no cluster answers, also where nothing would have been judged there.
    """
    if judging.ray is None or context.workers is not None:
        yield
        return
    from assay.remote.ray.cluster import connect
    from assay.remote.ray.pool import RayPool

    await asyncio.to_thread(connect, judging.ray.address, where="judging.ray")
    async with WorkerPool(
        pool=RayPool(judging.workers, judging.ray, start_timeout_s=judging.start_timeout_s)
    ) as workers:
        context.workers = workers
        try:
            yield
        finally:
            context.workers = None


def open_engine(config: RlvrConfig, registry: Registry, context: BuildContext) -> RolloutEngine:
    """The engine of a run, in this process or in actors of a cluster; raises `ConfigError` or `PluginError`."""
    chosen = config.engine
    if chosen.ray is None:
        return build(registry, "rollout_engine", chosen.use, chosen.options, context, where="engine")
    from assay.remote.ray.engine_actor import EngineOrder
    from assay.remote.ray.engines import RayEngine

    _, options = checked(registry, "rollout_engine", chosen.use, chosen.options, where="engine")
    assert context.policy is not None
    assert context.run is not None
    order = EngineOrder(
        module=registry.origin("rollout_engine", chosen.use).module,
        name=chosen.use,
        options=options.model_dump(mode="json"),
        model=context.policy.path,
        dtype=config.policy.dtype,
        device=context.device,
        seed=context.seed,
        base_dir=str(context.base_dir.absolute()),
        cache_dir=str(context.cache_dir),
    )
    folder = Path(context.run.folder).absolute()
    if chosen.ray.weights_dir is not None:
        folder = context.base_dir / Path(chosen.ray.weights_dir).expanduser() / folder.name
    return RayEngine(order, chosen.ray, weights_folder=folder / "weights")
