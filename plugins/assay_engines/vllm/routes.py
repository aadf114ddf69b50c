"""vLLM's HTTP routes that this engine uses, with its replies checked; no state but the connections.

Written against vLLM 0.32. Two kinds of failure: `Lost`, after which asking again makes sense (the server is gone, going
or stumbled), and `EngineError`, after which it does not.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.errors import EngineError
from assay_engines.vllm.partial import ServerSpan

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
GENERATE = "/inference/v1/generate"
PREFIX = "generate-tokens-"
"""What the token route puts before a request's id; aborting needs the whole."""
NO_LOGPROB = -9999.0
"""What the server sends in place of a log-prob that is not a number."""


class Lost(Exception):  # noqa: N818  (an event, not a mistake)
    """The server did not finish what it was asked; it may be asked again."""


class Served(NamedTuple):
    """What a server serves."""

    name: str
    root: str
    max_model_len: int


class Delta(NamedTuple):
    """New tokens of one request; the last one says why it ended and which weights made which tokens."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None
    spans: tuple[ServerSpan, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Logprob(_Part):
    token_id: int
    logprob: float


class _Logprobs(_Part):
    content: list[_Logprob] = Field(default_factory=list["_Logprob"])


class _Version(_Part):
    version: str
    start: int
    end: int


class _Choice(_Part):
    token_ids: list[int]
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[_Version] | None = None


class _Chunk(_Part):
    choices: list[_Choice]


class _Model(_Part):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(_Part):
    data: list[_Model] = Field(min_length=1)


@dataclass
class Routes:
    """One server."""

    url: str
    _client: httpx.AsyncClient | None = field(default=None, init=False)

    async def healthy(self) -> bool:
        """Whether it says that it is well."""
        try:
            return (await self._opened().get("/health", timeout=5.0)).status_code == 200
        except _transport_errors():
            return False

    async def models(self) -> Served:
        """What it serves."""
        reply = await self._ask("GET", "/v1/models")
        try:
            model = _Models.model_validate_json(reply).data[0]
        except ValidationError as error:
            raise EngineError(f"engine 'vllm': {self.url}/v1/models is not the reply of a vLLM server") from error
        return Served(model.id, model.root or "", model.max_model_len or 0)

    async def generate(self, body: Mapping[str, Any]) -> AsyncGenerator[Delta, None]:
        """Stream the tokens of one request; ends after the delta with a finish, or raises `Lost`."""
        try:
            async with self._opened().stream("POST", GENERATE, json={**body, "stream": True}) as reply:
                if reply.status_code != 200:
                    self._refuse(GENERATE, reply.status_code, await reply.aread())
                async for line in reply.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    delta = _delta(line[6:])
                    yield delta
                    if delta.finish is not None:
                        return
        except _transport_errors() as error:
            raise Lost(f"{type(error).__name__}: {error}") from error
        raise Lost("the stream ended without a finish")

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop the scheduler; requests under way are kept and computed afresh after `resume`."""
        await self._ask("POST", f"/pause?mode={mode}")

    async def resume(self) -> None:
        """Let the scheduler go on."""
        await self._ask("POST", "/resume")

    async def abort(self, ids: Sequence[str]) -> None:
        """End requests by their ids; unknown ids are ignored."""
        await self._ask("POST", "/abort_requests", {"request_ids": [PREFIX + one for one in ids]})

    async def name_version(self, version: int) -> None:
        """Call the weights in use by a number."""
        await self._ask("POST", "/update_weight_version", {"new_version": str(version)})

    async def version(self) -> str:
        """What the server calls the weights in use."""
        reply = await self._ask("GET", "/weight_info")
        return _field(reply, f"{self.url}/weight_info", "weight_version", str)

    async def world_size(self) -> int:
        """How many workers hold a part of the model, over all of its copies."""
        reply = await self._ask("GET", "/get_world_size")
        return _field(reply, f"{self.url}/get_world_size", "world_size", int)

    async def begin_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Tell the workers how weights will come."""
        await self._ask("POST", "/init_weight_transfer_engine", {"init_info": dict(init_info)})

    async def end_transfer(self) -> None:
        """Let the workers forget whoever sent them weights before."""
        await self._ask("POST", "/shutdown_weight_transfer_engine")

    async def start_update(self) -> None:
        """New weights begin; the scheduler must be paused."""
        await self._ask("POST", "/start_weight_update")

    async def update(self, update_info: Mapping[str, Any]) -> None:
        """Load weights; back when they are loaded."""
        await self._ask("POST", "/update_weights", {"update_info": dict(update_info)})

    async def finish_update(self, version: int) -> None:
        """All weights came: they are called by this number from now on."""
        await self._ask("POST", "/finish_weight_update", {"weight_version": str(version)})

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _ask(self, method: str, route: str, body: Mapping[str, Any] | None = None) -> bytes:
        try:
            reply = await self._opened().request(method, route, json=body, timeout=300.0)
        except _transport_errors() as error:
            raise Lost(f"{route}: {type(error).__name__}: {error}") from error
        if reply.status_code != 200:
            self._refuse(route, reply.status_code, reply.content)
        return reply.content

    def _refuse(self, route: str, status: int, content: bytes) -> None:
        said = " ".join(content.decode("utf-8", "replace").split())[:300]
        if status >= 500:
            raise Lost(f"{route} answered {status}: {said}")
        hint = {
            403: "start the server with --enable-scale-out",
            404: "start the server with VLLM_SERVER_DEV_MODE=1; this engine is written for vLLM 0.32",
        }
        what_to_do = hint.get(status, "the request is not its kind")
        raise EngineError(f"engine 'vllm': {self.url}{route} answered {status}: {said}; {what_to_do}")

    def _opened(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            # A request may wait in the server for as long as others take, and through a pause.
            self._client = httpx.AsyncClient(
                base_url=self.url,
                timeout=httpx.Timeout(None, connect=10.0),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                trust_env=False,
                verify=False,  # noqa: S501  (plain http on loopback; loading certificates costs a tenth of a second)
            )
        return self._client


def _transport_errors() -> type[Exception]:
    import httpx

    return httpx.TransportError


def _delta(line: str) -> Delta:
    try:
        chunk = _Chunk.model_validate_json(line)
    except ValidationError as error:
        if '"error"' in line[:12]:
            raise Lost(f"the stream reported {_message(line)}") from error
        raise EngineError(f"engine 'vllm': the server's reply is not as in vLLM 0.32: {line[:200]}") from error
    choice = chunk.choices[0]
    content = [] if choice.logprobs is None else choice.logprobs.content
    if [each.token_id for each in content] != choice.token_ids:
        raise EngineError(f"engine 'vllm': log-probs that do not belong to the tokens: {line[:200]}")
    if any(each.logprob <= NO_LOGPROB for each in content):
        raise EngineError("engine 'vllm': the server could give no log-prob of a token that it drew (not a number)")
    if choice.finish_reason == "error":
        raise Lost("the server gave the request up with an error of its own")
    spans = tuple(ServerSpan(_number(each.version), each.start, each.end) for each in choice.weight_versions or ())
    return Delta(tuple(choice.token_ids), tuple(each.logprob for each in content), choice.finish_reason, spans)


def _field(reply: bytes, asked: str, name: str, kind: type[T]) -> T:
    try:
        value = json.loads(reply)[name]
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, kind):
        raise EngineError(f"engine 'vllm': {asked} is not the reply of a vLLM server: no {name} in it")
    return value


def _number(version: str) -> int:
    if not version.isdecimal():
        raise EngineError(f"engine 'vllm': the server's weights are called {version!r}, not by a number of ours")
    return int(version)


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["error"].get("message", line))[:200]
    except (ValueError, KeyError, AttributeError):
        return line[:200]
