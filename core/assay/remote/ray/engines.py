"""A rollout engine that is several engines, each in an actor of a Ray cluster.

Groups go to the actor with the least to do, whole, so that a prompt is read once. Weights reach the actors as files in
a folder that every node sees. Guaranteed: each request yields one rollout; an actor that died or gives no sign of life
is replaced by one with the current weights, and what it had not answered is asked again there, with the same seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.config.run import RayEngineConfig
from assay.contracts import Rollout, RolloutRequest, WeightsRef
from assay.errors import AssayError, EngineError
from assay.remote.ray.cluster import Cluster, LostError, cause_of, connect, is_lost, raised_there
from assay.remote.ray.engine_actor import REQUESTS, EngineActor, EngineOrder, News
from assay.together import together

log = logging.getLogger("assay.engines")
BEAT_S = 1.0
LOSSES = 3
"""Actors that may be lost in a row without a rollout in between, for each actor."""


@dataclass(eq=False)
class _Asked:
    """One request that has not been answered."""

    request: RolloutRequest
    inbox: asyncio.Queue[Rollout | AssayError]
    aborted: bool = False


@dataclass(eq=False)
class _Member:
    """One place in the crew, whichever actor fills it."""

    actor: Any = None
    place: str = "a node that has not answered yet"
    load: int = 0
    """Requests that were given to it and have not come back."""
    asked: dict[str, _Asked] = field(default_factory=dict[str, _Asked])
    listening: asyncio.Task[None] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an actor is asked, or replaced: a new one knows its requests, weights and pause before it is asked."""


class RayEngine:
    """Engines in actors behind the protocol of one."""

    def __init__(self, order: EngineOrder, settings: RayEngineConfig, *, weights_folder: Path) -> None:
        """Nothing is started before the first request or weights; `weights_folder` is removed at the end."""
        self.weights_folder = weights_folder
        self._order = order
        self._settings = settings
        self._cluster: Cluster | None = None
        self._members = [_Member() for _ in range(settings.actors)]
        self._starting = asyncio.Lock()
        self._handing = asyncio.Lock()
        """Held while requests are handed out: a pause that was asked for after them reaches no actor before them."""
        self._weights = WeightsRef(version=0)
        self._paused = False
        self._losses = 0
        self._closed = False
        self._broken: AssayError | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._weights.version

    @property
    def processes(self) -> list[int]:
        """Process id of each actor that has started."""
        found = [member.place.rpartition("process ")[2] for member in self._members]
        return [int(each) for each in found if each.isdigit()]

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        """Stream each rollout as it finishes; closing the generator early gives up what is left.

        Raises:
            EngineError: an engine refused a request, or actors cannot be kept alive.
        """
        await self._started()
        inbox: asyncio.Queue[Rollout | AssayError] = asyncio.Queue()
        left: set[str] = set()
        known = {name for member in self._members for name in member.asked}
        groups: dict[str, list[_Asked]] = {}
        for request in requests:
            if request.id in left or request.id in known:
                raise EngineError(f"request {request.id!r}: asked for twice; every request needs an id of its own")
            left.add(request.id)
            groups.setdefault(request.group_id, []).append(_Asked(request, inbox))
        try:
            async with self._handing:
                for group in groups.values():
                    await self._on(self._idlest(len(group)), lambda member, group=group: self._put(member, group))
            while left:
                item = await inbox.get()
                if isinstance(item, AssayError):
                    raise item
                left.discard(item.id)
                yield item
        finally:
            if left and not self._closed:
                for member in self._members:
                    for name in left & set(member.asked):
                        del member.asked[name]
                        member.load -= 1
                await self._abort(left)

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop making tokens on every actor."""
        await self._started()
        async with self._handing:
            await self._everywhere(lambda member: member.actor.pause.remote(mode))
            self._paused = True

    async def push_weights(self, weights: WeightsRef) -> None:
        """Let every actor read a published folder; raises `EngineError` where it does not fit."""
        if weights.path is None:
            raise EngineError("push_weights: engines on a cluster read weights from a folder; publish them to one")
        if weights.version < self._weights.version:
            raise EngineError(
                f"push_weights: version {weights.version} after {self._weights.version}; versions only grow"
            )
        await self._started()
        self._weights = weights  # before it is sent: an actor that is replaced meanwhile begins with it
        told = weights.model_dump_json()
        await self._everywhere(lambda member: member.actor.push.remote(told))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._started()
        self._paused = False
        await self._everywhere(lambda member: member.actor.resume.remote())

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now; their partial rollouts come back with finish `abort`. Unknown ids are ignored."""
        for member in self._members:
            for name in set(ids) & set(member.asked):
                member.asked[name].aborted = True
        await self._abort(ids)

    async def aclose(self) -> None:
        """End every actor and remove the published weights; requests under way end with an error."""
        if self._closed:
            return
        self._closed = True
        for member in self._members:
            if member.listening is not None:
                member.listening.cancel()
            if member.actor is not None and self._cluster is not None:
                with contextlib.suppress(Exception):  # it is ended either way
                    async with asyncio.timeout(5.0):
                        await member.actor.close.remote()
                self._cluster.kill(member.actor)
            self._tell(member, EngineError("the engine was closed while requests were under way"))
        await asyncio.to_thread(shutil.rmtree, self.weights_folder, ignore_errors=True)

    def _idlest(self, count: int) -> _Member:
        """The place with the least to do, which is given `count` requests more."""
        member = min(self._members, key=lambda member: member.load)
        member.load += count
        return member

    async def _put(self, member: _Member, group: Sequence[_Asked]) -> None:
        member.asked.update({asked.request.id: asked for asked in group})
        await member.actor.put.remote(_requests(group))

    # ---- the actors --------------------------------------------------------------------------------------------------

    async def _started(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; build a new one")
        async with self._starting:
            if self._broken is not None:
                raise self._broken
            if self._cluster is not None:
                return
            self._cluster = await asyncio.to_thread(connect, self._settings.address, where="engine.ray")
            await together([self._fill(member) for member in self._members])

    async def _fill(self, member: _Member) -> None:
        """Fill a place with a new actor, or with another one where that is lost while it starts."""
        while True:
            try:
                await self._start(member)
            except LostError as error:
                self._lose(member, str(error))
            else:
                return

    async def _start(self, member: _Member) -> None:
        """A new actor on the current weights, paused if the engine is, and asked what is open.

        Raises:
            LostError: it is gone.
            EngineError: there is no room for it, or its engine refuses something.
        """
        assert self._cluster is not None
        settings = self._settings
        member.actor = self._cluster.actor(
            EngineActor,
            self._order.model_dump_json(),
            list(sys.path),
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            resources=dict(settings.resources) or None,
        )
        try:
            async with asyncio.timeout(settings.start_s):
                member.place = await member.actor.start.remote()
                await self._tell_all(member)
        except TimeoutError:
            raise EngineError(
                f"engine.ray: an actor with {settings.cpus:g} CPUs and {settings.gpus:g} GPUs did not start within "
                f"start_s = {settings.start_s:g} s; the cluster has {self._cluster.room()}"
            ) from None
        except Exception as error:
            if (own := raised_there(error)) is not None:
                raise own from error
            if is_lost(error):
                raise LostError(cause_of(error)) from error
            raise EngineError(f"engine.ray: an actor could not start: {cause_of(error)}") from error
        member.listening = asyncio.create_task(self._listen(member, member.actor))

    async def _tell_all(self, member: _Member) -> None:
        """What the actors of before knew."""
        if self._weights.path is not None:
            await member.actor.push.remote(self._weights.model_dump_json())
        if self._paused:
            await member.actor.pause.remote("keep")
        if member.asked:
            await member.actor.put.remote(_requests(list(member.asked.values())))
            if aborted := [name for name, asked in member.asked.items() if asked.aborted]:
                await member.actor.abort.remote(aborted)

    async def _listen(self, member: _Member, actor: Any) -> None:
        """Hand out what an actor says, and replace it when it says nothing any more."""
        cause = ""
        while not cause:
            try:
                async with asyncio.timeout(BEAT_S + self._settings.lost_after_s):
                    news: Sequence[Any] = await actor.take.remote(BEAT_S)
            except TimeoutError:
                cause = f"no sign of life for {self._settings.lost_after_s:g} s"
            except Exception as error:  # Ray's errors have no common class of their own
                cause = cause_of(error)
            else:
                for each in map(News._make, news):
                    self._heard(member, each)
        await self._replace(member, cause)

    def _heard(self, member: _Member, news: News) -> None:
        if news.kind == "rollout":
            rollout = Rollout.model_validate_json(news.body)
            asked = member.asked.pop(rollout.id, None)
            if asked is not None:
                self._losses = 0
                member.load -= 1
                asked.inbox.put_nowait(rollout)
            return
        for name in news.ids:
            asked = member.asked.pop(name, None)
            if asked is not None:
                member.load -= 1
                asked.inbox.put_nowait(EngineError(news.body))

    async def _replace(self, member: _Member, cause: str) -> None:
        try:
            self._lose(member, cause)
            async with member.turn:
                await self._fill(member)
        except Exception as error:  # told to everybody who waits
            known = error if isinstance(error, AssayError) else EngineError(f"engine.ray: {cause_of(error)}")
            self._broken = known
            for each in self._members:
                self._tell(each, known)

    def _lose(self, member: _Member, cause: str) -> None:
        """End an actor that is gone; raises `EngineError` where too many were lost in a row."""
        assert self._cluster is not None
        self._cluster.kill(member.actor)
        self._losses += 1
        log.warning(
            "engine.ray: the actor on %s was lost (%s); another takes its place and its %d requests",
            member.place,
            cause,
            len(member.asked),
        )
        if self._losses > LOSSES * len(self._members):
            raise EngineError(
                f"engine.ray: {self._losses} actors were lost in a row without a rollout in between: {cause}"
            )

    def _tell(self, member: _Member, error: AssayError) -> None:
        """End the requests of an actor with an error."""
        member.load = 0
        while member.asked:
            member.asked.popitem()[1].inbox.put_nowait(error)

    async def _everywhere(self, call: Callable[[_Member], Awaitable[Any]]) -> None:
        await together([self._on(member, call) for member in self._members])

    async def _abort(self, ids: Collection[str]) -> None:
        if self._cluster is not None:
            await self._everywhere(lambda member: member.actor.abort.remote(sorted(ids)))

    async def _on(self, member: _Member, call: Callable[[_Member], Awaitable[Any]]) -> None:
        """Ask an actor; where it is gone its replacement is told what it must know. Raises what the engine raises."""
        if self._broken is not None:
            raise self._broken
        try:
            async with member.turn:
                await call(member)
        except Exception as error:
            own = raised_there(error)
            if own is not None:
                raise own from error
            log.debug("engine.ray: the actor on %s could not be asked: %s", member.place, cause_of(error))


def _requests(asked: Sequence[_Asked]) -> str:
    return REQUESTS.dump_json([each.request for each in asked]).decode()
