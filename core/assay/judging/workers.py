"""Killable workers as components see them: the `Workers` protocol over a `Pool`."""

import asyncio
import json
import os
from typing import Any

from pydantic import JsonValue

from assay.contracts import ResourceLimits
from assay.judging.lending import OpenSandbox, SandboxHost
from assay.judging.pool import Pool
from assay.judging.tracked import Answer, CallPool, ProgramKey


class WorkerPool:
    """A pool of killable worker processes; nothing is started before the first call. Obeys the `Workers` protocol."""

    def __init__(self, size: int | None = None, *, start_timeout_s: float = 60.0, pool: CallPool | None = None) -> None:
        """At most `size` items at once, default one per core; or the slots of a `pool` that is made already."""
        self.pool: CallPool = pool or Pool(size or os.cpu_count() or 1, start_timeout_s=start_timeout_s)
        self._host: SandboxHost | None = None

    def lend_sandboxes(self, open_sandbox: OpenSandbox) -> str:
        """The address at which workers find this process's sandboxes; who lends first opens them for all."""
        if self._host is None:
            self._host = SandboxHost(open_sandbox)
        return self._host.address

    async def call(self, target: str, payload: JsonValue, *, limits: ResourceLimits) -> Answer:
        """Run `target` (`"module:function"`, JSON in, JSON out) on one item; its whole process tree dies at a limit.

        Importing the module is not counted against the item's limits. Cancelling the call ends the item.
        """
        data = json.dumps(payload, allow_nan=False).encode()
        return await asyncio.wrap_future(self.pool.submit(ProgramKey(target, ""), data, limits))

    def call_blocking(self, target: str, payload: JsonValue, *, limits: ResourceLimits) -> Answer:
        """As `call`, for code without an event loop."""
        data = json.dumps(payload, allow_nan=False).encode()
        return self.pool.submit(ProgramKey(target, ""), data, limits).result()

    async def aclose(self) -> None:
        """End every worker and everything below it."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """As `aclose`, for code without an event loop."""
        self.pool.close()
        if self._host is not None:
            self._host.close()
            self._host = None

    async def __aenter__(self) -> "WorkerPool":
        """Itself."""
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Close."""
        await self.aclose()
