"""Where a config's workers are: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig
from assay.judging import WorkerPool


@asynccontextmanager
async def cluster_workers(judging: JudgingConfig, context: BuildContext) -> AsyncGenerator[None]:
    """Give `context` the cluster's workers where the config names one; every panel opened inside uses them.

    Without a cluster nothing is done: a panel then makes a pool of its own on this machine.
    """
    if judging.ray is None or context.workers is not None:
        yield
        return
    from assay.remote.ray.pool import RayPool

    async with WorkerPool(
        pool=RayPool(judging.workers, judging.ray, start_timeout_s=judging.start_timeout_s)
    ) as workers:
        context.workers = workers
        try:
            yield
        finally:
            context.workers = None
