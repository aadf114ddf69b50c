"""The rollout engine on a vLLM server: requests as token ids, answers token by token, weights in flight.

Each request is a coroutine of its own. It streams, so that after the server's death it goes on from the tokens it has;
which of those may be kept, and by which weights they were made, is decided by `partial.py`. A new version is checked on
the disk, then: pause, load, name the version, resume, and ask the probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from assay.contracts import Finish, Rollout, RolloutRequest, Task, Turn, WeightsRef
from assay.errors import EngineError
from assay.together import Inbox
from assay_engines.transformers.rendering import Template, render
from assay_engines.vllm.files import check_weights, read_shapes
from assay_engines.vllm.host import GivenHost, Life, OwnHost, Weights
from assay_engines.vllm.partial import Partial, attempt_seed
from assay_engines.vllm.probing import compare, read_probe
from assay_engines.vllm.routes import Delta, Lost
from assay_engines.vllm.transfer import Transfer

log = logging.getLogger("assay.engines")
CONNECTIONS = 512
"""Requests that are with the server at once; further ones wait here, in the order of their priority."""
STREAM_INTERVAL = 16
"""Tokens per message; what a dead server takes along is at most this much of each response."""
LOSSES = 5
"""How often one request may be lost before it is given up: it may be what kills the server."""
ABORT_AGAIN_S = 0.5
PROBE_PRIORITY = -(10**9)
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}


class PushTimes(NamedTuple):
    """What one push took, in seconds."""

    check_s: float
    pause_s: float
    """From the pause to the resume: no token was made."""
    probe_s: float


class Speaker(NamedTuple):
    """What is needed of a tokenizer and its model."""

    tokenizer: Any
    end_ids: frozenset[int]
    template: Template


@dataclass(eq=False)
class _Call:
    """One request on its way."""

    request: RolloutRequest
    prompt: tuple[int, ...]
    admitted: bool
    """Whether it came before a pause that waits for what is under way."""
    partial: Partial = field(default_factory=Partial)
    attempts: int = 0
    losses: int = 0
    wire_id: str | None = None
    """Its id in the server while it is there."""
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class VLLMEngine:
    """Streams completions from a vLLM server."""

    def __init__(
        self,
        host: OwnHost | GivenHost,
        speaker: Speaker,
        *,
        model: Path,
        weights_folder: Path,
        transfer: Transfer,
        dtype: str,
        restarts: int = 3,
        ignore_end: bool = False,
    ) -> None:
        """An engine on the server of `host`, which serves the model folder `model` at first.

        `weights_folder` is where the trainer publishes versions; it is removed at the end.
        """
        self.weights_folder = weights_folder
        self.last_push: PushTimes | None = None
        self.host = host
        """Where the server is."""
        self._speaker = speaker
        self._transfer = transfer
        self._weights = Weights(model, 0)
        self._shapes = read_shapes(model)
        self._dtype = dtype
        self._restarts = restarts
        self._ignore_end = ignore_end
        self._life: Life | None = None
        self._turn = asyncio.Lock()
        """Held while a server is started, or takes weights."""
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._open = asyncio.Event()
        """New requests may go to the server."""
        self._going = asyncio.Event()
        """The server makes tokens."""
        self._open.set()
        self._going.set()
        self._updating = False
        self._unproven: Weights | None = None
        self._calls: dict[str, _Call] = {}
        self._deaths = 0
        self._refusals = 0
        """Pushes in a row that the server did not survive."""
        self._tag = secrets.token_hex(4)
        self._closed = False

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._weights.version

    # ---- Requests ----------------------------------------------------------------------------------------------------

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        """Stream each rollout as it finishes; closing the generator early gives up what is left of its requests.

        Raises:
            EngineError: a request can never run (checked for all before the first token), or the server cannot be kept
                alive.
        """
        admitted = self._open.is_set()
        calls = self._prepare(requests, admitted=admitted)
        if not calls:
            return
        self._calls.update((call.request.id, call) for call in calls)
        try:
            limit = (await self._ready()).served.max_model_len
            for call in calls:
                _check_length(call, limit)
            async with Inbox[Rollout]() as inbox:
                for call in sorted(calls, key=lambda call: call.request.priority):
                    inbox.start(self._deliver(call, inbox))
                for _ in calls:
                    yield await inbox.get()
        finally:
            for call in calls:
                call.done.set()
                self._calls.pop(call.request.id, None)

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now; their partial rollouts are streamed with finish `abort`. Unknown ids are ignored."""
        calls = [call for name in list(ids) if (call := self._calls.get(name)) is not None]
        for call in calls:
            call.aborted.set()
        # A request on its way to the server is not known there yet: ask until it is.
        while left := [call for call in calls if not call.done.is_set() and call.wire_id is not None]:
            if self._life is not None:
                try:
                    await self._life.routes.abort([call.wire_id for call in left if call.wire_id is not None])
                except Lost:
                    return  # what a dead server takes along ends by itself
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_AGAIN_S):
                    for call in left:
                        await call.done.wait()

    async def _deliver(self, call: _Call, inbox: Inbox[Rollout]) -> None:
        try:
            inbox.put(await self._draw(call))
        finally:
            call.done.set()
            self._calls.pop(call.request.id, None)

    async def _draw(self, call: _Call) -> Rollout:
        """The finished rollout of one request, over as many attempts as it takes."""
        async with self._room:
            while await self._may_go(call):
                if call.partial.kept >= call.request.sampling.max_new_tokens:  # only the word that it ended was lost
                    return self._rollout(call, "length")
                life = await self._ready()
                if call.aborted.is_set():
                    break
                try:
                    finish = await self._attempt(call, life)
                except Lost as error:
                    call.partial.lose(keep=not call.request.sampling.stop)  # a stop text may lie across two attempts
                    await self._lost(call, life, error)
                    continue
                if finish == "abort" and not call.aborted.is_set():
                    call.losses += 1  # somebody else ended it; go on from the tokens that it has
                    if call.losses <= LOSSES:
                        if call.request.sampling.stop:  # which may lie across two attempts
                            call.partial.lose(keep=False)
                        continue
                self._deaths = 0
                return self._rollout(call, FINISHES.get(finish, "error"))
            return self._rollout(call, "abort")

    async def _attempt(self, call: _Call, life: Life) -> str:
        """Ask for what is missing; the server's word for why it ended. Raises `Lost`."""
        call.partial.begin(self._weights.version, updating=self._updating)
        call.attempts += 1
        call.wire_id = f"{self._tag}-{call.attempts}-{call.request.id}"
        kept = call.partial.kept
        try:
            async for delta in life.routes.generate(self._body(call, life)):
                call.partial.add(delta.tokens, delta.logprobs)
                if delta.finish is not None:
                    self._check_versions(call, delta)
                    call.partial.close(delta.spans)
                    return delta.finish
        except ValueError as error:
            raise EngineError(f"engine 'vllm': request {call.request.id!r} after {kept} tokens: {error}") from error
        finally:
            call.wire_id = None
        raise Lost("the stream ended without a finish")

    def _check_versions(self, call: _Call, delta: Delta) -> None:
        first, last = call.partial.version, self._weights.version
        strange = [span.version for span in delta.spans if not first <= span.version <= last]
        if strange:
            raise EngineError(
                f"engine 'vllm': request {call.request.id!r}: the server says that version {strange[0]} made tokens, "
                f"and it had {first} to {last} meanwhile; somebody else gives it weights"
            )

    def _body(self, call: _Call, life: Life) -> dict[str, Any]:
        sampling, partial = call.request.sampling, call.partial
        parameters: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens - partial.kept,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": attempt_seed(sampling.seed, partial.kept),
            "stop": list(sampling.stop),
            "stop_token_ids": [] if self._ignore_end else sorted(self._speaker.end_ids),
            "ignore_eos": self._ignore_end,
            "logprobs": 0,
            "stream_interval": STREAM_INTERVAL,
        }
        return {
            "model": life.served.name,
            "token_ids": [*call.prompt, *partial.tokens],
            "request_id": call.wire_id,
            "priority": call.request.priority,
            "sampling_params": parameters,
        }

    async def _may_go(self, call: _Call) -> bool:
        """Wait until the request may be sent; false where it was aborted instead."""
        first = call.attempts == 0 and not call.admitted
        gate = self._open if first else self._going
        if not gate.is_set() and not call.aborted.is_set():
            waits = [asyncio.ensure_future(event.wait()) for event in (gate, call.aborted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return not call.aborted.is_set()

    def _rollout(self, call: _Call, finish: Finish) -> Rollout:
        request, partial = call.request, call.partial
        text = str(
            self._speaker.tokenizer.decode(partial.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
        if finish == "stop":
            places = [place for stop in request.sampling.stop if (place := text.find(stop)) >= 0]
            text = text[: min(places, default=None)]
        return Rollout(
            id=request.id,
            task_id=request.task.id,
            group_id=request.group_id,
            turns=(Turn(text=text, token_ids=tuple(partial.tokens), logprobs=tuple(partial.logprobs)),),
            prompt_ids=call.prompt,
            weight_versions=tuple(partial.spans),
            finish=finish,
            sampling=request.sampling,
        )

    def _prepare(self, requests: Sequence[RolloutRequest], *, admitted: bool) -> list[_Call]:
        if self._closed:
            raise EngineError("the engine is closed; build a new one")
        rendered: dict[str, tuple[int, ...]] = {}
        calls: list[_Call] = []
        seen = set(self._calls)
        for request in requests:
            if request.id in seen:
                raise EngineError(f"request {request.id!r}: asked for twice; every request needs an id of its own")
            seen.add(request.id)
            key = request.task.model_dump_json(include={"messages"})
            if request.prompt_ids is None and key not in rendered:
                rendered[key] = self._render(request.task)
            calls.append(_Call(request, request.prompt_ids or rendered[key], admitted))
        return calls

    def _render(self, task: Task) -> tuple[int, ...]:
        return render(task, self._speaker.tokenizer, self._speaker.template)

    # ---- The server's lives ------------------------------------------------------------------------------------------

    async def _ready(self) -> Life:
        """The server, started where it does not run yet."""
        if self._life is not None:
            return self._life
        async with self._turn:
            return await self._begun()

    async def _begun(self) -> Life:
        if self._closed:
            raise EngineError("the engine was closed while requests were under way")
        if self._life is None:
            self._life = await self.host.begin(self._weights)
        return self._life

    async def _lost(self, call: _Call, life: Life, cause: Lost) -> None:
        """Find out whether the server died, and have it started again; raises `EngineError` where that is no use."""
        call.losses += 1
        if call.losses > LOSSES:
            raise EngineError(
                f"engine 'vllm': request {call.request.id!r} was lost {call.losses} times: {cause}; "
                f"{self.host.last_words()}"
            )
        await self._mourn(life, cause)

    async def _mourn(self, life: Life, cause: Lost) -> None:
        async with self._turn:
            if self._life is not life or await self.host.alive(life):
                return
            self._deaths += 1
            if self._deaths > self._restarts:
                raise EngineError(
                    f"engine 'vllm': the server died {self._deaths} times without finishing a response in between; it "
                    f"said: {self.host.last_words()}"
                )
            log.warning(
                "engine 'vllm': the server died (%s); starting it again on version %d: %s",
                cause,
                self._weights.version,
                self.host.last_words(),
            )
            self._life = None
            await life.routes.aclose()
            await self._begun()

    # ---- Pauses and weights ------------------------------------------------------------------------------------------

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop making tokens: keep requests in the server, end them, or first wait for those that are under way."""
        if not self._going.is_set():
            return
        self._open.clear()
        if mode == "abort":
            self._going.clear()
            await self.abort(list(self._calls))
        elif mode == "wait":
            under_way = [call for call in self._calls.values() if call.admitted or call.attempts]
            for call in under_way:
                await call.done.wait()
        self._going.clear()
        if self._life is not None:
            try:
                await self._life.routes.pause()
            except Lost:
                log.debug("engine 'vllm': the server is gone; nothing is left to pause")

    async def resume(self) -> None:
        """Go on after `pause`; raises `EngineError` where the weights pushed meanwhile were not taken as a whole."""
        if self._life is not None:
            try:
                await self._life.routes.resume()
            except Lost:
                log.debug("engine 'vllm': the server is gone; its next life begins unpaused")
        self._going.set()
        self._open.set()
        await self._prove()

    async def push_weights(self, weights: WeightsRef) -> None:
        """Load a published folder into the server; requests under way go on and carry both versions.

        The key-values that old weights made are computed afresh. Outside of a pause it pauses and resumes by itself.

        Raises:
            EngineError: the version goes backwards, the folder's tensors do not fit (nothing has been touched then), or
                the server does not answer the probe as the trained model does.
        """
        if weights.path is None:
            raise EngineError("push_weights: the engine 'vllm' reads weights from a folder; publish them to one")
        if weights.version < self._weights.version:
            raise EngineError(
                f"push_weights: version {weights.version} after {self._weights.version}; versions only grow"
            )
        new = Weights(Path(weights.path), weights.version)
        clock = asyncio.get_running_loop().time
        began = clock()
        files = await asyncio.to_thread(check_weights, new.folder, self._shapes)
        checked = clock()
        async with self._turn:
            await self._take(new, files)
        self._unproven = new
        taken = clock()
        if self._going.is_set():
            await self._prove()
        self.last_push = PushTimes(checked - began, taken - checked, clock() - taken)

    async def _take(self, new: Weights, files: Sequence[str]) -> None:
        life = self._life
        if life is None:  # it will begin with them
            self._weights = new
            return
        self._updating = True
        for call in self._calls.values():
            call.partial.doubt()
        try:
            if self._going.is_set():
                await life.routes.pause()
            await self._transfer.push(life.routes, life.number, new.folder, files, new.version)
            named = await life.routes.version()
            if named != str(new.version):
                raise EngineError(
                    f"engine 'vllm': the server calls its weights {named!r} after version {new.version} was pushed; "
                    "somebody else gives it weights, or it is not vLLM 0.32"
                )
            self._weights = new
            self._refusals = 0
            if self._going.is_set():
                await life.routes.resume()
        except Lost as cause:
            self._weights = new
            self._life = None
            await life.routes.aclose()
            self._refusals += 1
            if self._refusals > self._restarts:
                raise EngineError(
                    f"engine 'vllm': the server did not survive {self._refusals} pushes of weights in a row: {cause}; "
                    f"it said: {self.host.last_words()}"
                ) from cause
            self._life = await self.host.failed_update(new, cause)
        finally:
            self._updating = False

    async def _prove(self) -> None:
        """Compare the server's greedy answer with the trained model's, once after each push."""
        weights, self._unproven = self._unproven, None
        if weights is None:
            return
        probe = read_probe(weights.folder)
        if probe is None:
            log.warning("engine 'vllm': no probe.json in %s; whether all was taken is not known", weights.folder)
            return
        for attempt in range(LOSSES):
            life = await self._ready()
            tokens: list[int] = []
            logprobs: list[float] = []
            body = {
                "model": life.served.name,
                "token_ids": list(probe.prompt_ids),
                "request_id": f"{self._tag}-probe-{weights.version}-{attempt}",
                "priority": PROBE_PRIORITY,
                "sampling_params": {
                    "max_tokens": len(probe.token_ids),
                    "temperature": 0.0,
                    "logprobs": 0,
                    "ignore_eos": True,
                },
            }
            try:
                async for delta in life.routes.generate(body):
                    tokens.extend(delta.tokens)
                    logprobs.extend(delta.logprobs)
            except Lost as cause:
                await self._mourn(life, cause)
                continue
            compare(probe, tokens, logprobs, version=weights.version, dtype=self._dtype)
            return
        raise EngineError(f"engine 'vllm': the probe of version {weights.version} was lost; {self.host.last_words()}")

    async def aclose(self) -> None:
        """End the server where it is ours, and remove the handed-over weights; requests under way end with an error."""
        if self._closed:
            return
        self._closed = True
        self._open.set()
        self._going.set()
        life, self._life = self._life, None
        self._transfer.close()
        await self.host.end()
        if life is not None:
            await life.routes.aclose()
        await asyncio.to_thread(shutil.rmtree, self.weights_folder, ignore_errors=True)


def _check_length(call: _Call, limit: int) -> None:
    prompt, new = len(call.prompt), call.request.sampling.max_new_tokens
    if limit and prompt + new > limit:
        raise EngineError(
            f"task {call.request.task.id!r}: prompt and answer do not fit the model: {prompt} prompt tokens + "
            f"max_new_tokens {new} > {limit} positions; shorten the prompt or lower max_new_tokens"
        )
