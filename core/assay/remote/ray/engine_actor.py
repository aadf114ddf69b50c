"""What runs inside one actor that samples: any engine on a policy of its own, fed and emptied by messages.

`put` hands requests over and returns at once; `take` waits for rollouts and gives all that are there, or nothing after
one beat, which is the sign of life. Requests and rollouts travel as JSON, weights as files.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, JsonValue, TypeAdapter

from assay.component import BuildContext
from assay.contracts import RolloutRequest, WeightsRef
from assay.errors import EngineError
from assay.protocols import RolloutEngine
from assay.registry import component_from
from assay.remote.ray.cluster import see_the_same_packages

REQUESTS = TypeAdapter(list[RolloutRequest])


class EngineOrder(BaseModel):
    """What an actor builds; paths must lead to the same files on every node."""

    module: str
    """Where the engine's plugin is."""
    name: str
    options: dict[str, JsonValue]
    model: str
    """Folder of the policy that it starts from."""
    dtype: str
    device: str
    seed: int
    base_dir: str
    cache_dir: str


class News(NamedTuple):
    """Something that an actor has to say."""

    kind: Literal["rollout", "error"]
    body: str
    """JSON of a rollout; or why the requests of `ids` ended."""
    ids: tuple[str, ...] = ()


class EngineActor:
    """One engine behind messages."""

    def __init__(self, order: str, path: Sequence[str]) -> None:
        """Nothing is built before `start`; `path` is where whoever asks looks for modules."""
        see_the_same_packages(path)
        self._order = EngineOrder.model_validate_json(order)
        self._engine: RolloutEngine | None = None
        self._drawing: set[asyncio.Task[None]] = set()
        self._news: list[News] = []
        self._arrived = asyncio.Event()

    async def start(self) -> str:
        """Load the policy and build the engine; where it runs."""
        self._engine = await asyncio.to_thread(self._build)
        return f"{socket.gethostname()}, process {os.getpid()}"

    async def put(self, requests: str) -> None:
        """Start requests."""
        task = asyncio.create_task(self._draw(REQUESTS.validate_json(requests)))
        self._drawing.add(task)
        task.add_done_callback(self._drawing.discard)

    async def take(self, beat_s: float) -> list[News]:
        """Everything since the last call, as soon as there is something."""
        if not self._news:
            try:
                async with asyncio.timeout(beat_s):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        self._arrived.clear()
        news, self._news = self._news, []
        return news

    async def pause(self, mode: Literal["keep", "abort", "wait"]) -> None:
        """As the engine's."""
        await self._running().pause(mode)

    async def push(self, weights: str) -> None:
        """As the engine's `push_weights`."""
        await self._running().push_weights(WeightsRef.model_validate_json(weights))

    async def resume(self) -> None:
        """As the engine's."""
        await self._running().resume()

    async def abort(self, ids: Sequence[str]) -> None:
        """As the engine's."""
        await self._running().abort(ids)

    async def close(self) -> None:
        """As the engine's `aclose`."""
        if self._engine is not None:
            await self._engine.aclose()

    async def _draw(self, requests: Sequence[RolloutRequest]) -> None:
        left = {request.id for request in requests}
        try:
            async for rollout in self._running().generate(requests):
                left.discard(rollout.id)
                self._say(News("rollout", rollout.model_dump_json()))
        except Exception as error:  # an engine may raise anything; whoever asked hears of it
            self._say(News("error", f"{error}" or type(error).__name__, tuple(sorted(left))))

    def _say(self, news: News) -> None:
        self._news.append(news)
        self._arrived.set()

    def _running(self) -> RolloutEngine:
        if self._engine is None:
            raise EngineError("the actor's engine has not been started")
        return self._engine

    def _build(self) -> RolloutEngine:
        from assay.training.model import load_policy
        from assay.training.threads import use_threads

        order = self._order
        use_threads()
        base_dir, cache_dir = Path(order.base_dir), Path(order.cache_dir)
        policy = load_policy(
            order.model, dtype=order.dtype, device=order.device, cache_dir=cache_dir, base_dir=base_dir
        )
        component = component_from(order.module, "rollout_engine", order.name)
        context = BuildContext(
            seed=order.seed, device=order.device, base_dir=base_dir, cache_dir=cache_dir, policy=policy
        )
        return component.build(component.config.model_validate(order.options), context)
