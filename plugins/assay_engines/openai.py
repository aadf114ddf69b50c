"""Rollouts from any OpenAI-compatible service, which keeps its own weights.

As a chat it gives texts: for judges, labels and evaluation. With `tokens` it is asked for ids and log-probs, and its
rollouts can be learned from off-policy, as those of a frozen policy (version 0). Everything else holds as for any
engine: each request yields exactly one rollout, streamed as it comes; a request that fails for good comes back with
finish `error` and an empty text, and the cause is logged once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from assay.component import Options
from assay.contracts import Rollout, RolloutRequest, WeightsRef
from assay.errors import ConfigError, EngineError
from assay.tokens import read_token
from assay_engines.openai_forms import WITHOUT_TOKENS, ChatForm, Form, TokenForm, TokensError, greeting, text_rollout

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("assay.engines")
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE_S = 20.0
_CERTAIN = 1e-6
"""Largest log-prob, without its sign, of a token that was drawn from one."""


class OpenAIOptions(Options):
    """Options of the engine `openai`."""

    base_url: str
    """Root of the service, for example `http://127.0.0.1:8000/v1`; the route is added."""
    model: str = Field(min_length=1)
    """Name of the model, as the service knows it."""
    token_env: str | None = None
    """Environment variable that holds the service's token; the token itself is never written anywhere."""
    tokens: bool = False
    """Hand over prompts as token ids of the policy's tokenizer and take ids and log-probs, so that rollouts can be
    learned from; a service that returns none is refused. Needs a policy of the same tokenizer."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """With `tokens`: how messages become a prompt, as for the engine `transformers`."""
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

    def __init__(self, options: OpenAIOptions, *, tokenizer: Any = None) -> None:
        """Read the token now; raises `ConfigError` when its variable is not set, or `tokens` lacks a `tokenizer`."""
        self._options = options
        if options.tokens and tokenizer is None:
            raise ConfigError(
                "engine 'openai': tokens = true, and there is no policy whose tokenizer makes the ids; it is for "
                "training runs"
            )
        self._form: Form = (
            TokenForm(options.model, tokenizer, options.template) if options.tokens else ChatForm(options.model)
        )
        self.replays = options.tokens
        """Its rollouts are a frozen policy's: their version is not held against the run's."""
        self._tempered: bool | None = None
        """Whether its log-probs are of the distribution that it samples from; None before it was asked."""
        self._asking = asyncio.Lock()
        self._token = read_token(options.token_env, where="engine 'openai': token_env")
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
        """Stream each rollout as it finishes; closing the generator early gives up what is left.

        Raises:
            EngineError: with `tokens`, where the service gives no ids or no log-probs, or not those that it drew with.
        """
        if self._options.tokens and requests:
            await self._check_logprobs(requests)
        tasks = {asyncio.create_task(self._one(request)): request for request in requests}
        self._running.update({request.id: task for task, request in tasks.items()})
        left = set(tasks)
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    request = tasks[task]
                    self._running.pop(request.id, None)
                    yield text_rollout(request, "", "abort") if task.cancelled() else task.result()
        finally:
            for task in left:
                self._running.pop(tasks[task].id, None)
                task.cancel()
            if left:
                await asyncio.wait(left)

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Ask nothing new; with `abort` what is under way comes back text_rollout, with `wait` it is awaited."""
        self._going.clear()
        if mode == "abort":
            await self.abort(list(self._running))
        elif mode == "wait" and (asked := [task for task in self._running.values() if task.get_name() == "asked"]):
            await asyncio.wait(asked)

    async def push_weights(self, weights: WeightsRef) -> None:
        """Refused, since the service keeps its weights; with `tokens` its rollouts stay those of version 0."""
        if self._options.tokens:
            return
        raise EngineError(
            f"engine 'openai': the service at {self._options.base_url} keeps its own weights and cannot take version "
            f"{weights.version}; train with the engine 'transformers' or 'vllm', or off-policy with tokens = true: "
            f"{WITHOUT_TOKENS}"
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
                except TokensError:
                    raise
                except EngineError as error:
                    problem = error
                    break
                if attempt < self._options.retries:
                    await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S) * (0.5 + random.random()))  # noqa: S311 # jitter
                    pause_s *= 2
            log.warning("engine 'openai': request %s failed: %s", request.id, problem)
            return text_rollout(request, "", "error")

    async def _check_logprobs(self, requests: Sequence[RolloutRequest]) -> None:
        """Find out once whether log-probs are taken after temperature and top-p; raise where that would matter."""
        async with self._asking:
            if self._tempered is None:
                try:
                    reply = await self._post(greeting(self._form.body(requests[0])))
                except _PassingError as error:
                    raise EngineError(f"engine 'openai': {error}") from error
                first = self._form.rollout(requests[0], reply).turns[-1].logprobs or (0.0,)
                self._tempered = abs(first[0]) < _CERTAIN
        plain = all(r.sampling.temperature in (0.0, 1.0) and r.sampling.top_p == 1.0 for r in requests)
        if not self._tempered and not plain:
            raise EngineError(
                f"engine 'openai': the service at {self._options.base_url} gives log-probs from before temperature and "
                "top-p; use temperature = 1 and top_p = 1, or start vLLM with --logprobs-mode processed_logprobs"
            )

    async def _ask(self, request: RolloutRequest) -> Rollout:
        return self._form.rollout(request, await self._post(self._form.body(request)))

    async def _post(self, body: dict[str, Any]) -> bytes:
        import httpx

        url = f"{self._options.base_url}{self._form.route}"
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token.get_secret_value()}"}
        try:
            answer = await self._opened().post(url, json=body, headers=headers)
        except httpx.TransportError as error:
            raise _PassingError(f"{url}: not reached: {type(error).__name__}: {error}") from error
        said = f"{answer.status_code}: {' '.join(answer.text[:200].split())}"
        if answer.status_code in _TRANSIENT:
            raise _PassingError(f"{url}: answered {said}")
        if answer.status_code != 200:
            raise EngineError(f"{url}: answered {said}; check base_url, model and token_env.")
        return answer.content

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
