"""`http`: an assay server (`assay serve`), or one that answers as it does, as a reward source.

One request asks about a batch: `POST URL/v1/score` with `{"items": [{"id", "task", "rollout"}], "rewards"}`. Nothing of
the answer is believed unseen:

| the answer | the verdict |
|---|---|
| an item that is scored, with a finite value | scored |
| an item that abstained | abstained, with its fault and reason |
| an item that failed there | failed, with its reason |
| other ids, another number of items, no JSON, a value that is missing or not finite | failed |
| 429, 502, 503, 504, no connection | asked again, up to `retries` times with growing pauses, then failed |
| another status | failed, with the first line of what the server said |
"""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from assay.component import BuildContext, Options
from assay.contracts import Candidate, Evidence, Limits, Verdict
from assay.errors import TransientError
from assay.protocols import RewardSource
from assay.tokens import read_token

MAX_ANSWER_BYTES = 16 << 20
MAX_TOLD = 4096
TRANSIENT = frozenset({429, 502, 503, 504})


class HttpOptions(Options):
    """Where the server is and how it is asked."""

    url: str
    """Address of the server without `/v1/score`, for example `http://127.0.0.1:8642`."""
    token_env: str | None = None
    """Name of the environment variable that holds the bearer token."""
    rewards: tuple[str, ...] = ()
    """Names of the server's rewards to ask for; none means all."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value; anything outside is *failed*."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Wall time of one request, which the server is told as its deadline."""
    max_batch: int = Field(default=32, ge=1, le=1000)
    """Answers in one request."""
    concurrency: int = Field(default=8, ge=1)
    """Requests at once."""
    retries: int = Field(default=3, ge=0)
    """Further attempts after a busy or unreachable server."""
    deterministic: bool = True
    """Whether equal inputs give equal verdicts; only then are verdicts cached."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url starts with http:// or https://; found {url!r}")
        try:
            parts = urlsplit(url)
            whole = bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
        except ValueError:  # brackets or a port that are none
            whole = False
        if not whole or not url.isprintable() or " " in url:
            raise ValueError(f"url is http://HOST:PORT, perhaps with a path; found {url!r}")
        return url.rstrip("/").removesuffix("/v1/score")

    @model_validator(mode="after")
    def _ordered(self) -> "HttpOptions":
        if self.value_range[0] > self.value_range[1]:
            raise ValueError(f"value_range {self.value_range} ends before it starts")
        return self


class BrokenAnswerError(Exception):
    """The server's answer is not one; the text says what is wrong."""


class HttpSource:
    """Asks a server about batches of candidates."""

    def __init__(self, options: HttpOptions) -> None:
        """Read the token now, so that a missing one is told before the run."""
        self.options = options
        self.limits = Limits(
            max_batch=options.max_batch,
            concurrency=options.concurrency,
            timeout_s=options.timeout_s * 1.1,  # the server's own deadline comes first
            retries=options.retries,
            value_range=options.value_range,
            deterministic=options.deterministic,
            memory_mib=None,
        )
        self.fingerprint = f"{options.url} {' '.join(options.rewards)}"
        self._token = read_token(options.token_env, where="http: token_env")
        self._client: Any = None
        self._told: dict[str, dict[str, Any]] = {}

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order.

        Raises `TransientError` for a busy server, and an error for an item that failed there. The core then asks one by
        one; what the server has said already is remembered for that and not asked again.
        """
        items = [self._item(candidate, index) for index, candidate in enumerate(batch)]
        keys = [json.dumps([item["task"], item["rollout"]], sort_keys=True) for item in items]
        if len(batch) == 1 and keys[0] in self._told:
            return [_verdict(self._told.pop(keys[0]))]
        answers = _items(await self._ask(items), [item["id"] for item in items])
        if len(batch) > 1 and any(answer.get("status") == "failed" or _wrong(answer) for answer in answers):
            if len(self._told) > MAX_TOLD:
                self._told.clear()  # of calls that were given up
            self._told.update(zip(keys, answers, strict=True))
        return [_verdict(answer) for answer in answers]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def _item(self, candidate: Candidate, index: int) -> dict[str, Any]:
        # The place makes the id unique: two rollouts of different runs may share theirs.
        return {
            "id": f"{index}-{candidate.rollout.id}",
            "task": candidate.task.model_dump(mode="json"),
            "rollout": candidate.rollout.model_dump(mode="json"),
        }

    async def _ask(self, items: list[dict[str, Any]]) -> Any:
        import httpx

        url = f"{self.options.url}/v1/score"
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, verify=url.startswith("https"))
        body: dict[str, Any] = {"items": items, "deadline_s": self.options.timeout_s}
        if self.options.rewards:
            body["rewards"] = list(self.options.rewards)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token.get_secret_value()}"}
        try:
            async with asyncio.timeout(self.options.timeout_s * 1.05):
                return await self._post(url, body, headers)
        except TimeoutError as error:
            raise BrokenAnswerError(f"{url}: no answer within {self.options.timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise TransientError(f"{url}: not reached: {type(error).__name__}: {error}") from error

    async def _post(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        async with self._client.stream("POST", url, json=body, headers=headers, timeout=None) as response:
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise BrokenAnswerError(f"{url}: the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        if response.status_code in TRANSIENT:
            raise TransientError(f"{url}: answered {response.status_code}")
        if response.status_code != 200:
            said = " ".join(content[:200].decode("utf-8", "replace").split())
            raise BrokenAnswerError(
                f"{url}: answered {response.status_code}: {said}; look at url, token_env and rewards"
            )
        try:
            return json.loads(bytes(content))
        except (ValueError, RecursionError) as error:
            raise BrokenAnswerError(f"{url}: the answer is no JSON: {error}") from error


def build_http(options: HttpOptions, _context: BuildContext) -> RewardSource:
    """The source, which asks with its first batch; raises `ConfigError` where the token's variable is not set."""
    return HttpSource(options)


def _items(answer: Any, ids: list[str]) -> list[dict[str, Any]]:
    found: Any = cast("dict[str, Any]", answer).get("items") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in cast("list[Any]", found)):
        raise BrokenAnswerError("the server's answer has no list 'items' of tables")
    items = cast("list[dict[str, Any]]", found)
    if len(items) != len(ids):
        raise BrokenAnswerError(f"the server answered {len(items)} items for {len(ids)}")
    for item, wanted in zip(items, ids, strict=True):
        if item.get("id") != wanted:
            raise BrokenAnswerError(f"the server answered id {item.get('id')!r} where {wanted!r} was asked")
    return items


def _wrong(item: dict[str, Any]) -> str | None:
    """What is wrong with one item, or None."""
    status, value = item.get("status"), item.get("value")
    if status == "scored":
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return f"the server scored without a finite number: {value!r}"
        return None
    if status not in ("abstained", "failed"):
        return f"the server gave the status {status!r}"
    if value is not None:
        return f"the server gave {value!r} to an item that is {status}"
    return None


def _verdict(item: dict[str, Any]) -> Verdict:
    problem = _wrong(item)
    if problem is not None:
        raise BrokenAnswerError(problem)
    reason = " ".join(str(item.get("reason") or "no reason given").split())[:500]
    if item["status"] == "scored":
        parts: Any = item.get("parts")
        data = json.loads(json.dumps(parts, allow_nan=False)) if _finite_json(parts) else None
        return Verdict.score(
            float(item["value"]), evidence=Evidence(kind="http", summary=f"{item['value']:g}", data=data)
        )
    if item["status"] == "failed":
        raise BrokenAnswerError(f"failed at the server: {reason}")
    return Verdict.abstain(reason, fault="candidate" if item.get("fault") == "candidate" else "ours")


def _finite_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):
        return False
    return True
