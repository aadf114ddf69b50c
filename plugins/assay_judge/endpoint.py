"""Who is asked: an OpenAI-compatible endpoint over HTTP, or one of assay's own engines."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay.component import BuildContext, Options
from assay.contracts import Message, RolloutRequest, Sampling, Task
from assay.errors import ConfigError, JudgingError, TransientError
from assay.protocols import RolloutEngine
from assay.tokens import read_token

if TYPE_CHECKING:
    import httpx

_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_MAX_REPLY_BYTES = 4 << 20


class Price(Options):
    """What the endpoint charges, in any one currency."""

    prompt_per_million: float = Field(default=0.0, ge=0)
    """For a million tokens of prompt."""
    completion_per_million: float = Field(default=0.0, ge=0)
    """For a million tokens of answer."""


class ModelOptions(Options):
    """Which model judges, and how it is asked; give either `base_url` or `engine`."""

    base_url: str | None = None
    """Root of an OpenAI-compatible service, for example `http://127.0.0.1:8000/v1`; `/chat/completions` is added."""
    model: str = ""
    """Name of the model, as the service knows it."""
    token_env: str | None = None
    """Environment variable that holds the service's token; the token itself is never written anywhere."""
    engine: dict[str, Any] | None = None
    """Instead of a service: `{ use = "name", ... }`, one of assay's rollout engines and its options."""
    temperature: float = Field(default=0.0, ge=0)
    """0 asks for the likeliest answer; with several votes use more than 0, or they are all the same."""
    max_tokens: int = Field(default=512, ge=1)
    """Longest answer of the judge."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Wall time of one verdict, all its votes together."""
    concurrency: int = Field(default=16, ge=1)
    """Verdicts that are asked for at once."""
    retries: int = Field(default=3, ge=0)
    """Further attempts after a busy or unreachable service."""
    seed: int = 0
    """Vote i is asked with seed + i, and the secret mark of the framing is made from it."""
    price: Price = Price()
    """For the cost in the evidence."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "ModelOptions":
        if (self.base_url is None) == (self.engine is None):
            raise ValueError("a judge needs either base_url (a service) or engine (a table with use), and not both")
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url starts with http:// or https://; found {self.base_url!r}")
        if self.base_url is not None and not _names_a_host(self.base_url):
            raise ValueError(f"base_url names no host; found {self.base_url!r}")
        if self.base_url is not None and not self.model:
            raise ValueError("base_url needs the name of a model in model")
        if self.engine is not None and not isinstance(self.engine.get("use"), str):
            raise ValueError("engine is a table with the engine's name in use")
        return self


def _names_a_host(url: str) -> bool:
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


class Reply(NamedTuple):
    """One answer of the model."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    latency_s: float


class Asker(Protocol):
    """Asks a model one conversation."""

    name: str
    """What evidence calls the model."""

    async def ask(self, messages: list[Message], *, seed: int) -> Reply:
        """The reply; raises `TransientError` where another try may help, `JudgingError` where none will."""
        ...

    async def aclose(self) -> None:
        """Let go of everything."""
        ...


def open_asker(options: ModelOptions, context: BuildContext) -> Asker:
    """The asker that the options name; raises `ConfigError` for a missing token or engine."""
    if options.engine is not None:
        if context.open_engine is None:
            raise ConfigError("judge: engine: no engine can be opened here; give base_url instead.")
        engine_options = {key: value for key, value in options.engine.items() if key != "use"}
        return EngineAsker(context.open_engine(options.engine["use"], engine_options), options)
    return EndpointAsker(options)


class EndpointAsker:
    """A chat-completions service; one connection pool per event loop."""

    def __init__(self, options: ModelOptions) -> None:
        """Read the token now, so that a missing one is told before the run."""
        self.name = options.model
        self._options = options
        self._url = f"{(options.base_url or '').rstrip('/')}/chat/completions"
        self._token = read_token(options.token_env, where="judge: token_env")
        self._client: httpx.AsyncClient | None = None

    async def ask(self, messages: list[Message], *, seed: int) -> Reply:
        """The reply of the service."""
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=self._options.concurrency * 4)
            # Without TLS no certificates are needed, and loading them costs a tenth of a second.
            self._client = httpx.AsyncClient(
                timeout=self._options.timeout_s,
                limits=limits,
                trust_env=False,
                verify=self._url.startswith("https"),
            )
        body = {
            "model": self._options.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self._options.temperature,
            "max_tokens": self._options.max_tokens,
            "seed": seed,
        }
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token.get_secret_value()}"}
        began = time.perf_counter()
        try:
            answer = await self._client.post(self._url, json=body, headers=headers)
        except httpx.TransportError as error:
            raise TransientError(f"{self._url}: not reached: {type(error).__name__}: {error}") from error
        if answer.status_code in _TRANSIENT:
            raise TransientError(f"{self._url}: answered {answer.status_code}")
        if answer.status_code != 200:
            said = " ".join(answer.text[:200].split())
            raise JudgingError(
                f"{self._url}: answered {answer.status_code}: {said}; check base_url, model and token_env."
            )
        return _reply(answer, self._url, time.perf_counter() - began)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()


class EngineAsker:
    """One of assay's engines as a judge."""

    def __init__(self, engine: RolloutEngine, options: ModelOptions) -> None:
        """Ask `engine`, which is closed with the asker."""
        self.name = str((options.engine or {}).get("model") or (options.engine or {}).get("use"))
        self._engine = engine
        self._options = options
        self._asked = 0

    async def ask(self, messages: list[Message], *, seed: int) -> Reply:
        """The engine's reply."""
        self._asked += 1
        identity = f"judge-{self._asked}"
        task = Task(id=identity, messages=tuple(messages))
        options = self._options
        sampling = Sampling(temperature=options.temperature, max_new_tokens=options.max_tokens, seed=seed)
        request = RolloutRequest(id=identity, task=task, group_id=identity, sampling=sampling)
        began = time.perf_counter()
        async for rollout in self._engine.generate([request]):
            tokens = rollout.turns[-1].token_ids or ()
            return Reply(rollout.text, len(rollout.prompt_ids or ()), len(tokens), time.perf_counter() - began)
        raise JudgingError("judge: the engine gave no answer; look at the engine's own errors.")

    async def aclose(self) -> None:
        """Close the engine."""
        await self._engine.aclose()


def _reply(answer: "httpx.Response", url: str, latency_s: float) -> Reply:
    if len(answer.content) > _MAX_REPLY_BYTES:
        raise JudgingError(f"{url}: the reply has {len(answer.content)} bytes; at most {_MAX_REPLY_BYTES} are read.")
    try:
        completion = _Completion.model_validate_json(answer.content)
    except ValidationError as error:
        raise JudgingError(f"{url}: the reply is no chat completion: {' '.join(answer.text[:200].split())}") from error
    text = completion.choices[0].message.content or ""
    usage = completion.usage or _Usage()
    return Reply(text, usage.prompt_tokens or 0, usage.completion_tokens or 0, latency_s)


class _Part(BaseModel):
    """A part of a service's reply; what is not needed is ignored."""

    model_config = ConfigDict(extra="ignore")


class _Text(_Part):
    content: str | None = None


class _Answer(_Part):
    message: _Text


class _Usage(_Part):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0


class _Completion(_Part):
    choices: list[_Answer] = Field(min_length=1)
    usage: _Usage | None = None


async def ask_all(asker: Asker, conversations: list[list[Message]], seeds: list[int]) -> list[Reply]:
    """The replies to several conversations, asked at once, in order; the first error ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(asker.ask(messages, seed=seed))
                for messages, seed in zip(conversations, seeds, strict=True)
            ]
    except* Exception as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
