"""Rollouts from any OpenAI-compatible chat service: for judges, labels and evaluation, not for training.

The service keeps its weights: `push_weights` is refused, rollouts carry no token ids, no log-probs and no versions.
Everything else holds as for any engine: each request yields exactly one rollout, streamed as it comes; a request that
fails for good comes back with finish `error` and an empty text, and the cause is logged once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from assay.component import Options
from assay.contracts import Finish, Rollout, RolloutRequest, Turn, WeightsRef
from assay.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("assay.engines")
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE_S = 20.0


class OpenAIOptions(Options):
    """Options of the engine `openai`."""

    base_url: str
    """Root of the service, for example `http://127.0.0.1:8000/v1`; `/chat/completions` is added."""
    model: str = Field(min_length=1)
    """Name of the model, as the service knows it."""
    token_env: str | None = None
    """Environment variable that holds the service's token; the token itself is never written anywhere."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Wall time of one attempt."""
    concurrency: int = Field(default=16, ge=1)
    """Requests under way at once."""
    retries: int = Field(default=4, ge=0)
    """Further attempts after a busy or unreachable service, with growing pauses."""
    first_pause_s: float = Field(default=0.5, ge=0)
    """Pause before the first further attempt; each later one is twice as long, with jitter."""

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, base_url: str) -> str:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url starts with http:// or https://; found {base_url!r}")
        return base_url.rstrip("/")


class OpenAIEngine:
    """Draws responses from a chat service."""

    def __init__(self, options: OpenAIOptions) -> None:
        """Read the token now; raises `ConfigError` when its variable is not set."""
        self._options = options
        self._token = _token(options.token_env)
        self._client: httpx.AsyncClient | None = None
        self._room = asyncio.Semaphore(options.concurrency)
        self._going = asyncio.Event()
        self._going.set()
        self._running: dict[str, asyncio.Task[Rollout]] = {}

    @property
    def policy_version(self) -> int:
        """Always 0: the service's weights are its own."""
        return 0

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        """Stream each rollout as it finishes; closing the generator early gives up what is left."""
        tasks = {asyncio.create_task(self._one(request)): request for request in requests}
        self._running.update({request.id: task for task, request in tasks.items()})
        left = set(tasks)
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    request = tasks[task]
                    self._running.pop(request.id, None)
                    yield _rollout(request, "", "abort") if task.cancelled() else task.result()
        finally:
            for task in left:
                self._running.pop(tasks[task].id, None)
                task.cancel()
            if left:
                await asyncio.wait(left)

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Ask nothing new; with `abort` what is under way comes back unfinished, with `wait` it is awaited."""
        self._going.clear()
        if mode == "abort":
            await self.abort(list(self._running))
        elif mode == "wait" and (asked := [task for task in self._running.values() if task.get_name() == "asked"]):
            await asyncio.wait(asked)

    async def push_weights(self, weights: WeightsRef) -> None:
        """Refused: the service keeps its weights."""
        raise EngineError(
            f"engine 'openai': the service at {self._options.base_url} keeps its own weights and cannot take version "
            f"{weights.version}; train with the engine 'transformers' or 'vllm'."
        )

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._going.set()

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now; they come back with finish `abort` and no text."""
        for identity in list(ids):
            task = self._running.get(identity)
            if task is not None:
                task.cancel()

    async def aclose(self) -> None:
        """End what is under way and close the connections."""
        await self.abort(list(self._running))
        if self._client is not None:
            await self._client.aclose()

    async def _one(self, request: RolloutRequest) -> Rollout:
        async with self._room:
            await self._going.wait()
            task = asyncio.current_task()
            assert task is not None
            task.set_name("asked")
            pause_s = self._options.first_pause_s
            problem: Exception | None = None
            for attempt in range(self._options.retries + 1):
                try:
                    return await self._ask(request)
                except _PassingError as error:
                    problem = error
                except EngineError as error:
                    problem = error
                    break
                if attempt < self._options.retries:
                    await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S) * (0.5 + random.random()))  # noqa: S311 # jitter
                    pause_s *= 2
            log.warning("engine 'openai': request %s failed: %s", request.id, problem)
            return _rollout(request, "", "error")

    async def _ask(self, request: RolloutRequest) -> Rollout:
        import httpx

        client = self._opened()
        url = f"{self._options.base_url}/chat/completions"
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token.get_secret_value()}"}
        try:
            answer = await client.post(url, json=self._body(request), headers=headers)
        except httpx.TransportError as error:
            raise _PassingError(f"{url}: not reached: {type(error).__name__}: {error}") from error
        said = f"{answer.status_code}: {' '.join(answer.text[:200].split())}"
        if answer.status_code in _TRANSIENT:
            raise _PassingError(f"{url}: answered {said}")
        if answer.status_code != 200:
            raise EngineError(f"{url}: answered {said}; check base_url, model and token_env.")
        try:
            choice = _Completion.model_validate_json(answer.content).choices[0]
        except ValidationError as error:
            raise EngineError(f"{url}: the reply is no chat completion: {said}") from error
        finish: Finish = "length" if choice.finish_reason == "length" else "stop"
        return _rollout(request, choice.message.content or "", finish)

    def _body(self, request: RolloutRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._options.model,
            "messages": [{"role": message.role, "content": message.content} for message in request.task.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
        }
        return body | ({"stop": list(sampling.stop)} if sampling.stop else {})

    def _opened(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            # Without TLS no certificates are needed, and loading them costs a tenth of a second.
            self._client = httpx.AsyncClient(
                timeout=self._options.timeout_s, trust_env=False, verify=self._options.base_url.startswith("https")
            )
        return self._client


class _PassingError(Exception):
    """A failure that may pass by itself."""


class _Part(BaseModel):
    """A part of a service's reply; what is not needed is ignored."""

    model_config = ConfigDict(extra="ignore")


class _Text(_Part):
    content: str | None = None


class _Choice(_Part):
    message: _Text
    finish_reason: str | None = None


class _Completion(_Part):
    choices: list[_Choice] = Field(min_length=1)


def _rollout(request: RolloutRequest, text: str, finish: Finish) -> Rollout:
    return Rollout(
        id=request.id,
        task_id=request.task.id,
        group_id=request.group_id,
        turns=(Turn(text=text),),
        finish=finish,
        sampling=request.sampling,
    )


def _token(name: str | None) -> SecretStr | None:
    if name is None:
        return None
    token = os.environ.get(name)
    if not token:
        raise ConfigError(
            f"engine 'openai': token_env: the environment variable {name!r} is not set; export it, or leave it out."
        )
    return SecretStr(token)
